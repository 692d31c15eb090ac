package sealed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm/secretstream"
)

const (
	batchSize = 64 << 10    // bytes of a message that another frame would make larger
	maxSpare  = 512         // frames of a slice that is kept to be used again
	maxBuffer = 2 << 20     // bytes of a buffer that is kept to be used again
	linger    = time.Second // for what is on its way at the end
)

// Conn is one connection, a [transport.Conn]. Make one with [Greet]. It owns one
// goroutine, which reads; Close waits for it.
type Conn struct {
	s       *secretstream.Conn
	codec   *transport.Codec
	maxSend int // bytes of the largest message that the peer takes
	wg      sync.WaitGroup

	once  sync.Once
	done  chan struct{} // closed when the connection is of no more use
	cause error         // why; set before done is closed

	in    chan []transport.Frame // read and not yet received; closed after the last
	spare chan []transport.Frame
	lent  []transport.Frame // the caller's, of the last Receive
}

// newConn takes over s.
func newConn(s *secretstream.Conn, codec *transport.Codec, maxSend int) *Conn {
	c := &Conn{
		s: s, codec: codec, maxSend: maxSend,
		done: make(chan struct{}), in: make(chan []transport.Frame, 1), spare: make(chan []transport.Frame, 2),
	}
	c.wg.Go(c.read)
	return c
}

// Peer implements [transport.Conn]: the key that the peer has proved, in
// hexadecimal.
func (c *Conn) Peer() string { return c.s.RemoteKey().String() }

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// Send implements [transport.Conn]. Nothing is written before all frames are
// known to fit.
func (c *Conn) Send(ctx context.Context, frames []transport.Frame) error {
	select {
	case <-c.done:
		return c.closedError()
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
	data, ends, err := c.encode((*b)[:0], frames)
	*b = data
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.abort(ctx.Err()) })
	defer stop()
	begin := 0
	for _, end := range ends {
		if err := c.s.WriteMessage(data[begin:end]); err != nil {
			c.abort(err)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return c.closedError()
		}
		begin = end
	}
	return nil
}

// encode writes frames one after the other and returns where each message ends.
func (c *Conn) encode(data []byte, frames []transport.Frame) ([]byte, []int, error) {
	var ends []int
	begin, first := 0, 0 // of the present message: its first byte and frame
	for i := range frames {
		at := len(data)
		var err error
		if data, err = c.codec.Append(data, &frames[i]); err != nil {
			return data, nil, err
		}
		if size := len(data) - at; size > c.maxSend {
			return data, nil, &transport.Error{Code: transport.CodeTooLarge,
				Message: fmt.Sprintf("the frame has %d bytes; the peer takes %d", size, c.maxSend)}
		}
		if at > begin && (len(data)-begin > min(batchSize, c.maxSend) || i-first == transport.MaxFrames) {
			ends = append(ends, at)
			begin, first = at, i
		}
	}
	if len(data) > begin {
		ends = append(ends, len(data))
	}
	return data, ends, nil
}

// Receive implements [transport.Conn]. When ctx ends, the connection lives on.
func (c *Conn) Receive(ctx context.Context) ([]transport.Frame, error) {
	c.giveBack()
	select {
	case frames, ok := <-c.in:
		return c.lend(frames, ok)
	case <-c.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case frames, ok := <-c.in: // came before the end
		return c.lend(frames, ok)
	default:
		return nil, c.closedError()
	}
}

func (c *Conn) lend(frames []transport.Frame, ok bool) ([]transport.Frame, error) {
	if !ok {
		<-c.done
		return nil, c.closedError()
	}
	c.lent = frames
	return frames, nil
}

func (c *Conn) giveBack() {
	frames := c.lent
	c.lent = nil
	if cap(frames) == 0 || cap(frames) > maxSpare {
		return
	}
	clear(frames)
	select {
	case c.spare <- frames[:0]:
	default:
	}
}

// read takes messages until the connection ends.
func (c *Conn) read() {
	defer close(c.in)
	for {
		m, err := c.s.ReadMessage()
		if err != nil {
			c.end(err)
			return
		}
		var frames []transport.Frame
		select {
		case frames = <-c.spare:
		default:
		}
		if frames, err = c.codec.Decode(frames, m); err != nil {
			c.abort(err)
			return
		}
		if len(frames) == 0 {
			continue
		}
		select {
		case c.in <- frames:
		case <-c.done:
			return
		}
	}
}

// Close implements [transport.Conn]. What was sent before still arrives, if the
// peer takes it within a second; Close waits for that.
func (c *Conn) Close() error {
	c.end(nil)
	c.wg.Wait()
	t := time.NewTimer(linger)
	defer t.Stop()
	select {
	case <-c.s.Ended():
	case <-t.C:
	}
	return nil
}

// end makes the connection of no more use, but for what is on its way.
func (c *Conn) end(cause error) {
	c.once.Do(func() {
		c.cause = cause
		close(c.done)
	})
	_ = c.s.Close() // it is over, whatever that says
}

// Abort ends the connection at once, whatever is on its way, and waits for its
// goroutine.
func (c *Conn) Abort() {
	c.abort(nil)
	c.wg.Wait()
}

// abort ends the connection at once.
func (c *Conn) abort(cause error) {
	c.once.Do(func() {
		c.cause = cause
		close(c.done)
	})
	c.s.Destroy()
}

// closedError says why the connection is over.
func (c *Conn) closedError() error {
	switch {
	case transport.CodeOf(c.cause) != "":
		return c.cause
	case errors.Is(c.cause, io.EOF):
		return transport.ErrClosed("the connection", errors.New("the peer closed it"))
	}
	return transport.ErrClosed("the connection", c.cause)
}
