// Package memory connects agents of one process. Envelopes are passed by reference, without copying or encoding.
package memory

import (
	"context"
	"sync"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/transport"
)

// Network is a set of in-memory addresses and a [transport.Dialer]. The zero value is ready to use. It is
// safe for concurrent use.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*listener
}

// size is how many connections wait for Accept before Dial blocks.
const size = 64

// Listen accepts connections at an address, which may be any text not in use.
func (n *Network) Listen(address string) (transport.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[address] != nil {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "the memory address " + address + " is in use"}
	}
	if n.listeners == nil {
		n.listeners = make(map[string]*listener)
	}
	l := &listener{n: n, address: address}
	l.Backlog = wait.NewBacklog(context.Background(), size, func(c transport.Conn) { c.(*conn).close() }, closed)
	n.listeners[address] = l
	return l, nil
}

// Dial connects to an address of the network. The endpoint's transport must be local.
func (n *Network) Dial(ctx context.Context, to agent.Endpoint) (transport.Conn, error) {
	if to.Transport != agent.TransportLocal {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "the memory transport cannot dial " + string(to.Transport)}
	}
	n.mu.Lock()
	l := n.listeners[to.Address]
	n.mu.Unlock()
	if l == nil {
		return nil, unreachable(to.Address)
	}
	here, there := Pipe()
	switch {
	case l.Put(ctx, there):
		return here, nil
	case l.Context().Err() != nil:
		return nil, unreachable(to.Address)
	}
	return nil, ctx.Err()
}

func closed() error { return transport.ErrClosed("the listener", nil) }

func unreachable(address string) *transport.Error {
	return &transport.Error{Code: transport.CodeUnreachable, Message: "there is no listener at the memory address " + address}
}

type listener struct {
	*wait.Backlog[transport.Conn]
	n       *Network
	address string
}

func (l *listener) Endpoint() agent.Endpoint {
	return agent.Endpoint{Transport: agent.TransportLocal, Address: l.address}
}

func (l *listener) Close() error {
	l.n.mu.Lock()
	if l.n.listeners[l.address] == l {
		delete(l.n.listeners, l.address)
	}
	l.n.mu.Unlock()
	l.Backlog.Close()
	return nil
}

// Pipe returns the two ends of a connection, without a listener.
func Pipe() (transport.Conn, transport.Conn) {
	link := &link{done: make(chan struct{})}
	for i := range link.ways {
		link.ways[i].wake = make(chan struct{}, 1)
		link.ways[i].room = make(chan struct{}, 1)
	}
	a, b := &link.ends[0], &link.ends[1]
	*a = conn{link: link, out: &link.ways[0], in: &link.ways[1]}
	*b = conn{link: link, out: &link.ways[1], in: &link.ways[0]}
	return a, b
}

// link holds both ends of a connection in one allocation.
type link struct {
	once sync.Once
	done chan struct{}
	ways [2]way
	ends [2]conn
}

// maxQueue bounds the frames queued in one direction.
const maxQueue = 4096

// maxSpare bounds the capacity of a batch that is kept for reuse.
const maxSpare = 512

// way is one direction of a link.
type way struct {
	mu      sync.Mutex
	queue   []transport.Frame
	spare   []transport.Frame // the receiver's last batch, for reuse
	wake    chan struct{}     // frames were queued
	room    chan struct{}     // the queue was emptied
	push    func([]transport.Frame, error)
	pushing bool // a goroutine is calling push
	ended   bool
}

type conn struct {
	link    *link
	out, in *way
}

func (c *conn) Send(ctx context.Context, frames []transport.Frame) error {
	for {
		select {
		case <-c.link.done:
			return &transport.Unsent{Err: transport.ErrClosed("the connection", nil)}
		default:
		}
		if c.out.put(frames) {
			return nil
		}
		select {
		case <-c.out.room:
		case <-c.link.done:
			return &transport.Unsent{Err: transport.ErrClosed("the connection", nil)}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *way) put(frames []transport.Frame) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) > 0 && len(w.queue)+len(frames) > maxQueue {
		return false
	}
	w.queue = append(w.queue, frames...)
	wait.Nudge(w.wake)
	w.pump()
	return true
}

// pump passes the queued frames to push; w.mu is held, and released during the calls.
func (w *way) pump() {
	if w.push == nil || w.pushing {
		return
	}
	w.pushing = true
	defer func() { w.pushing = false }()
	for len(w.queue) > 0 {
		frames := w.swap()
		w.mu.Unlock()
		w.push(frames, nil)
		w.mu.Lock()
	}
	if w.ended {
		push := w.push
		w.push = nil
		w.mu.Unlock()
		push(nil, transport.ErrClosed("the connection", nil))
		w.mu.Lock()
	}
}

// Push makes the connection a [transport.Pusher].
func (c *conn) Push(f func([]transport.Frame, error)) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.push = f
	c.in.pump()
}

func (c *conn) Receive(ctx context.Context) ([]transport.Frame, error) {
	for {
		if frames := c.in.take(); len(frames) > 0 {
			return frames, nil
		}
		select {
		case <-c.in.wake:
		case <-c.link.done:
			if frames := c.in.take(); len(frames) > 0 { // sent before the end
				return frames, nil
			}
			return nil, transport.ErrClosed("the connection", nil)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take empties the queue.
func (w *way) take() []transport.Frame {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return nil
	}
	return w.swap()
}

// swap empties the queue and reuses the former batch as the queue; w.mu is held.
func (w *way) swap() []transport.Frame {
	frames := w.queue
	clear(w.spare)
	w.queue, w.spare = w.spare[:0], frames
	if cap(frames) > maxSpare {
		w.spare = nil // free the memory of a burst
	}
	wait.Nudge(w.room)
	return frames
}

func (c *conn) Peer() string { return "" }

func (c *conn) Close() error {
	c.close()
	return nil
}

func (c *conn) close() {
	first := false
	c.link.once.Do(func() {
		close(c.link.done)
		first = true
	})
	if !first {
		return
	}
	for i := range c.link.ways { // outside of once: push may call Close
		w := &c.link.ways[i]
		w.mu.Lock()
		w.ended = true
		w.pump()
		w.mu.Unlock()
	}
}
