package sealed

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/transport"
)

const (
	maxBuffer = 2 << 20     // capacity of a buffer that is kept for reuse
	linger    = time.Second // how long Close waits for data in flight
)

// Conn is one connection, a [transport.Conn]. Create it with [Greet]. It owns one goroutine, which reads;
// Close waits for it.
type Conn struct {
	s       *secretstream.Conn
	codec   *transport.Codec
	maxSend int // the largest message that the peer accepts, in bytes
	wg      sync.WaitGroup

	once  sync.Once
	done  chan struct{} // closed when the connection has ended
	cause error         // the reason; set before done is closed

	inbox *transport.Inbox
}

// newConn returns a connection that owns s.
func newConn(s *secretstream.Conn, codec *transport.Codec, maxSend int) *Conn {
	c := &Conn{s: s, codec: codec, maxSend: maxSend, done: make(chan struct{})}
	c.inbox = transport.NewInbox(c.done, c.closedError)
	c.wg.Go(c.read)
	return c
}

// Peer implements [transport.Conn]. It is the key that the peer has proved, in hexadecimal.
func (c *Conn) Peer() string { return c.s.RemoteKey().String() }

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// Send implements [transport.Conn]. It writes nothing unless all frames fit.
func (c *Conn) Send(ctx context.Context, frames []transport.Frame) error {
	select {
	case <-c.done:
		return &transport.Unsent{Err: c.closedError()}
	default:
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	b := buffers.Get().(*[]byte)
	defer func() {
		if cap(*b) <= maxBuffer {
			buffers.Put(b)
		}
	}()
	data, ends, err := c.codec.AppendMessages((*b)[:0], frames, c.maxSend)
	*b = data
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { c.abort(ctx.Err()) })()
	begin := 0
	for _, end := range ends {
		if err := c.s.WriteMessage(data[begin:end]); err != nil {
			c.abort(err)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case begin == 0 && errors.Is(err, secretstream.ErrNothingWritten):
				return &transport.Unsent{Err: c.closedError()}
			}
			return c.closedError()
		}
		begin = end
	}
	return nil
}

// Receive implements [transport.Conn]. The end of ctx does not end the connection.
func (c *Conn) Receive(ctx context.Context) ([]transport.Frame, error) { return c.inbox.Receive(ctx) }

// read decodes messages until the connection ends.
func (c *Conn) read() {
	defer c.inbox.End()
	for {
		m, err := c.s.ReadMessage()
		if err != nil {
			c.end(err)
			return
		}
		frames, err := c.codec.Decode(c.inbox.Spare(), m)
		if err != nil {
			c.abort(err)
			return
		}
		if len(frames) > 0 && !c.inbox.Put(frames) {
			return
		}
	}
}

// Close implements [transport.Conn]. It waits until the peer has received what was sent before, for a
// second at most.
func (c *Conn) Close() error {
	c.end(nil)
	c.wg.Wait()
	select {
	case <-c.s.Ended():
	case <-time.After(linger):
	}
	return nil
}

// finish marks the connection as ended, once.
func (c *Conn) finish(cause error) {
	c.once.Do(func() {
		c.cause = cause
		close(c.done)
	})
}

// end ends the connection after the data in flight.
func (c *Conn) end(cause error) {
	c.finish(cause)
	_ = c.s.Close() // the connection is over in any case
}

// Abort ends the connection at once, without the data in flight, and waits for its goroutine.
func (c *Conn) Abort() {
	c.abort(nil)
	c.wg.Wait()
}

func (c *Conn) abort(cause error) {
	c.finish(cause)
	c.s.Destroy()
}

// closedError returns the error for the use of an ended connection.
func (c *Conn) closedError() error {
	switch {
	case transport.CodeOf(c.cause) != "":
		return c.cause
	case errors.Is(c.cause, io.EOF):
		return transport.ErrClosed("the connection", errors.New("the peer closed it"))
	}
	return transport.ErrClosed("the connection", c.cause)
}
