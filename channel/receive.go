package channel

import (
	"cmp"
	"fmt"
	"time"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
)

// inbox is what has arrived: queue holds the envelopes numbered handled+1 to
// received, including the one being handled.
type inbox struct {
	queue       []incoming
	received    uint64 // every envelope up to this number has arrived
	handled     uint64
	heard       uint64              // counts what has arrived, of any kind
	bytes       int                 // of queue and ahead
	violations  int                 // of the protocol by the peer, since the last progress
	ahead       map[uint64]incoming // arrived out of order
	dispatching bool                // a goroutine calls the handlers
	ack         watchdog            // sends a delayed acknowledgement
	gap         watchdog            // ends a connection on which an envelope is missing
}

// incoming is a received envelope; e is nil if the sender gave it up or the handlers
// must not get it, and bad is the event that reports why.
type incoming struct {
	e   *envelope.Envelope
	bad *telemetry.Event
}

// read receives from conn until it breaks. frames have arrived already.
func (c *Channel) read(conn transport.Conn, frames []transport.Frame) {
	for {
		if err := c.receive(conn, frames); err != nil {
			return
		}
		var err error
		if frames, err = conn.Receive(c.ctx); err != nil {
			c.mu.Lock()
			c.lost(conn)
			c.mu.Unlock()
			return
		}
	}
}

// receive handles frames. After an error the connection is not used any more: a peer
// that violates the protocol may reconnect, but only a few times.
func (c *Channel) receive(conn transport.Conn, frames []transport.Frame) error {
	var reason *transport.Reason
	err := func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.conn != conn {
			return errStale
		}
		if len(frames) > 0 {
			if c.in.heard++; c.out.doubt.waiting {
				c.changed.Send()
			}
		}
		for i := range frames {
			f := &frames[i]
			if f.Kind == transport.Close {
				if reason = f.Reason; reason == nil {
					reason = new(transport.Reason)
				}
				c.startDispatch() // of what preceded it
				return errStale
			}
			if err := c.receiveFrame(f); err != nil {
				c.report(err)
				if c.in.violations++; c.in.violations <= c.m.opts.Retries {
					c.lost(conn)
					return err
				}
				// In a goroutine: this may be the sender's.
				c.m.wg.Go(c.shutting(err, &transport.Reason{Code: string(CodeInvalid), Message: text.Valid(err.Error(), maxReason)}))
				return err
			}
		}
		c.startDispatch()
		c.scheduleAck()
		c.watchGap()
		return nil
	}()
	if reason != nil {
		c.shut(c.errorf(CodeClosed, nil, "the other end closed the channel: %s", text.Valid(reason.Message, maxReason)), nil)
	}
	return err
}

var errStale = &Error{Code: CodeClosed, Message: "the channel does not use this connection any more"}

// receiveFrame handles one frame; c.mu is held.
func (c *Channel) receiveFrame(f *transport.Frame) error {
	switch f.Kind {
	case transport.Open, transport.Accept, transport.Ready: // of the handshake, repeated by the network
		return nil
	case transport.Ack:
		if err := c.receiveAck(f.Ack); err != nil {
			return err
		}
		if f.Seq > c.out.sent {
			return c.errorf(CodeInvalid, nil, "the peer has received envelope %d, which was never sent", f.Seq)
		}
		c.out.delivered = max(c.out.delivered, f.Seq)
		return nil
	case transport.Data:
		if err := c.receiveAck(f.Ack); err != nil {
			return err
		}
		return c.receiveData(f)
	case transport.Reject:
		c.receiveReject(f)
		return nil
	}
	return c.errorf(CodeInvalid, nil, "a frame of kind %d is not expected here", f.Kind)
}

func (c *Channel) receiveAck(upTo uint64) error {
	if upTo > c.out.sent {
		return c.errorf(CodeInvalid, nil, "the peer acknowledges envelope %d, which was never sent", upTo)
	}
	if upTo <= c.out.acked {
		return nil // late
	}
	c.out.ack(upTo)
	c.in.violations = 0
	c.out.delivered = max(c.out.delivered, upTo)
	c.startFlush() // the peer may accept more now
	c.changed.Send()
	return nil
}

func (c *Channel) receiveData(f *transport.Frame) error {
	in := &c.in
	switch {
	case f.Seq <= in.received:
		c.out.ackDue = true // a duplicate: the acknowledgement may have been lost
		c.startFlush()
		return nil
	case f.Seq > in.handled+uint64(c.m.opts.Window):
		return c.errorf(CodeInvalid, nil, "envelope %d is outside of the window", f.Seq)
	}
	if _, again := in.ahead[f.Seq]; again {
		return nil
	}
	got := c.examine(f)
	// Twice, because a migration may have made them longer.
	if size := sizeOf(got.e); in.bytes > 0 && in.bytes+size > 2*c.m.opts.WindowBytes {
		return c.errorf(CodeInvalid, nil, "envelope %d is outside of the window of %d bytes", f.Seq, c.m.opts.WindowBytes)
	}
	in.bytes += sizeOf(got.e)
	if f.Seq > in.received+1 {
		if in.ahead == nil {
			in.ahead = make(map[uint64]incoming)
		}
		in.ahead[f.Seq] = got
		return nil
	}
	c.enqueue(got)
	for len(in.ahead) > 0 {
		next, ok := in.ahead[in.received+1]
		if !ok {
			break
		}
		delete(in.ahead, in.received+1)
		c.enqueue(next)
	}
	return nil
}

// examine checks a received envelope. A bad one keeps its number, so that those behind it are handled.
func (c *Channel) examine(f *transport.Frame) incoming {
	switch {
	case f.Err != nil:
		c.reject(f)
		err := c.errorf(CodeInvalid, f.Err, "envelope %d of %q cannot be read", f.Seq, c.remote)
		return incoming{bad: c.errorEvent(err)}
	case f.Envelope != nil && f.Envelope.Sender != c.remote:
		return incoming{bad: c.forgery(f.Envelope)}
	case f.Envelope != nil && f.Envelope.Recipient == c.alias && c.alias != c.local:
		named := *f.Envelope
		named.Recipient = c.local
		return incoming{e: &named}
	}
	return incoming{e: f.Envelope}
}

// reject reports an unreadable envelope to the peer.
func (c *Channel) reject(f *transport.Frame) {
	out := &c.out
	if len(out.rejected) == maxRejections {
		out.rejected = append(out.rejected[:0], out.rejected[1:]...)
	}
	reason := &transport.Reason{Code: rejectCode(f.Err), Message: text.Valid(f.Err.Error(), maxReason)}
	out.rejected = append(out.rejected, rejection{seq: f.Seq, reason: reason})
	out.ackDue = true
	c.startFlush()
}

// receiveReject fails an envelope that the peer cannot read.
func (c *Channel) receiveReject(f *transport.Frame) {
	if f.Seq <= c.out.acked || f.Seq > c.out.sent || f.Reason == nil {
		return // late, or invalid
	}
	o := &c.out.queue[f.Seq-c.out.acked-1]
	if o.e == nil {
		return // a duplicate
	}
	cause := &Error{Code: Code(f.Reason.Code), Subject: c.id, Message: text.Valid(f.Reason.Message, maxReason)}
	c.fail(o.e, c.errorf(CodeDeliveryFailed, cause, "%q cannot read envelope %s", c.remote, o.e.ID))
	o.e = nil // it keeps its number until it is acknowledged
}

// rejectCode returns the envelope's error's code, e.g. SCHEMA_VERSION_MISMATCH.
func rejectCode(err error) string {
	return cmp.Or(string(envelope.CodeOf(err)), string(CodeInvalid))
}

// maxReason bounds the text of an error that the peer gets, in bytes.
const maxReason = 1000

// dropAhead drops what arrived out of order.
func (in *inbox) dropAhead() {
	for _, early := range in.ahead {
		in.bytes -= sizeOf(early.e)
	}
	clear(in.ahead)
}

func (c *Channel) enqueue(next incoming) {
	c.in.received++
	c.in.violations = 0
	c.in.queue = append(c.in.queue, next)
}

// forgery is the event of an envelope with the wrong sender.
func (c *Channel) forgery(e *envelope.Envelope) *telemetry.Event {
	event := c.event(telemetry.Security, e)
	event.Code = string(CodeWrongSender)
	event.Detail = fmt.Sprintf("the channel of %q received an envelope of %q", c.remote, e.Sender)
	event.Timestamp = time.Now().UnixMilli()
	return &event
}

func (c *Channel) errorEvent(err error) *telemetry.Event {
	return &telemetry.Event{Type: telemetry.ErrorEvent, ChannelID: c.id, Sender: c.remote, Recipient: c.local,
		Code: string(CodeOf(err)), Detail: err.Error(), Timestamp: time.Now().UnixMilli()}
}

// report emits the event of an error that ends a connection; c.mu is held.
func (c *Channel) report(err error) {
	event := c.errorEvent(err)
	c.notify(func() { c.m.opts.Telemetry.Emit(*event) })
}

// scheduleAck acknowledges what has arrived and was handled: at once when a quarter of
// the window is due, otherwise after AckDelay; c.mu is held.
func (c *Channel) scheduleAck() {
	in, out := &c.in, &c.out
	if in.received == out.receivedOut && in.handled == out.ackedOut || c.status != Open {
		return
	}
	quarter := uint64(max(c.m.opts.Window/4, 1))
	if in.received-out.receivedOut >= quarter || in.handled-out.ackedOut >= quarter {
		out.ackDue = true
		c.startFlush()
		return
	}
	if !in.ack.waiting {
		c.watch(&in.ack, c.m.opts.AckDelay, 0, c.ackNow)
	}
}

func (c *Channel) ackNow(bool, uint64) {
	if c.in.received != c.out.receivedOut || c.in.handled != c.out.ackedOut {
		c.out.ackDue = true
		c.startFlush()
	}
}

// watchGap ends the connection if a missing envelope does not arrive within GapTimeout; c.mu is held.
func (c *Channel) watchGap() {
	if len(c.in.ahead) > 0 && !c.in.gap.waiting && c.status == Open {
		c.watch(&c.in.gap, c.m.opts.GapTimeout, c.in.received, c.checkGap)
	}
}

func (c *Channel) checkGap(sameConn bool, received uint64) {
	if sameConn && len(c.in.ahead) > 0 && c.in.received == received {
		c.lost(c.conn) // the next connection resends what is missing
		return
	}
	c.watchGap()
}

// watchdog checks the progress of a connection after a while. Channel.mu guards it.
type watchdog struct {
	timer    *time.Timer
	waiting  bool
	conn     transport.Conn // that was in use when it was started
	progress uint64         // when it was started
}

// watch calls check once after d, with c.mu held: with the progress that is given here and whether the channel still
// uses the same connection. The watchdog must not be waiting, and check must be the same in each call; c.mu is held.
func (c *Channel) watch(w *watchdog, d time.Duration, progress uint64, check func(sameConn bool, progress uint64)) {
	w.waiting, w.conn, w.progress = true, c.conn, progress
	if w.timer != nil {
		w.timer.Reset(d)
		return
	}
	w.timer = time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		same := c.status == Open && c.conn == w.conn
		w.waiting, w.conn = false, nil
		check(same, w.progress)
	})
}

// startDispatch makes sure that a goroutine calls the handlers; c.mu is held.
func (c *Channel) startDispatch() {
	if c.in.dispatching || len(c.in.queue) == 0 || len(c.handlers)+len(c.claims) == 0 || c.m.ctx.Err() != nil {
		return
	}
	c.in.dispatching = true
	c.m.wg.Go(c.dispatch)
}

func (c *Channel) dispatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.in.queue) > 0 && len(c.handlers)+len(c.claims) > 0 {
		first, handlers, claims := c.in.queue[0], c.handlers, c.claims
		c.mu.Unlock()
		if first.bad != nil { // reported here, so that a flood of them is slowed down
			c.m.opts.Telemetry.Emit(*first.bad)
		}
		if first.e != nil {
			c.handle(first.e, handlers, claims)
		}
		err := c.checkpoint()
		c.mu.Lock()
		if len(c.in.queue) == 0 {
			break // closed meanwhile
		}
		if err != nil {
			c.mu.Unlock()
			c.shut(err, &transport.Reason{Code: string(CodeClosed), Message: "the other end cannot continue"})
			c.mu.Lock()
			break
		}
		c.in.bytes -= sizeOf(first.e)
		c.in.queue[0] = incoming{}
		if c.in.queue = c.in.queue[1:]; len(c.in.queue) == 0 {
			c.in.queue = nil
		}
		c.in.handled++
		c.scheduleAck()
	}
	c.in.dispatching = false
	c.changed.Send()
}

// handle passes a received envelope to the handler that claims it, or to all others, if the policy permits it.
func (c *Channel) handle(e *envelope.Envelope, handlers []*Handler, claims []*claim) {
	if c.m.opts.Policy.PermitEnvelope(c.local, e) != nil {
		return // the policy has recorded it
	}
	claimed := false
	for _, x := range claims {
		c.protect(func() { claimed = x.wants(e) })
		if claimed {
			handlers = []*Handler{&x.handle}
			break
		}
	}
	if claimed || !c.m.opts.Routed {
		c.m.opts.Telemetry.Emit(c.event(telemetry.MessageReceived, e))
	}
	for _, h := range handlers {
		c.protect(func() { (*h)(c.m.ctx, e) })
	}
}

// checkpoint stores that the first envelope of the queue was handled.
func (c *Channel) checkpoint() error {
	if c.m.opts.Checkpoints == nil || c.opener && c.m.end(c.id, false) != nil { // the other end's, with the same id
		return nil
	}
	// Only this goroutine raises handled.
	if err := c.m.opts.Checkpoints.Save(c.id, c.in.handled+1); err != nil {
		return c.errorf(CodeClosed, err, "the channel closed because its checkpoint cannot be saved")
	}
	return nil
}
