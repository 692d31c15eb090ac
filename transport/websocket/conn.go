package websocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/parleyhub/parley/transport"
)

const (
	chunkSize = 64 << 10    // bytes of a WebSocket frame; pings are sent between frames
	maxBuffer = 2 << 20     // capacity of a buffer that is kept for reuse
	linger    = time.Second // how long Close waits for data in flight
)

// conn is one connection. It owns up to three goroutines: one reads, one checks whether the peer is alive,
// one sends the close frame. Close waits for all.
type conn struct {
	ws      *websocket.Conn
	socket  *cork // at the dialling end, which masks; nil at the other
	codec   *transport.Codec
	peer    string
	maxSend int // the largest message that the peer accepts, in bytes

	ctx    context.Context // when it ends, the socket is closed
	cancel context.CancelFunc
	wg     sync.WaitGroup

	endOnce sync.Once
	done    chan struct{} // closed when the connection has ended
	cause   error         // the reason; set before done is closed

	inbox *transport.Inbox

	heard   atomic.Int64 // time of the last byte received
	waiting atomic.Bool  // a message waits for Receive
	writing atomic.Int64 // time of the current write's last progress; 0 without one
}

// newConn returns a connection that owns ws, which is over below. The peer accepts messages of maxSend bytes.
func newConn(ws *websocket.Conn, below net.Conn, socket *cork, o *Options, peer string, maxSend int) *conn {
	c := &conn{
		ws: ws, socket: socket, codec: &o.Codec, peer: peer, maxSend: maxSend, done: make(chan struct{}),
	}
	c.inbox = transport.NewInbox(c.done, c.closedError)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	// The library waits without a limit for the rest of a frame in whose middle the connection is closed.
	context.AfterFunc(c.ctx, func() { _ = below.Close() }) // the connection is over in any case
	c.heard.Store(now())
	ws.SetReadLimit(int64(o.Codec.MaxMessage()))
	c.wg.Go(c.read)
	c.wg.Go(func() { c.watch(o.PingInterval, o.PingTimeout) })
	return c
}

var started = time.Now()

// now returns a monotonic time in nanoseconds, never 0.
func now() int64 { return int64(time.Since(started)) + 1 }

func since(t int64) time.Duration { return time.Duration(now() - t) }

// Peer implements [transport.Conn].
func (c *conn) Peer() string { return c.peer }

var buffers = sync.Pool{New: func() any { return new([]byte) }}

func putBuffer(b *[]byte) {
	if cap(*b) <= maxBuffer {
		buffers.Put(b)
	}
}

// Send implements [transport.Conn]. It writes nothing unless all frames fit.
func (c *conn) Send(ctx context.Context, frames []transport.Frame) error {
	select {
	case <-c.done:
		return &transport.Unsent{Err: c.closedError()}
	default:
	}
	b := buffers.Get().(*[]byte)
	defer putBuffer(b)
	data, ends, err := c.codec.AppendMessages((*b)[:0], frames, c.maxSend)
	*b = data
	if err != nil {
		return err
	}
	c.writing.Store(now())
	defer c.writing.Store(0)
	begin := 0
	for _, end := range ends {
		written := c.socket.count()
		if err := c.write(ctx, data[begin:end]); err != nil {
			none := begin == 0 && c.socket != nil && c.socket.count() == written
			return c.broken(ctx, err, none)
		}
		begin = end
	}
	return nil
}

// write writes one message, a large one in chunks.
func (c *conn) write(ctx context.Context, data []byte) error {
	if len(data) <= chunkSize {
		return c.writeChunk(ctx, func() error { return c.ws.Write(ctx, websocket.MessageBinary, data) })
	}
	w, err := c.ws.Writer(ctx, websocket.MessageBinary)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		n := min(chunkSize, len(data))
		err := c.writeChunk(ctx, func() error { _, err := w.Write(data[:n]); return err })
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return w.Close()
}

// writeChunk calls write, and combines its system calls at the dialling end.
func (c *conn) writeChunk(ctx context.Context, write func() error) error {
	defer func() { c.writing.Store(now()) }()
	if c.socket == nil {
		return write()
	}
	c.socket.put()
	err := write()
	defer context.AfterFunc(ctx, func() { _ = c.socket.Close() })() // pull does not check ctx
	return errors.Join(err, c.socket.pull())
}

// broken ends the connection after a failed write, none of which has left or some of which may have, and returns the
// error to report.
func (c *conn) broken(ctx context.Context, err error, none bool) error {
	c.abort(err)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case none:
		return &transport.Unsent{Err: c.closedError()}
	}
	return c.closedError()
}

// Receive implements [transport.Conn]. The end of ctx does not end the connection.
func (c *conn) Receive(ctx context.Context) ([]transport.Frame, error) { return c.inbox.Receive(ctx) }

// read decodes messages until the socket is closed. After the connection has ended it discards them, so
// that the closing handshake can complete.
func (c *conn) read() {
	defer c.inbox.End()
	defer c.cancel()
	for {
		frames, err := c.next()
		switch {
		case transport.CodeOf(err) == transport.CodeInvalid:
			c.end(err, websocket.StatusInvalidFramePayloadData)
			continue
		case err != nil:
			c.abort(err)
			return
		case len(frames) == 0:
			continue
		}
		c.waiting.Store(true)
		c.inbox.Put(frames)
		c.waiting.Store(false)
		c.heard.Store(now()) // nothing was read meanwhile
	}
}

// next reads one message. It returns no frames once the connection has ended.
func (c *conn) next() ([]transport.Frame, error) {
	kind, r, err := c.ws.Reader(c.ctx)
	if err != nil {
		return nil, err
	}
	b := buffers.Get().(*[]byte)
	defer putBuffer(b)
	if *b, err = c.readAll((*b)[:0], r); err != nil {
		return nil, err
	}
	select {
	case <-c.done:
		return nil, nil
	default:
	}
	if kind != websocket.MessageBinary {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "a message is not binary"}
	}
	return c.codec.Decode(c.inbox.Spare(), *b)
}

// readAll is io.ReadAll into a buffer; each read updates heard.
func (c *conn) readAll(b []byte, r io.Reader) ([]byte, error) {
	for {
		if len(b) == cap(b) {
			b = append(b, make([]byte, max(4096, len(b)))...)[:len(b)]
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		c.heard.Store(now())
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}

// watch breaks the connection if the peer is silent.
func (c *conn) watch(interval, timeout time.Duration) {
	tick := time.Tick(interval)
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick:
		}
		if c.quiet(interval) && !c.answers(timeout) {
			c.abort(fmt.Errorf("the peer is silent: no answer within %v", timeout))
			return
		}
	}
}

// quiet reports whether nothing was received for d although this end was reading.
func (c *conn) quiet(d time.Duration) bool {
	return !c.waiting.Load() && since(c.heard.Load()) >= d
}

// answers pings the peer and reports whether it is alive. During a write the ping would wait behind the
// message, so the write's progress is checked instead.
func (c *conn) answers(timeout time.Duration) bool {
	if at := c.writing.Load(); at != 0 {
		return since(at) < timeout
	}
	began := now()
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	if err := c.ws.Ping(ctx); err == nil {
		c.heard.Store(now())
		return true
	}
	return c.waiting.Load() || c.heard.Load() >= began
}

// Close implements [transport.Conn]. It waits until the peer has received what was sent before, for a
// second at most.
func (c *conn) Close() error {
	c.end(nil, websocket.StatusNormalClosure)
	c.wg.Wait()
	return nil
}

// end ends the connection with a closing handshake and wakes Receive. Closing the socket at once could
// destroy data in flight.
func (c *conn) end(cause error, status websocket.StatusCode) {
	c.endOnce.Do(func() {
		c.cause = cause
		close(c.done)
		c.wg.Go(func() {
			// When ctx ends, the socket is closed and nothing blocks any more.
			guard := time.AfterFunc(linger, c.cancel)
			defer guard.Stop()
			defer c.cancel()
			_ = c.ws.Close(status, "") // the connection is over in any case
		})
	})
}

// abort ends the connection at once.
func (c *conn) abort(cause error) {
	c.endOnce.Do(func() {
		c.cause = cause
		close(c.done)
	})
	c.cancel()
	_ = c.ws.CloseNow() // the connection is over in any case
}

// closedError returns the error for the use of an ended connection.
func (c *conn) closedError() error {
	var status websocket.CloseError
	switch {
	case transport.CodeOf(c.cause) != "":
		return c.cause
	case errors.As(c.cause, &status) && status.Code == websocket.StatusNormalClosure:
		return transport.ErrClosed("the connection", errors.New("the peer closed it"))
	}
	return transport.ErrClosed("the connection", c.cause)
}
