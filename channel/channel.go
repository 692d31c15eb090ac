package channel

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
)

// Handler takes an envelope that arrived. One channel's handlers are called one
// after the other, so they may block: that holds up this channel and its sender,
// nobody else. A panic is caught and reported. The context ends with the manager.
type Handler func(ctx context.Context, e *envelope.Envelope)

// Channel is one end of a link between two agents. It comes from a [Manager] and
// is safe for concurrent use.
type Channel struct {
	m      *Manager
	id     string
	local  string
	remote string
	secret string
	opener bool
	ctx    context.Context // ends with the channel
	cancel context.CancelFunc

	sendMu sync.Mutex // held while a connection sends

	mu        sync.Mutex
	endpoints []agent.Endpoint // where the opener dials, first at the first; only its connecting goroutine changes them
	transport agent.Transport
	status    Status
	cause     error          // why it is closed
	conn      transport.Conn // nil while there is none
	dying     transport.Conn // it sends no more; what has arrived on it is still read
	joining   transport.Conn // the acceptor's, until the opener is ready
	peer      string         // who the transport says is there
	instance  string         // the opener's process, if that is the other end
	changed   chan struct{}  // closed at the next change; nil if nobody waits
	out       outbox
	in        inbox
	handlers  []*registered // replaced, never changed
	watchers  []*watcher    // replaced, never changed
	notes     []func()      // calls to make without the lock, in order
	telling   bool          // a goroutine makes them
	giveUp    *time.Timer   // the acceptor's, while reconnecting
	redial    time.Duration // the opener's: to wait before the next attempt
	joined    time.Time     // when the present connection came
}

type registered struct{ handle Handler }

type watcher struct{ changed func(Status) }

// ID returns the channel's unique id; both ends have the same.
func (c *Channel) ID() string { return c.id }

// LocalAgent returns the agent at this end.
func (c *Channel) LocalAgent() string { return c.local }

// RemoteAgent returns the agent at the other end.
func (c *Channel) RemoteAgent() string { return c.remote }

// Transport returns what the channel runs over.
func (c *Channel) Transport() agent.Transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.transport
}

// Status returns the present state.
func (c *Channel) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// Err returns why the channel is closed: nil while it is not and after
// [Channel.Close], an [*Error] otherwise.
func (c *Channel) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Ready blocks until the channel is open. It returns the reason if the channel
// closes instead, and ctx's error if that ends first.
func (c *Channel) Ready(ctx context.Context) error {
	return c.wait(ctx, func() (bool, error) { return c.status == Open, nil })
}

// Send sends an envelope. It returns when the channel has taken it, which may be
// long before it is handled at the other end; see [Channel.Flush]. It blocks
// while the channel is connecting and while the window is full, at most until
// ctx ends. In the state reconnecting envelopes are taken and wait.
//
// The envelope's sender must be this end's agent (CodeWrongSender). Errors are
// [*Error]s, [*envelope.Error]s for an envelope that is not valid, or ctx's.
func (c *Channel) Send(ctx context.Context, e *envelope.Envelope) error {
	if err := e.Validate(); err != nil {
		return err
	}
	if e.Sender != c.local {
		return c.errorf(CodeWrongSender, nil, "the envelope's sender is %q, this end of the channel is %q", e.Sender, c.local)
	}
	size := e.Size()
	err := c.wait(ctx, func() (bool, error) {
		if c.status == Connecting || !c.out.hasRoom(size) {
			return false, nil
		}
		c.out.push(e, size)
		c.startFlush()
		return true, nil
	})
	if err == nil {
		c.m.opts.Telemetry.Emit(c.event(telemetry.MessageSent, e))
	}
	return err
}

// Flush blocks until everything that was sent before has been handled at the
// other end.
func (c *Channel) Flush(ctx context.Context) error {
	var upTo uint64
	return c.wait(ctx, func() (bool, error) {
		if upTo == 0 {
			upTo = c.out.sent
		}
		return c.out.acked >= upTo, nil
	})
}

// wait calls ready under the lock, now and after each change, until it says yes
// or the channel is closed.
func (c *Channel) wait(ctx context.Context, ready func() (bool, error)) error {
	for {
		c.mu.Lock()
		if c.status == Closed {
			err := c.closedError()
			c.mu.Unlock()
			return err
		}
		if ok, err := ready(); ok || err != nil {
			c.mu.Unlock()
			return err
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wake lets everybody in wait look again; c.mu is held.
func (c *Channel) wake() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

func (c *Channel) closedError() error {
	if c.cause != nil {
		return c.cause
	}
	return &Error{Code: CodeClosed, ChannelID: c.id, Message: fmt.Sprintf("the channel from %q to %q is closed", c.local, c.remote)}
}

func (c *Channel) errorf(code Code, cause error, format string, args ...any) *Error {
	return &Error{Code: code, ChannelID: c.id, Message: fmt.Sprintf(format, args...), Err: cause}
}

// OnMessage adds a handler for what arrives and returns the function that
// removes it. Envelopes wait, within the window, until there is a handler; with
// several, each gets every envelope.
func (c *Channel) OnMessage(h Handler) (remove func()) {
	r := &registered{h}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers = append(slices.Clip(c.handlers), r)
	c.startDispatch()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.handlers = slices.DeleteFunc(slices.Clone(c.handlers), func(have *registered) bool { return have == r })
	}
}

// OnStatus calls f with each new state, in order, and returns the function that
// ends that. f must not block for long: later states wait for it.
func (c *Channel) OnStatus(f func(Status)) (remove func()) {
	w := &watcher{f}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchers = append(slices.Clip(c.watchers), w)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watchers = slices.DeleteFunc(slices.Clone(c.watchers), func(have *watcher) bool { return have == w })
	}
}

// Close closes the channel at both ends and releases what it holds. What was
// sent and not acknowledged is reported as failed (call [Channel.Flush] first),
// what arrived and was not yet handled is dropped. It blocks for at most a
// second, to tell the peer, and is safe to call more than once.
func (c *Channel) Close() error {
	c.shut(nil, &transport.Reason{Code: string(CodeClosed), Message: "closed by the other end"})
	return nil
}

// Suspend ends this end of the channel without a word to the other, for which
// the connection breaks, and returns what [Manager.Resume] needs to go on, in
// this process or the next. It waits for a handler that is running, at most
// until ctx ends. Nothing is reported as failed.
func (c *Channel) Suspend(ctx context.Context) (State, error) {
	var state State
	var finish func()
	err := c.wait(ctx, func() (bool, error) {
		c.handlers = nil
		if c.in.dispatching {
			return false, nil
		}
		state = c.state()
		c.out.queue = nil // not failed: it travels in the state
		finish = c.shutting(nil, nil)
		return true, nil
	})
	if err == nil {
		finish()
	}
	return state, err
}

// set changes the state; c.mu is held. It reports whether that was legal.
func (c *Channel) set(next Status) bool {
	if !c.status.CanBecome(next) {
		return false
	}
	c.status = next
	c.wake()
	event := telemetry.Event{Type: telemetry.ChannelState, ChannelID: c.id, Sender: c.local, Recipient: c.remote,
		Detail: string(next), Timestamp: time.Now().UnixMilli()}
	watchers := c.watchers
	c.tell(func() {
		c.m.opts.Telemetry.Emit(event)
		for _, w := range watchers {
			w.changed(next)
		}
	})
	return true
}

// tell has f called soon, without the lock, after those before it; c.mu is held.
func (c *Channel) tell(f func()) {
	c.notes = append(c.notes, f)
	if c.telling {
		return
	}
	c.telling = true
	c.m.wg.Go(func() {
		for {
			c.mu.Lock()
			notes := c.notes
			c.notes = nil
			c.telling = len(notes) > 0
			c.mu.Unlock()
			if len(notes) == 0 {
				return
			}
			for _, f := range notes {
				c.protect(f)
			}
		}
	})
}

// protect calls f and reports its panic.
func (c *Channel) protect(f func()) {
	defer func() {
		if p := recover(); p != nil {
			c.m.opts.Telemetry.Emit(telemetry.Event{Type: telemetry.ErrorEvent, ChannelID: c.id, Sender: c.remote, Recipient: c.local,
				Code: "PANIC", Detail: fmt.Sprintf("a handler panicked: %v\n%s", p, debug.Stack())})
		}
	}()
	f()
}

// shut closes the channel. tell, if any, is said to the peer.
func (c *Channel) shut(cause error, tell *transport.Reason) {
	c.mu.Lock()
	finish := c.shutting(cause, tell)
	c.mu.Unlock()
	finish()
}

// shutting closes the channel and returns what is left to do without the lock;
// c.mu is held.
func (c *Channel) shutting(cause error, tell *transport.Reason) (finish func()) {
	// One that never opened may be tried again, and a suspended one resumed.
	bury := !c.opener && c.status != Connecting && (tell != nil || cause != nil)
	if !c.set(Closed) {
		return func() {}
	}
	c.cause = cause
	conn := c.conn
	var last []transport.Frame // before the peer is told: what was handled did not fail
	if conn != nil {
		last = []transport.Frame{{Kind: transport.Ack, Seq: c.in.received, Ack: c.in.handled}}
	} else {
		conn = c.joining
	}
	c.conn, c.joining, c.dying = nil, nil, nil
	c.failUnacked(cause)
	if tell != nil {
		c.in.queue = nil // closed from here; if the peer closed, what arrived is still handled
	}
	c.in.dropAhead()
	for _, t := range []*time.Timer{c.giveUp, c.out.watch, c.in.ackTimer, c.in.gapTimer} {
		if t != nil {
			t.Stop()
		}
	}
	return func() {
		if bury {
			c.m.bury(c)
		}
		if conn != nil {
			c.leave(conn, last, tell)
		}
		c.cancel()
		c.m.forget(c)
	}
}

// leave tells the peer, after the last frames, and ends the connection.
func (c *Channel) leave(conn transport.Conn, last []transport.Frame, tell *transport.Reason) {
	if tell != nil {
		// A send that hangs must not hold up the end.
		guard := time.AfterFunc(closeTimeout, func() { closeConn(conn) })
		c.sendMu.Lock()
		ctx, cancel := context.WithTimeout(c.ctx, closeTimeout)
		_ = conn.Send(ctx, append(last, transport.Frame{Kind: transport.Close, Reason: tell})) // the peer notices the end anyway
		cancel()
		c.sendMu.Unlock()
		guard.Stop()
	}
	closeConn(conn)
}

// closeConn ends a connection that is of no more use, and with it any error of
// ending it.
func closeConn(conn transport.Conn) { _ = conn.Close() }

// failUnacked reports everything that was not acknowledged; c.mu is held.
func (c *Channel) failUnacked(cause error) {
	for _, o := range c.out.queue {
		if o.e != nil {
			c.fail(o.e, c.errorf(CodeDeliveryFailed, cause, "the channel closed before envelope %s was acknowledged", o.e.ID))
		}
	}
	c.out.queue, c.out.bytes = nil, 0
}

// fail reports that an envelope was given up; c.mu is held.
func (c *Channel) fail(e *envelope.Envelope, err *Error) {
	event := c.event(telemetry.DeliveryFailure, e)
	event.Code, event.Detail, event.Timestamp = string(err.Code), err.Error(), time.Now().UnixMilli()
	c.tell(func() {
		c.m.opts.Telemetry.Emit(event)
		c.m.opts.OnDeliveryFailure(c, e, err)
	})
}

func (c *Channel) event(t telemetry.EventType, e *envelope.Envelope) telemetry.Event {
	event := telemetry.Of(t, e)
	event.ChannelID = c.id
	return event
}
