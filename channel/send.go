package channel

import (
	"context"
	"sync"
	"time"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/transport"
)

// outbox is what a channel has to send: queue holds the envelopes numbered acked+1 to sent.
type outbox struct {
	queue       []outgoing
	acked       uint64 // the last envelope that the peer has handled
	sent        uint64 // the last number assigned
	wire        uint64 // the last envelope that was given to the present connection
	delivered   uint64 // the last envelope that has arrived at the peer
	bytes       int    // of queue, approximately
	window      int    // of the peer
	windowBytes int
	flushing    bool // a goroutine sends
	ackDue      bool
	ackedOut    uint64 // what the peer was last sent about the other direction
	receivedOut uint64
	rejected    []rejection // the latest unreadable envelopes
	life        watchdog    // ends a connection whose peer does not answer
	tested      bool        // life has asked for a probe, when heard had arrived
	heard       uint64
	probe       bool     // a probe is due: an acknowledged number again
	doubt       watchdog // ends a connection whose peer does not answer Probe
	again       bool     // Probe was called while doubt was waiting
	failed      attempts
}

// attempts counts the failed sends of what comes next, over all connections. Only those of which certainly nothing has
// left count: what may have left is sent again only if the peer says that it has not arrived.
type attempts struct {
	seq uint64 // of the first envelope, 0 for frames without envelopes
	n   int
	due time.Time // of the next attempt
}

// rejection reports to the peer that one of its envelopes could not be read.
type rejection struct {
	seq    uint64
	reason *transport.Reason
	sentOn transport.Conn
}

// maxRejections is how many are kept until the peer has received them.
const maxRejections = 64

type outgoing struct {
	e    *envelope.Envelope // nil: failed
	size int
}

// hasRoom reports whether the window has room for an envelope. An envelope larger
// than the whole window is sent alone.
func (o *outbox) hasRoom(size int) bool {
	return len(o.queue) == 0 || len(o.queue) < o.window && o.bytes+size <= o.windowBytes
}

func (o *outbox) push(e *envelope.Envelope, size int) {
	o.queue = append(o.queue, outgoing{e, size})
	o.bytes += size
	o.sent++
}

// ack drops what the peer has handled.
func (o *outbox) ack(upTo uint64) {
	n := int(upTo - o.acked)
	for i := range n {
		o.bytes -= o.queue[i].size
	}
	o.queue = append(o.queue[:0], o.queue[n:]...)
	clear(o.queue[len(o.queue) : len(o.queue)+n])
	o.acked = upTo
	if len(o.queue) == 0 && cap(o.queue) > 64 {
		o.queue = nil // an idle channel is small
	}
}

// next returns the index of the first envelope that is not on the wire.
func (o *outbox) next() int { return int(max(o.wire, o.acked) - o.acked) }

// sendable returns how many envelopes of the queue the peer's window has room for: all,
// unless the window has become smaller.
func (o *outbox) sendable() int {
	if len(o.queue) <= o.window && o.bytes <= o.windowBytes {
		return len(o.queue)
	}
	n, bytes := 0, 0
	for n < min(len(o.queue), o.window) {
		if bytes += o.queue[n].size; n > 0 && bytes > o.windowBytes {
			break
		}
		n++
	}
	return n
}

// sizeOf is an envelope's share of a window.
func sizeOf(e *envelope.Envelope) int {
	if e == nil {
		return 0
	}
	return e.Size()
}

// Limits of one batch.
const (
	maxBatch      = 256
	maxBatchBytes = 256 << 10
)

// batch is the frames of one send.
type batch struct {
	frames []transport.Frame
	data   int    // how many of them are envelopes of the queue
	last   uint64 // number of the last of these, 0 without any
	probe  bool   // one of them is a probe
}

// first returns the number of the first envelope, 0 without any.
func (b *batch) first() uint64 {
	if b.data == 0 {
		return 0
	}
	return b.last - uint64(b.data) + 1
}

var batches = sync.Pool{New: func() any { return &batch{frames: make([]transport.Frame, 0, maxBatch)} }}

// fill collects what to send next, at most limit envelopes; c.mu is held.
func (c *Channel) fill(b *batch, limit int) {
	b.frames, b.data, b.last, b.probe = b.frames[:0], 0, 0, c.out.probe
	for i := range c.out.rejected { // before what acknowledges them
		if r := &c.out.rejected[i]; r.sentOn != c.conn {
			r.sentOn = c.conn
			b.frames = append(b.frames, transport.Frame{Kind: transport.Reject, Seq: r.seq, Reason: r.reason})
		}
	}
	size, sendable := 0, c.out.sendable()
	for i := c.out.next(); i < sendable && b.data < limit && size < maxBatchBytes; i++ {
		o := c.out.queue[i]
		b.data++
		b.last = c.out.acked + uint64(i) + 1
		b.frames = append(b.frames, transport.Frame{Kind: transport.Data, Seq: b.last, Ack: c.in.handled, Envelope: o.e})
		size += o.size
	}
	if c.out.probe = false; b.probe {
		b.frames = append(b.frames, transport.Frame{Kind: transport.Data, Seq: c.out.acked, Ack: c.in.handled})
	}
	if c.out.ackDue && (len(b.frames) == 0 || c.in.received > c.out.receivedOut) {
		b.frames = append(b.frames, transport.Frame{Kind: transport.Ack, Seq: c.in.received, Ack: c.in.handled})
		c.out.receivedOut = c.in.received
	}
	if len(b.frames) > 0 {
		c.out.ackDue, c.out.ackedOut = false, c.in.handled
	}
}

// startFlush makes sure that a goroutine sends what is due; c.mu is held.
func (c *Channel) startFlush() {
	if c.out.flushing || c.status != Open || c.conn == c.dying || c.out.next() >= c.out.sendable() && !c.out.ackDue && !c.out.probe {
		return
	}
	c.out.flushing = true
	c.m.wg.Go(c.flush)
}

// flush sends until nothing is left or the connection is lost.
func (c *Channel) flush() {
	b := batches.Get().(*batch)
	defer func() {
		clear(b.frames[:cap(b.frames)])
		batches.Put(b)
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.status == Open && c.conn != c.dying {
		if delay := time.Until(c.out.failed.due); delay > 0 {
			c.mu.Unlock()
			wait.Pause(c.ctx, delay)
			c.mu.Lock()
			continue // the connection may be another one
		}
		limit := maxBatch
		if c.out.failed.n > 0 {
			limit = 1
		}
		if c.fill(b, limit); len(b.frames) == 0 {
			break
		}
		conn := c.conn
		c.mu.Unlock()
		refused := c.refused(b.frames)
		var err error
		if len(refused) == 0 {
			c.rename(b.frames)
			err = c.sendOn(conn, b.frames)
		}
		c.mu.Lock()
		switch {
		case len(refused) > 0:
			c.drop(refused)
			c.refill(b)
		case err != nil:
			c.notSent(conn, b, err)
		case c.conn == conn: // otherwise the next connection begins after what the peer has received
			c.out.failed = attempts{}
			c.out.wire = max(c.out.wire, b.last)
			c.watchLife()
		}
	}
	c.out.flushing = false
}

// refill makes the next batch contain what a batch that was not sent contained besides envelopes; c.mu is held.
func (c *Channel) refill(b *batch) {
	c.out.ackDue, c.out.probe = true, c.out.probe || b.probe
	for i := range c.out.rejected {
		c.out.rejected[i].sentOn = nil
	}
}

// refused returns the frames of a batch that the policy does not permit: it may have changed since they were queued.
func (c *Channel) refused(frames []transport.Frame) map[uint64]error {
	var refused map[uint64]error
	for i := range frames {
		f := &frames[i]
		if f.Envelope == nil {
			continue
		}
		if err := c.m.opts.Policy.PermitEnvelope(c.remote, f.Envelope); err != nil {
			if refused == nil {
				refused = make(map[uint64]error)
			}
			refused[f.Seq] = err
		}
	}
	return refused
}

// drop fails envelopes by number; c.mu is held.
func (c *Channel) drop(refused map[uint64]error) {
	for seq, why := range refused {
		if seq <= c.out.acked || seq > c.out.acked+uint64(len(c.out.queue)) {
			continue // closed meanwhile
		}
		if o := &c.out.queue[seq-c.out.acked-1]; o.e != nil {
			c.fail(o.e, c.forbidden(o.e, why))
			o.e = nil // its number stays in use
		}
	}
}

// rename gives the envelopes of a batch the sender that the peer knows.
func (c *Channel) rename(frames []transport.Frame) {
	if c.alias == c.local {
		return
	}
	for i := range frames {
		if e := frames[i].Envelope; e != nil {
			named := *e
			named.Sender = c.alias
			frames[i].Envelope = &named
		}
	}
}

func (c *Channel) sendOn(conn transport.Conn, frames []transport.Frame) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	return conn.Send(c.ctx, frames)
}

// notSent handles a failed send. What has certainly not left gets the next of its attempts later, on this connection or
// on the one that replaces it; after the last attempt its first envelope fails. c.mu is held.
func (c *Channel) notSent(conn transport.Conn, b *batch, err error) {
	code := transport.CodeOf(err)
	c.refill(b)
	if code != transport.CodeNotSent && code != transport.CodeTooLarge {
		c.expire(conn)
	}
	if !transport.NothingSent(err) {
		c.out.failed = attempts{}
		return
	}
	first := b.first()
	failed := &c.out.failed
	if failed.seq != first {
		*failed = attempts{seq: first}
	}
	failed.n++
	switch {
	case code == transport.CodeTooLarge && b.data > 1:
		return // next one by one, to find the large one
	case code != transport.CodeTooLarge && failed.n <= c.m.opts.Retries:
		failed.due = time.Now().Add(c.m.opts.RetryDelay << (failed.n - 1))
		return
	}
	n := failed.n
	*failed = attempts{}
	if first == 0 {
		c.expire(conn) // not even an acknowledgement can be sent
		return
	}
	if i := c.out.next(); i < len(c.out.queue) && first == c.out.acked+uint64(i)+1 && c.out.queue[i].e != nil {
		o := &c.out.queue[i]
		c.fail(o.e, c.errorf(CodeDeliveryFailed, err, "envelope %s could not be delivered in %d attempts", o.e.ID, n))
		o.e = nil // its number stays in use
		return
	}
	c.expire(conn) // not even its number can be given up
}

// expire ends a connection that cannot send. It counts as lost once everything that
// has arrived on it is read, which may include the peer's close. c.mu is held.
func (c *Channel) expire(conn transport.Conn) {
	if c.conn != conn {
		return
	}
	c.dying = conn
	c.m.wg.Go(func() { closeConn(conn) })
}

// watchLife checks after AckTimeout whether the peer is alive; c.mu is held.
func (c *Channel) watchLife() {
	if o := &c.out; o.wire > o.acked && !o.life.waiting && c.status == Open {
		c.watch(&o.life, c.m.opts.AckTimeout, o.delivered, c.checkLife)
	}
}

// checkLife ends the connection if nothing on the wire has arrived. If everything has arrived but is not handled
// yet, it sends a probe, which the peer must answer before the next check.
func (c *Channel) checkLife(sameConn bool, delivered uint64) {
	o := &c.out
	due := sameConn && o.wire > o.acked
	if due && (o.tested && o.heard == c.in.heard || o.wire > o.delivered && o.delivered == delivered) {
		c.lost(c.conn)
		return
	}
	if o.tested, o.heard = due, c.in.heard; due {
		o.probe = true
		c.startFlush()
	}
	c.watchLife()
}

// Probe asks the other end whether it is there, and breaks the connection unless it answers within
// [Options].ProbeTimeout, so that the channel reconnects. It does not wait for the answer. A channel that is not open, or
// has not answered yet, is left as it is.
func (c *Channel) Probe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.out
	asked := o.doubt.waiting && o.doubt.conn == c.conn && o.doubt.progress == c.in.heard
	if c.status != Open || c.conn == c.dying || asked {
		return
	}
	o.probe = true
	c.startFlush()
	if o.doubt.waiting { // what was answered says nothing of now
		o.doubt.conn, o.doubt.progress, o.again = c.conn, c.in.heard, true
		return
	}
	c.watch(&o.doubt, c.m.opts.ProbeTimeout, c.in.heard, c.endDoubt)
}

// endDoubt ends the connection if the last call of Probe is not answered. A later one than the first has the whole time, too.
func (c *Channel) endDoubt(sameConn bool, heard uint64) {
	again := c.out.again
	c.out.again = false
	if sameConn && c.in.heard == heard {
		if again {
			c.watch(&c.out.doubt, c.m.opts.ProbeTimeout, heard, c.endDoubt)
			return
		}
		c.lost(c.conn)
	}
	c.changed.Send()
}

// alive reports whether the other end of a channel that is probed lives: it answers, or ends its handshake, before ctx ends.
func (c *Channel) alive(ctx context.Context) (alive bool) {
	_ = c.wait(ctx, func() bool { // its errors mean that it does not
		unanswered := c.out.doubt.waiting && c.in.heard == c.out.doubt.progress
		doubt := c.status == Connecting || c.status == Open && (c.conn == c.dying || unanswered)
		alive = c.status == Open && !doubt
		return !doubt
	})
	return alive
}
