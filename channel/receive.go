package channel

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
)

// inbox is what has arrived: queue holds the envelopes numbered handled+1 to
// received, the one being handled included.
type inbox struct {
	queue       []incoming
	received    uint64 // everything up to here has arrived
	handled     uint64
	bytes       int                 // of queue and ahead
	broken      int                 // times that the peer broke the rules since there was progress
	ahead       map[uint64]incoming // arrived before its turn
	dispatching bool                // a goroutine hands envelopes to the handlers
	ackTimer    *time.Timer
	ackWaiting  bool
	gapTimer    *time.Timer
	gapWaiting  bool
	gapAt       uint64
	gapConn     transport.Conn
}

// incoming is an envelope that arrived; e is nil if the sender has given it up or
// it is not for the handlers, and bad says why.
type incoming struct {
	e   *envelope.Envelope
	bad *telemetry.Event
}

// read takes what arrives over conn until it breaks. first has arrived already.
func (c *Channel) read(conn transport.Conn, first []transport.Frame) {
	frames := first
	for {
		if err := c.arrived(conn, frames); err != nil {
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

// arrived deals with frames. An error means that the connection is done with: a
// peer that breaks the rules gets another one, but not for ever.
func (c *Channel) arrived(conn transport.Conn, frames []transport.Frame) error {
	var reason *transport.Reason
	err := func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.conn != conn {
			return errStale
		}
		if len(frames) > 0 {
			c.out.probed = false // it lives
		}
		for i := range frames {
			f := &frames[i]
			if f.Kind == transport.Close {
				if reason = f.Reason; reason == nil {
					reason = new(transport.Reason)
				}
				c.startDispatch() // what came before it
				return errStale
			}
			if err := c.take(f); err != nil {
				c.report(err)
				if c.in.broken++; c.in.broken <= c.m.opts.Retries {
					c.lost(conn)
					return err
				}
				// Not here: this may be the goroutine of the one that sends.
				c.m.wg.Go(c.shutting(err, &transport.Reason{Code: string(CodeInvalid), Message: shorten(err.Error())}))
				return err
			}
		}
		c.startDispatch()
		c.scheduleAck()
		c.watchGap()
		return nil
	}()
	if reason != nil {
		c.shut(c.errorf(CodeClosed, nil, "the other end closed the channel: %s", shorten(reason.Message)), nil)
	}
	return err
}

var errStale = &Error{Code: CodeClosed, Message: "this connection is done with"}

// take deals with one frame; c.mu is held.
func (c *Channel) take(f *transport.Frame) error {
	switch f.Kind {
	case transport.Open, transport.Accept, transport.Ready: // the handshake's, repeated on the way
		return nil
	case transport.Ack:
		if err := c.takeAck(f.Ack); err != nil {
			return err
		}
		if f.Seq > c.out.sent {
			return c.errorf(CodeInvalid, nil, "the peer has got envelope %d, which was never sent", f.Seq)
		}
		c.out.has = max(c.out.has, f.Seq)
		return nil
	case transport.Data:
		if err := c.takeAck(f.Ack); err != nil {
			return err
		}
		return c.takeData(f)
	case transport.Reject:
		c.takeReject(f)
		return nil
	}
	return c.errorf(CodeInvalid, nil, "a frame of kind %d came out of turn", f.Kind)
}

func (c *Channel) takeAck(upTo uint64) error {
	if upTo > c.out.sent {
		return c.errorf(CodeInvalid, nil, "the peer acknowledges envelope %d, which was never sent", upTo)
	}
	if upTo <= c.out.acked {
		return nil // late
	}
	c.out.ack(upTo)
	c.in.broken = 0
	c.out.has = max(c.out.has, upTo)
	c.startFlush() // the peer may take more now
	c.wake()
	return nil
}

func (c *Channel) takeData(f *transport.Frame) error {
	in := &c.in
	switch {
	case f.Seq <= in.received:
		c.out.ackDue = true // again: our acknowledgement may have been lost
		c.startFlush()
		return nil
	case f.Seq > in.handled+uint64(c.m.opts.Window):
		return c.errorf(CodeInvalid, nil, "envelope %d is outside of the window", f.Seq)
	}
	if _, again := in.ahead[f.Seq]; again {
		return nil
	}
	got := c.examine(f)
	// Twice, because a migration may have made them longer than they were sent.
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

// examine looks at an envelope that arrived. The number of one that is not for the
// handlers counts, so that the next ones go on.
func (c *Channel) examine(f *transport.Frame) incoming {
	switch {
	case f.Err != nil:
		c.reject(f)
		err := c.errorf(CodeInvalid, f.Err, "envelope %d of %q cannot be read", f.Seq, c.remote)
		return incoming{bad: c.errorEvent(err)}
	case f.Envelope != nil && f.Envelope.Sender != c.remote:
		return incoming{bad: c.forgery(f.Envelope)}
	}
	return incoming{e: f.Envelope}
}

// reject sends word of an envelope that cannot be read.
func (c *Channel) reject(f *transport.Frame) {
	out := &c.out
	if len(out.rejected) == maxRejections {
		out.rejected = append(out.rejected[:0], out.rejected[1:]...)
	}
	reason := &transport.Reason{Code: rejectCode(f.Err), Message: shorten(f.Err.Error())}
	out.rejected = append(out.rejected, rejection{seq: f.Seq, reason: reason})
	out.ackDue = true
	c.startFlush()
}

// takeReject gives an envelope up that the peer cannot read.
func (c *Channel) takeReject(f *transport.Frame) {
	if f.Seq <= c.out.acked || f.Seq > c.out.sent || f.Reason == nil {
		return // late, or nonsense
	}
	o := &c.out.queue[f.Seq-c.out.acked-1]
	if o.e == nil {
		return // again
	}
	cause := &Error{Code: Code(f.Reason.Code), ChannelID: c.id, Message: shorten(f.Reason.Message)}
	c.fail(o.e, c.errorf(CodeDeliveryFailed, cause, "%q cannot read envelope %s", c.remote, o.e.ID))
	o.e = nil // the number stays until it is acknowledged
}

// rejectCode returns the envelope's error's code, e.g. SCHEMA_VERSION_MISMATCH.
func rejectCode(err error) string {
	var e *envelope.Error
	if errors.As(err, &e) {
		return string(e.Code)
	}
	return string(CodeInvalid)
}

// maxReason bounds what is told of an error to the peer, in bytes.
const maxReason = 1000

func shorten(s string) string {
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "")
	}
	return s
}

// dropAhead forgets what arrived before its turn.
func (in *inbox) dropAhead() {
	for _, early := range in.ahead {
		in.bytes -= sizeOf(early.e)
	}
	clear(in.ahead)
}

func (c *Channel) enqueue(next incoming) {
	c.in.received++
	c.in.broken = 0
	c.in.queue = append(c.in.queue, next)
}

// forgery is the event of an envelope in somebody else's name.
func (c *Channel) forgery(e *envelope.Envelope) *telemetry.Event {
	event := c.event(telemetry.Security, e)
	event.Code = string(CodeWrongSender)
	event.Detail = fmt.Sprintf("an envelope of %q came over the channel of %q", e.Sender, c.remote)
	event.Timestamp = time.Now().UnixMilli()
	return &event
}

func (c *Channel) errorEvent(err error) *telemetry.Event {
	return &telemetry.Event{Type: telemetry.ErrorEvent, ChannelID: c.id, Sender: c.remote, Recipient: c.local,
		Code: string(codeOf(err)), Detail: err.Error(), Timestamp: time.Now().UnixMilli()}
}

// report tells of an error that ends a connection; c.mu is held.
func (c *Channel) report(err error) {
	event := c.errorEvent(err)
	c.tell(func() { c.m.opts.Telemetry.Emit(*event) })
}

// scheduleAck sees to it that the peer learns what has arrived and was handled,
// soon, but not for every envelope; c.mu is held.
func (c *Channel) scheduleAck() {
	in, out := &c.in, &c.out
	if in.received == out.saidHas && in.handled == out.saidAck || c.status != Open {
		return
	}
	quarter := uint64(max(c.m.opts.Window/4, 1))
	if in.received-out.saidHas >= quarter || in.handled-out.saidAck >= quarter {
		out.ackDue = true
		c.startFlush()
		return
	}
	if in.ackWaiting {
		return
	}
	in.ackWaiting = true
	if in.ackTimer == nil {
		in.ackTimer = time.AfterFunc(c.m.opts.AckDelay, c.ackNow)
		return
	}
	in.ackTimer.Reset(c.m.opts.AckDelay)
}

func (c *Channel) ackNow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in.ackWaiting = false
	if c.in.received != c.out.saidHas || c.in.handled != c.out.saidAck {
		c.out.ackDue = true
		c.startFlush()
	}
}

// watchGap looks after GapTimeout whether a missing envelope has come; c.mu is held.
func (c *Channel) watchGap() {
	in := &c.in
	if len(in.ahead) == 0 || in.gapWaiting || c.status != Open {
		return
	}
	in.gapWaiting, in.gapAt, in.gapConn = true, in.received, c.conn
	if in.gapTimer == nil {
		in.gapTimer = time.AfterFunc(c.m.opts.GapTimeout, c.lookForGap)
		return
	}
	in.gapTimer.Reset(c.m.opts.GapTimeout)
}

func (c *Channel) lookForGap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := &c.in
	in.gapWaiting = false
	conn := in.gapConn
	in.gapConn = nil
	if c.status == Open && c.conn == conn && len(in.ahead) > 0 && in.received == in.gapAt {
		c.lost(conn) // resuming brings what is missing
		return
	}
	c.watchGap()
}

// startDispatch makes sure that a goroutine hands on what has arrived; c.mu is held.
func (c *Channel) startDispatch() {
	if c.in.dispatching || len(c.in.queue) == 0 || len(c.handlers) == 0 || c.m.ctx.Err() != nil {
		return
	}
	c.in.dispatching = true
	c.m.wg.Go(c.dispatch)
}

func (c *Channel) dispatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.in.queue) > 0 && len(c.handlers) > 0 {
		first, handlers := c.in.queue[0], c.handlers
		c.mu.Unlock()
		if first.bad != nil { // told here, where a flood of them is held up
			c.m.opts.Telemetry.Emit(*first.bad)
		}
		if e := first.e; e != nil {
			c.m.opts.Telemetry.Emit(c.event(telemetry.MessageReceived, e))
			for _, h := range handlers {
				c.protect(func() { h.handle(c.m.ctx, e) })
			}
		}
		err := c.checkpoint()
		c.mu.Lock()
		if len(c.in.queue) == 0 {
			break // closed meanwhile
		}
		if err != nil {
			c.mu.Unlock()
			c.shut(err, &transport.Reason{Code: string(CodeClosed), Message: "the other end cannot go on"})
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
	c.wake()
}

// checkpoint saves that the first envelope of the queue was handled.
func (c *Channel) checkpoint() error {
	if c.m.opts.Checkpoints == nil {
		return nil
	}
	// Only this goroutine raises handled.
	if err := c.m.opts.Checkpoints.Save(c.id, c.in.handled+1); err != nil {
		return c.errorf(CodeClosed, err, "the channel closed because its checkpoint cannot be saved")
	}
	return nil
}
