package channel

import (
	"context"
	"sync"
	"time"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/transport"
)

// outbox is what a channel has to send: queue holds the envelopes numbered
// acked+1 to sent. The first of them up to wire were handed to the connection.
type outbox struct {
	queue       []outgoing
	acked       uint64 // handled by the peer, up to here
	sent        uint64 // the last number given
	wire        uint64 // handed to the present connection, up to here
	has         uint64 // arrived at the peer, up to here
	bytes       int    // about, of queue
	window      int    // what the peer takes
	windowBytes int
	flushing    bool // a goroutine sends
	ackDue      bool
	saidAck     uint64 // what the peer was last told of the other direction
	saidHas     uint64
	rejected    []rejection // what arrived here and could not be read, the latest
	watch       *time.Timer // looks whether the peer is alive
	watching    bool
	watchedHas  uint64
	watchedConn transport.Conn
	probe       bool // a question is due: anything that has arrived, said again
	probed      bool // one was asked and nothing was heard since
}

// rejection is word to the peer that one of its envelopes could not be read.
type rejection struct {
	seq    uint64
	reason *transport.Reason
	said   transport.Conn // on which it was said
}

// maxRejections is how many are kept until the peer is known to have heard them.
const maxRejections = 64

type outgoing struct {
	e    *envelope.Envelope // nil: given up
	size int
}

// hasRoom reports whether the window takes an envelope. An envelope larger than
// the whole window goes alone.
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

// sendable returns how many of the queue the peer takes at present: all, unless
// its window has become smaller.
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

// sizeOf is an envelope's part of a window.
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
	last   uint64 // number of the last of these, 0 if there is none
}

var batches = sync.Pool{New: func() any { return &batch{frames: make([]transport.Frame, 0, maxBatch)} }}

// fill takes what is to be sent next, at most limit envelopes; c.mu is held.
func (c *Channel) fill(b *batch, limit int) {
	b.frames, b.data, b.last = b.frames[:0], 0, 0
	for i := range c.out.rejected { // before what acknowledges them
		if r := &c.out.rejected[i]; r.said != c.conn {
			r.said = c.conn
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
	if c.out.probe {
		c.out.probe, c.out.probed = false, true
		b.frames = append(b.frames, transport.Frame{Kind: transport.Data, Seq: c.out.acked, Ack: c.in.handled})
	}
	if c.out.ackDue && (len(b.frames) == 0 || c.in.received > c.out.saidHas) {
		b.frames = append(b.frames, transport.Frame{Kind: transport.Ack, Seq: c.in.received, Ack: c.in.handled})
		c.out.saidHas = c.in.received
	}
	if len(b.frames) > 0 {
		c.out.ackDue, c.out.saidAck = false, c.in.handled
	}
}

// startFlush makes sure that a goroutine sends what there is; c.mu is held.
func (c *Channel) startFlush() {
	if c.out.flushing || c.status != Open || c.conn == c.dying || c.out.next() >= c.out.sendable() && !c.out.ackDue && !c.out.probe {
		return
	}
	c.out.flushing = true
	c.m.wg.Go(c.flush)
}

// flush sends until there is nothing left or the connection is gone.
func (c *Channel) flush() {
	b := batches.Get().(*batch)
	defer func() {
		clear(b.frames[:cap(b.frames)])
		batches.Put(b)
	}()
	failed := 0 // attempts at the first envelope
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.status == Open && c.conn != c.dying {
		limit := maxBatch
		if failed > 0 {
			limit = 1
		}
		if c.fill(b, limit); len(b.frames) == 0 {
			break
		}
		conn := c.conn
		c.mu.Unlock()
		err := c.sendOn(conn, b.frames)
		c.mu.Lock()
		switch {
		case c.conn != conn:
			failed = 0 // the next connection begins with what the peer has
		case err == nil:
			failed = 0
			c.out.wire = max(c.out.wire, b.last)
			c.startWatch()
		default:
			failed = c.notSent(conn, b, failed+1, err)
		}
	}
	c.out.flushing = false
}

func (c *Channel) sendOn(conn transport.Conn, frames []transport.Frame) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	return conn.Send(c.ctx, frames)
}

// notSent deals with a batch that failed for the n-th time: it waits before the
// next attempt, gives the first envelope up or the
// connection. It returns how many attempts count from now on. c.mu is held, and
// released while it waits.
func (c *Channel) notSent(conn transport.Conn, b *batch, n int, err error) int {
	code := transport.CodeOf(err)
	c.out.ackDue = true // it may have been in the batch
	for i := range c.out.rejected {
		c.out.rejected[i].said = nil // so may they
	}
	if code == transport.CodeTooLarge && b.data > 1 {
		return n // one by one, to find which
	}
	if code != transport.CodeNotSent && code != transport.CodeTooLarge {
		c.expire(conn)
		return 0
	}
	if n <= c.m.opts.Retries && code == transport.CodeNotSent {
		delay := c.m.opts.RetryDelay << (n - 1)
		c.mu.Unlock()
		pause(c.ctx, delay)
		c.mu.Lock()
		return n
	}
	i := c.out.next()
	if b.last == 0 || i >= len(c.out.queue) || c.out.queue[i].e == nil {
		c.expire(conn) // not even a word gets through
		return 0
	}
	o := &c.out.queue[i]
	c.fail(o.e, c.errorf(CodeDeliveryFailed, err, "envelope %s could not be delivered in %d attempts", o.e.ID, n))
	o.e = nil // the number stays, so that those after it keep theirs
	return 0
}

// expire ends a connection that sends no more. It counts as lost when all that
// has arrived on it is read: the peer may have closed the channel, and said so.
// c.mu is held.
func (c *Channel) expire(conn transport.Conn) {
	if c.conn != conn {
		return
	}
	c.dying = conn
	c.m.wg.Go(func() { closeConn(conn) })
}

// pause waits and reports false if ctx ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// startWatch looks after AckTimeout whether the peer is alive; c.mu is held.
func (c *Channel) startWatch() {
	o := &c.out
	if o.watching || o.wire <= o.acked || c.status != Open {
		return
	}
	o.watching, o.watchedHas, o.watchedConn = true, o.has, c.conn
	if o.watch == nil {
		o.watch = time.AfterFunc(c.m.opts.AckTimeout, c.lookForLife)
		return
	}
	o.watch.Reset(c.m.opts.AckTimeout)
}

// lookForLife gives the connection up if what is on the wire does not arrive. If
// it arrived and is only not handled yet, it asks: a peer that does not answer
// until the next look is gone, or our word was lost on the way.
func (c *Channel) lookForLife() {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.out
	o.watching = false
	conn := o.watchedConn
	o.watchedConn = nil
	if c.status == Open && c.conn == conn && o.wire > o.acked {
		if o.probed || o.wire > o.has && o.has == o.watchedHas {
			c.lost(conn)
			return
		}
		o.probe = true
		c.startFlush()
	}
	c.startWatch()
}
