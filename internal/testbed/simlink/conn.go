package simlink

import (
	"context"
	"sync"
	"time"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/transport"
)

// maxQueue bounds the messages that are on their way from one end.
const maxQueue = 256

// pair is a connection. The network's lock guards it and its ends.
type pair struct {
	n    *Network
	ends [2]*conn
	lost bool // what is on its way does not arrive
}

func (p *pair) end(key identity.PublicKey) *conn {
	if p.ends[0].host.key == key {
		return p.ends[0]
	}
	return p.ends[1]
}

func (p *pair) between(a, b identity.PublicKey) bool {
	x, y := p.ends[0].host.key, p.ends[1].host.key
	return x == a && y == b || x == b && y == a
}

// conn is one end of a connection.
type conn struct {
	pair    *pair
	host    *Host
	other   *conn
	codec   transport.Codec
	queue   [][]byte   // on the way from here
	changed *sync.Cond // of the network's lock
	closing bool       // this end was closed in order
	ended   bool
	done    chan struct{}          // closed with ended
	arrived chan []transport.Frame // here
	room    chan struct{}          // of capacity 1: the queue has become shorter
}

// finish ends this end. The network's lock is held.
func (c *conn) finish() {
	if c.ended {
		return
	}
	c.ended = true
	close(c.done)
	if c.other.ended {
		delete(c.pair.n.conns, c.pair)
	}
	c.changed.Signal()
	c.other.changed.Signal()
}

// Peer implements [transport.Conn].
func (c *conn) Peer() string { return c.other.host.key.String() }

// Close implements [transport.Conn].
func (c *conn) Close() error {
	c.pair.n.locked(func() {
		c.closing = true
		c.finish()
	})
	return nil
}

// Send implements [transport.Conn].
func (c *conn) Send(ctx context.Context, frames []transport.Frame) error {
	data, ends, err := c.codec.AppendMessages(nil, frames, c.codec.MaxMessage())
	if err != nil {
		return err
	}
	begin := 0
	for _, end := range ends {
		if err := c.put(ctx, data[begin:end]); err != nil {
			if begin == 0 && ctx.Err() == nil {
				return &transport.Unsent{Err: err}
			}
			return err
		}
		begin = end
	}
	return nil
}

// put queues a message. It blocks while too many are queued.
func (c *conn) put(ctx context.Context, message []byte) error {
	for {
		queued, err := c.offer(message)
		if queued || err != nil {
			return err
		}
		select {
		case <-c.room:
		case <-c.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *conn) offer(message []byte) (bool, error) {
	n := c.pair.n
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case c.ended:
		return false, transport.ErrClosed("the connection", nil)
	case len(c.queue) >= maxQueue:
		return false, nil
	}
	c.queue = append(c.queue, message)
	c.changed.Signal()
	return true, nil
}

// Receive implements [transport.Conn].
func (c *conn) Receive(ctx context.Context) ([]transport.Frame, error) {
	select {
	case frames := <-c.arrived:
		return frames, nil
	case <-c.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case frames := <-c.arrived:
		return frames, nil
	default:
		return nil, transport.ErrClosed("the connection", nil)
	}
}

// carry delivers what is sent here at the other end, in order, until the connection ends.
func (c *conn) carry() {
	n, to := c.pair.n, c.other
	for {
		message, latency, ok := c.next()
		if !ok {
			break
		}
		time.Sleep(latency)
		frames, err := c.codec.Decode(nil, message)
		arrives, last := c.arrives()
		if err == nil && arrives {
			select {
			case to.arrived <- frames:
			case <-to.done:
			}
		}
		if err != nil || last {
			n.locked(c.pair.breaks)
			return
		}
	}
	n.locked(func() {
		if !c.pair.lost {
			to.finish()
		}
	})
}

// breaks ends both ends at once. The network's lock is held.
func (p *pair) breaks() {
	p.lost = true
	p.ends[0].finish()
	p.ends[1].finish()
}

// next waits for the next message, which it takes from the queue.
func (c *conn) next() (message []byte, latency time.Duration, ok bool) {
	n := c.pair.n
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		w := n.way(c.host.key, c.other.host.key)
		switch {
		case c.pair.lost || c.other.ended, c.ended && len(c.queue) == 0:
			return nil, 0, false
		case len(c.queue) > 0 && !w.held:
			message, c.queue = c.queue[0], c.queue[1:]
			wait.Nudge(c.room)
			return message, n.latency(maxLatency), true
		}
		c.changed.Wait()
	}
}

// arrives counts a message, and reports whether it arrives, and whether it is the last of the connection.
func (c *conn) arrives() (arrives, last bool) {
	n := c.pair.n
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.way(c.host.key, c.other.host.key)
	if w.breakAt > 0 {
		w.breakAt--
		last = w.breakAt == 0
	}
	return !c.pair.lost && !(last && w.lose), last
}
