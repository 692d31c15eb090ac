package websocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/parleyhub/parley/transport"
)

const (
	chunkSize = 64 << 10    // bytes of a WebSocket frame; pings go between
	maxBuffer = 2 << 20     // bytes of a buffer that is kept to be used again
	linger    = time.Second // for what is on its way at the end
)

// conn is one connection. It owns up to three goroutines: one reads, one looks
// whether the peer is alive, one says goodbye. Close waits for all.
type conn struct {
	ws      *websocket.Conn
	socket  *cork // of the dialling end, which masks; nil at the other
	codec   *transport.Codec
	peer    string
	maxSend int // bytes of the largest message that the peer takes

	ctx    context.Context // when it ends, the socket is closed
	cancel context.CancelFunc
	wg     sync.WaitGroup

	endOnce sync.Once
	done    chan struct{} // closed when the connection is of no more use
	cause   error         // why; set before done is closed

	inbox *transport.Inbox

	heard   atomic.Int64 // when the last byte came
	waiting atomic.Bool  // what was read waits to be received
	writing atomic.Int64 // when the present write last got on; 0 if there is none
}

// newConn takes over ws. maxSend is what the peer takes.
func newConn(ws *websocket.Conn, socket *cork, o *Options, peer string, maxSend int) *conn {
	c := &conn{
		ws: ws, socket: socket, codec: &o.Codec, peer: peer, maxSend: maxSend,
		done: make(chan struct{}),
	}
	c.inbox = transport.NewInbox(c.done, c.closedError)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.heard.Store(now())
	ws.SetReadLimit(int64(o.Codec.MaxMessage()))
	c.wg.Go(c.read)
	c.wg.Go(func() { c.watch(o.PingInterval, o.PingTimeout) })
	return c
}

var started = time.Now()

// now returns a monotonic time in nanoseconds; never 0.
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

// Send implements [transport.Conn]. Nothing is written before all frames are
// known to fit.
func (c *conn) Send(ctx context.Context, frames []transport.Frame) error {
	select {
	case <-c.done:
		return c.closedError()
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
		if err := c.write(ctx, data[begin:end]); err != nil {
			return c.broken(ctx, err)
		}
		begin = end
	}
	return nil
}

// write sends one message, a large one in chunks.
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

// writeChunk has write write a chunk, in one piece if it can.
func (c *conn) writeChunk(ctx context.Context, write func() error) error {
	defer func() { c.writing.Store(now()) }()
	if c.socket == nil {
		return write()
	}
	c.socket.put()
	err := write()
	defer context.AfterFunc(ctx, func() { _ = c.socket.Close() })() // pull does not look at ctx
	return errors.Join(err, c.socket.pull())
}

// broken ends the connection after a write that failed and says why.
func (c *conn) broken(ctx context.Context, err error) error {
	c.abort(err)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return c.closedError()
}

// Receive implements [transport.Conn]. When ctx ends, the connection lives on.
func (c *conn) Receive(ctx context.Context) ([]transport.Frame, error) { return c.inbox.Receive(ctx) }

// read takes messages until the socket is closed. Once the connection is of no
// more use it only drains, so that the peer can say goodbye.
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
		c.heard.Store(now()) // nobody listened meanwhile
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

// readAll is io.ReadAll into a buffer; each part is a sign of life.
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

// watch breaks the connection when the peer is silent.
func (c *conn) watch(interval, timeout time.Duration) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-t.C:
		}
		if c.quiet(interval) && !c.answers(timeout) {
			c.abort(fmt.Errorf("the peer is silent: no answer within %v", timeout))
			return
		}
	}
}

// quiet reports whether nothing came for d, though we listened.
func (c *conn) quiet(d time.Duration) bool {
	return !c.waiting.Load() && since(c.heard.Load()) >= d
}

// answers asks the peer whether it is alive. While a message is being written
// the ping would wait behind it: then the write's progress is the answer.
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

// Close implements [transport.Conn]. What was sent before still arrives, if the
// peer takes it within a second; Close waits for that.
func (c *conn) Close() error {
	c.end(nil, websocket.StatusNormalClosure)
	c.wg.Wait()
	return nil
}

// end makes the connection of no more use, wakes Receive, and says goodbye to the
// peer. Closing the socket at once could destroy what is still on its way.
func (c *conn) end(cause error, status websocket.StatusCode) {
	c.endOnce.Do(func() {
		c.cause = cause
		close(c.done)
		c.wg.Go(func() {
			// When ctx ends the reader, or it has ended already, the socket is closed
			// and nothing can block any more.
			guard := time.AfterFunc(linger, c.cancel)
			defer guard.Stop()
			defer c.cancel()
			_ = c.ws.Close(status, "") // the connection is over, whatever the peer thinks of it
		})
	})
}

// abort ends the connection without a word.
func (c *conn) abort(cause error) {
	c.endOnce.Do(func() {
		c.cause = cause
		close(c.done)
	})
	c.cancel()
	_ = c.ws.CloseNow() // it is over, whatever that says
}

// closedError says why the connection is over.
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
