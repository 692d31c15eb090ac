// Package channel links two agents: a [Channel] delivers envelopes both ways, in order and each once, over any
// transport. A [Manager] opens, accepts and closes channels:
//
//	m := channel.NewManager(channel.Options{Dialers: dialers}, nil)
//	c, err := m.OpenAt(ctx, "mars", "venus", endpoint)
//	c.OnMessage(func(ctx context.Context, e *envelope.Envelope) { fmt.Println(e.Sender) })
//	err = c.Send(ctx, e)
//
// # Delivery
//
// Envelopes are numbered. The receiver passes them to the handlers one after the other and acknowledges those that
// were handled; the sender keeps the unacknowledged ones. When the connection breaks, the channel is [Reconnecting]:
// the end that opened it connects again, both ends exchange what they have received, and the rest is sent again. So
// a broken connection loses, repeats or reorders nothing.
//
// The memory of a process ends with it. An end that restarts keeps these guarantees if its state is stored:
// [Options.Checkpoints] at the end that receives, [Channel.State] and [Manager.Resume] at the end that opened the
// channel. Without checkpoints a receiver that crashes may receive again what it handled but did not acknowledge.
//
// An envelope that the receiver cannot read (too large, or of another schema version)
// is rejected: its sender gets a delivery failure, and the next ones are delivered.
//
// # Policy
//
// Options.Policy decides whether a channel may be opened, at both ends, and about each envelope: when it is queued,
// when it is put on a connection, and when it has arrived, before a handler receives it.
//
// # Peers
//
// Options.Authorize decides which peer may speak for an agent. If two processes are the same peer to the transport,
// because they share a token, the first that speaks for an agent keeps it while it is connected, and the second is
// refused. Once the first's connections are broken, or it does not answer, the second replaces it.
//
// # Bounds
//
// At most Options.Window envelopes and Options.WindowBytes bytes, or less if the receiver says so, may be sent and
// not yet handled; then Send blocks. So a slow handler delays its own sender only. A receiver drops the connection
// of a sender that exceeds the window.
package channel

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
)

// Status is the state of a channel.
type Status string

// The four states.
const (
	Connecting   Status = "connecting"   // not yet acknowledged by both ends
	Open         Status = "open"         // envelopes are exchanged
	Reconnecting Status = "reconnecting" // the connection broke; envelopes are queued
	Closed       Status = "closed"       // for good
)

// CanBecome reports whether a channel in state s may change to next: a channel opens when both ends have
// acknowledged it, an open one may break and open again, and any but a closed one may close.
func (s Status) CanBecome(next Status) bool {
	switch next {
	case Open:
		return s == Connecting || s == Reconnecting
	case Reconnecting:
		return s == Open
	case Closed:
		return s == Connecting || s == Open || s == Reconnecting
	}
	return false
}

// Handler handles a received envelope. A channel calls its handlers one after the other, so they may block: that
// delays this channel and its sender only. A panic is recovered and reported. The context ends with the manager.
type Handler func(ctx context.Context, e *envelope.Envelope)

// Channel is one end of a link between two agents, made by a [Manager]. It is safe for concurrent use.
type Channel struct {
	m      *Manager
	id     string
	local  string
	remote string
	alias  string // the local agent's id at the other end
	secret string
	opener bool
	own    bool            // the other end is in this process
	ctx    context.Context // ends with the channel
	cancel context.CancelFunc

	sendMu sync.Mutex // held while a connection sends

	mu        sync.Mutex
	endpoints []agent.Endpoint // that the opener dials, in this order; only its connecting goroutine changes them
	transport agent.Transport
	status    Status
	cause     error          // why it is closed
	conn      transport.Conn // nil while there is none
	dying     transport.Conn // a connection that only receives what has already arrived
	joining   transport.Conn // the acceptor's, until the handshake ends
	fresh     bool           // the acceptor's, until its first handshake ends: nobody knows it yet
	peer      string         // the other end as authenticated by the transport
	instance  string         // identifies the opener's process
	outlived  bool           // that process has ended, says the next one
	changed   wait.Signal
	out       outbox
	in        inbox
	handlers  []*Handler      // replaced, never changed
	claims    []*claim        // replaced, never changed
	watchers  []*func(Status) // replaced, never changed
	pending   []func()        // calls to make without the lock, in order
	notifying bool            // a goroutine makes them
	giveUp    *time.Timer     // the acceptor's, while reconnecting
	redial    time.Duration   // the opener's delay before the next attempt
	joined    time.Time       // when the present connection was opened
}

// ID returns the channel's unique id; both ends have the same.
func (c *Channel) ID() string { return c.id }

// LocalAgent returns the agent at this end.
func (c *Channel) LocalAgent() string { return c.local }

// RemoteAgent returns the agent at the other end.
func (c *Channel) RemoteAgent() string { return c.remote }

// Own reports whether the agent at the other end is of this process; see [Options].Local.
func (c *Channel) Own() bool { return c.own }

// Transport returns the transport of the present or latest connection.
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

// Done returns a channel that is closed when the channel has closed for good.
func (c *Channel) Done() <-chan struct{} { return c.ctx.Done() }

// Err returns why the channel closed, an [*Error]; nil before that and after [Channel.Close].
func (c *Channel) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Ready blocks until the channel is open. It returns the reason if the channel
// closes instead, and ctx's error if that ends first.
func (c *Channel) Ready(ctx context.Context) error {
	return c.wait(ctx, func() bool { return c.status == Open })
}

// Send queues an envelope for the other end and returns before it is handled there;
// see [Channel.Flush]. It blocks while the channel is connecting or its window is
// full, at most until ctx ends. While it is reconnecting, envelopes are queued.
//
// The envelope's sender must be this end's agent (CodeWrongSender). Errors are
// [*Error]s, [*envelope.Error]s for an envelope that is not valid, or ctx's. A refusal by
// Options.Policy is an [*Error] with the code of the policy's error, which is its cause.
func (c *Channel) Send(ctx context.Context, e *envelope.Envelope) error { return c.send(ctx, e, false) }

// send is Send; what is counted already gives no event.
func (c *Channel) send(ctx context.Context, e *envelope.Envelope, counted bool) error {
	if err := e.Validate(); err != nil {
		return err
	}
	if e.Sender != c.local {
		return c.errorf(CodeWrongSender, nil, "the envelope's sender is %q, this end of the channel is %q", e.Sender, c.local)
	}
	if err := c.m.opts.Policy.PermitEnvelope(c.remote, e); err != nil {
		return c.forbidden(e, err)
	}
	size := e.Size()
	err := c.wait(ctx, func() bool {
		if c.status == Connecting || !c.out.hasRoom(size) {
			return false
		}
		c.out.push(e, size)
		c.startFlush()
		return true
	})
	if err == nil && !counted {
		c.m.opts.Telemetry.Emit(c.event(telemetry.MessageSent, e))
	}
	return err
}

// forbidden returns the error for an envelope that the policy refuses.
func (c *Channel) forbidden(e *envelope.Envelope, why error) *Error {
	code := cmp.Or(Code(fault.TextOf(why)), CodeRefused)
	return c.errorf(code, why, "envelope %s may not go from %q to %q", e.ID, c.local, c.remote)
}

// Flush blocks until everything that was sent before has been handled at the other end.
func (c *Channel) Flush(ctx context.Context) error {
	var upTo uint64
	return c.wait(ctx, func() bool {
		if upTo == 0 {
			upTo = c.out.sent
		}
		return c.out.acked >= upTo
	})
}

// wait calls ready under the lock, now and after each change, until it returns true or the channel closes.
func (c *Channel) wait(ctx context.Context, ready func() bool) error {
	for {
		c.mu.Lock()
		if c.status == Closed {
			err := c.closedError()
			c.mu.Unlock()
			return err
		}
		if ready() {
			c.mu.Unlock()
			return nil
		}
		changed := c.changed.Wait()
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *Channel) closedError() error {
	if c.cause != nil {
		return c.cause
	}
	return &Error{Code: CodeClosed, Subject: c.id, Message: fmt.Sprintf("the channel from %q to %q is closed", c.local, c.remote)}
}

func (c *Channel) errorf(code Code, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Subject: c.id, Message: fmt.Sprintf(format, args...), Err: cause}
}

// OnMessage adds a handler for received envelopes and returns the function that removes it. Envelopes are queued,
// within the window, until there is a handler. With several handlers, each gets every envelope that none claims. A
// nil handler is an error event, and nothing is added.
func (c *Channel) OnMessage(h Handler) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h == nil {
		return c.noHandler()
	}
	remove = add(c, &c.handlers, h)
	c.startDispatch()
	return remove
}

// Claim is OnMessage for a handler to which alone go the envelopes that it wants, such as those for a replica of a
// document. Of several claims the oldest gets the envelope. wants is called for each received envelope; it must be
// quick and must not use the channel.
func (c *Channel) Claim(wants func(*envelope.Envelope) bool, h Handler) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wants == nil || h == nil {
		return c.noHandler()
	}
	remove = add(c, &c.claims, claim{wants, h})
	c.startDispatch()
	return remove
}

// claim is a handler to which alone go the envelopes that it wants.
type claim struct {
	wants  func(*envelope.Envelope) bool
	handle Handler
}

// noHandler reports a nil handler; c.mu is held.
func (c *Channel) noHandler() (remove func()) {
	c.report(c.errorf(CodeInvalid, nil, "a handler of the channel from %q to %q is nil", c.local, c.remote))
	return func() {}
}

// add adds v to a list of c and returns the function that removes it; c.mu is held.
func add[T any](c *Channel, list *[]*T, v T) (remove func()) {
	*list = append(slices.Clip(*list), &v)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		*list = slices.DeleteFunc(slices.Clone(*list), func(have *T) bool { return have == &v })
	}
}

// OnStatus calls f with each new state, in order, and returns the function that
// stops that. f must not block for long: it delays later states.
func (c *Channel) OnStatus(f func(Status)) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f == nil {
		return c.noHandler()
	}
	return add(c, &c.watchers, f)
}

// Close closes the channel at both ends. Envelopes that were sent but not acknowledged are reported as failed (call
// [Channel.Flush] first); received ones that were not yet handled are dropped. It blocks for at most a second, to
// notify the peer, and is safe to call more than once.
func (c *Channel) Close() error {
	c.shut(nil, &transport.Reason{Code: string(CodeClosed), Message: "closed by the other end"})
	return nil
}

// Suspend ends this end of the channel without notifying the peer, which sees a broken connection, and returns the
// state that [Manager.Resume] needs to continue, in this process or the next. It waits for a running handler, at
// most until ctx ends. No envelope is reported as failed.
func (c *Channel) Suspend(ctx context.Context) (State, error) {
	var state State
	var finish func()
	err := c.wait(ctx, func() bool {
		c.handlers, c.claims = nil, nil
		if c.in.dispatching {
			return false
		}
		state = c.state()
		c.out.queue = nil // not failed: the state has it
		finish = c.shutting(nil, nil)
		return true
	})
	if err == nil {
		finish()
	}
	return state, err
}

// set changes the state and reports whether that was legal; c.mu is held.
func (c *Channel) set(next Status) bool {
	if !c.status.CanBecome(next) {
		return false
	}
	c.status = next
	c.changed.Send()
	event := telemetry.Event{Type: telemetry.ChannelState, ChannelID: c.id, Sender: c.local, Recipient: c.remote,
		Detail: string(next), Timestamp: time.Now().UnixMilli()}
	watchers := c.watchers
	c.notify(func() {
		c.m.opts.Telemetry.Emit(event)
		for _, w := range watchers {
			c.protect(func() { (*w)(next) })
		}
	})
	return true
}

// notify has f called soon, without the lock and in order; c.mu is held.
func (c *Channel) notify(f func()) {
	c.pending = append(c.pending, f)
	if c.notifying {
		return
	}
	c.notifying = true
	c.m.wg.Go(func() {
		for {
			c.mu.Lock()
			calls := c.pending
			c.pending = nil
			c.notifying = len(calls) > 0
			c.mu.Unlock()
			if len(calls) == 0 {
				return
			}
			for _, f := range calls {
				c.protect(f)
			}
		}
	})
}

// protect calls f and reports its panic.
func (c *Channel) protect(f func()) {
	if p := fault.Catch(f); p != nil {
		event := telemetry.Panicked("a handler of the channel", p)
		event.ChannelID, event.Sender, event.Recipient = c.id, c.remote, c.local
		c.m.opts.Telemetry.Emit(event)
	}
}

// shut closes the channel. The peer gets the reason, if there is one.
func (c *Channel) shut(cause error, reason *transport.Reason) {
	c.mu.Lock()
	finish := c.shutting(cause, reason)
	c.mu.Unlock()
	finish()
}

// shutting closes the channel and returns the rest of the work, to be done without the lock; c.mu is held.
func (c *Channel) shutting(cause error, reason *transport.Reason) (finish func()) {
	// A channel that never opened may be tried again, and a suspended one resumed.
	entomb := !c.opener && c.status != Connecting && (reason != nil || cause != nil)
	if !c.set(Closed) {
		return func() {}
	}
	c.cause = cause
	conn := c.conn
	var last []transport.Frame // acknowledges what was handled, before the close
	if conn != nil {
		last = []transport.Frame{{Kind: transport.Ack, Seq: c.in.received, Ack: c.in.handled}}
	} else {
		conn = c.joining
	}
	c.conn, c.joining, c.dying = nil, nil, nil
	c.failUnacked(cause)
	if reason != nil {
		c.in.queue = nil // closed here; if the peer closed, what arrived is still handled
	}
	c.in.dropAhead()
	for _, t := range []*time.Timer{c.giveUp, c.out.life.timer, c.out.doubt.timer, c.in.ack.timer, c.in.gap.timer} {
		if t != nil {
			t.Stop()
		}
	}
	return func() {
		if entomb {
			c.m.addTombstone(c)
		}
		if conn != nil {
			c.sendClose(conn, last, reason)
		}
		c.cancel()
		c.m.forget(c)
	}
}

// sendClose sends the last frames and, if there is a reason, the close; then it ends the connection.
func (c *Channel) sendClose(conn transport.Conn, last []transport.Frame, reason *transport.Reason) {
	if reason != nil {
		// A send that hangs must not delay the end.
		guard := time.AfterFunc(closeTimeout, func() { closeConn(conn) })
		c.sendMu.Lock()
		ctx, cancel := context.WithTimeout(c.ctx, closeTimeout)
		_ = conn.Send(ctx, append(last, transport.Frame{Kind: transport.Close, Reason: reason})) // the peer notices the end anyway
		cancel()
		c.sendMu.Unlock()
		guard.Stop()
	}
	closeConn(conn)
}

// closeConn ends a connection and ignores the error: it is of no more use.
func closeConn(conn transport.Conn) { _ = conn.Close() }

// failUnacked reports every unacknowledged envelope as failed; c.mu is held.
func (c *Channel) failUnacked(cause error) {
	for _, o := range c.out.queue {
		if o.e != nil {
			c.fail(o.e, c.errorf(CodeDeliveryFailed, cause, "the channel closed before envelope %s was acknowledged", o.e.ID))
		}
	}
	c.out.queue, c.out.bytes = nil, 0
}

// fail reports an envelope as failed; c.mu is held.
func (c *Channel) fail(e *envelope.Envelope, err *Error) {
	event := c.event(telemetry.DeliveryFailure, e)
	event.Code, event.Detail, event.Timestamp = string(err.Code), err.Error(), time.Now().UnixMilli()
	c.notify(func() {
		c.m.opts.Telemetry.Emit(event)
		c.m.opts.OnDeliveryFailure(c, e, err)
	})
}

func (c *Channel) event(t telemetry.EventType, e *envelope.Envelope) telemetry.Event {
	event := telemetry.Of(t, e)
	event.ChannelID = c.id
	return event
}
