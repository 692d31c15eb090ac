package udx

import (
	"net/netip"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
)

// segment is a data packet, sent or not yet sent. Its payload is never split again.
type segment struct {
	payload []byte
	end     bool
	seq     uint32
	sentAt  time.Time
	sends   int
	probe   int // the padded size if it is an MTU probe, or 0
	sacked  bool
	lost    bool

	prev, next *segment // in loss.order
	array      [maxPayload]byte
}

var segments = sync.Pool{New: func() any { return new(segment) }}

func newSegment() *segment {
	g := segments.Get().(*segment)
	*g = segment{}
	g.payload = g.array[:0]
	return g
}

// outbound is the sending half of a stream.
type outbound struct {
	queue    []*segment // not yet sent
	unsent   int        // bytes in queue
	sent     []*segment // from una to next
	inFlight int        // bytes of sent in flight
	unacked  int        // bytes of sent
	una      uint32     // oldest unacknowledged
	next     uint32     // next to be sent
	ended    bool
	endAcked bool
	endSeq   uint32
	endSent  bool

	peerWindow int
	windowSeq  uint32 // of the packet with the latest window
	windowAck  uint32
	askAt      time.Time // when to probe a window of 0
	asked      int       // unanswered
}

const (
	initialPeerWindow = 4 << 20
	// maxPeerWindow bounds the unacknowledged bytes: a peer that never acknowledges the oldest packet makes
	// us keep its whole window.
	maxPeerWindow = 64 << 20
)

func (o *outbound) init() { o.peerWindow = initialPeerWindow }

// append queues bytes, filling the last packet first.
func (o *outbound) append(p []byte, size int) {
	o.unsent += len(p)
	for len(p) > 0 {
		var last *segment
		if n := len(o.queue); n > 0 && !o.queue[n-1].end && len(o.queue[n-1].payload) < size {
			last = o.queue[n-1]
		} else {
			last = newSegment()
			o.queue = append(o.queue, last)
		}
		n := min(size-len(last.payload), len(p))
		last.payload = append(last.payload, p[:n]...)
		p = p[n:]
	}
}

// end queues the END flag, on the last unsent packet if there is one.
func (o *outbound) end() {
	if o.ended {
		return
	}
	o.ended = true
	if n := len(o.queue); n > 0 {
		o.queue[n-1].end = true
		return
	}
	g := newSegment()
	g.end = true
	o.queue = append(o.queue, g)
}

// updateWindow stores the window of a packet, unless a later packet was seen.
func (o *outbound) updateWindow(p *packet) {
	o.asked = 0
	if before(p.seq, o.windowSeq) || p.seq == o.windowSeq && before(p.ack, o.windowAck) {
		return
	}
	o.peerWindow = int(min(p.window, maxPeerWindow))
	o.windowSeq, o.windowAck = p.seq, p.ack
}

// maxBatch is how many packets are written at once.
const maxBatch = 32

// batch holds datagrams to one address, concatenated in one buffer.
type batch struct {
	buf  []byte
	ends []int
	sock *Socket
	to   netip.AddrPort
}

var batches = sync.Pool{New: func() any { return new(batch) }}

func (b *batch) done() { b.ends = append(b.ends, len(b.buf)) }

// flush sends what may be sent. It holds no lock while it writes: of concurrent callers one sends for all.
func (s *Stream) flush() {
	s.mu.Lock()
	if s.flushing {
		s.again = true
		s.mu.Unlock()
		return
	}
	s.flushing = true
	b := batches.Get().(*batch)
	for {
		s.again = false
		b.buf, b.ends = b.buf[:0], b.ends[:0]
		b.sock, b.to = s.sock, s.remote
		s.collect(b)
		if len(b.ends) == 0 && !s.again {
			break
		}
		s.mu.Unlock()
		b.write()
		s.mu.Lock()
	}
	s.flushing = false
	s.arm()
	s.mu.Unlock()
	b.sock = nil
	batches.Put(b)
}

// collect appends the packets that may be sent now to a batch; s.mu is held.
func (s *Stream) collect(b *batch) {
	if !s.connected {
		return
	}
	now := time.Now()
	if !s.over {
		s.resend(b, now)
		s.sendNew(b, now)
		s.probeWindow(b, now)
	}
	if s.in.ackDue && (len(b.ends) == 0 || len(s.in.ahead) > 0) {
		s.appendAck(b)
	}
	if len(b.ends) > 0 {
		s.in.ackDue = false
	}
	if s.out.unsent < s.m.opts.SendBuffer && !s.out.ended {
		wait.Nudge(s.writable)
	}
}

func (s *Stream) header(types byte, seq uint32) header {
	s.in.advertised = s.window()
	return header{types: types, id: s.remoteID, window: uint32(s.in.advertised), seq: seq, ack: s.in.next}
}

func (s *Stream) appendAck(b *batch) {
	at := len(b.buf)
	h := s.header(0, s.out.next)
	b.buf = h.append(b.buf)
	if len(s.in.ahead) > 0 {
		b.buf = s.appendSack(b.buf)
		b.buf[at+2] = typeSack
		b.buf[at+3] = byte(len(b.buf) - at - headerSize)
	}
	b.done()
}

// resend appends lost segments.
func (s *Stream) resend(b *batch, now time.Time) {
	for len(s.loss.lost) > 0 && len(b.ends) < maxBatch {
		g := s.loss.lost[0]
		if g.lost && !g.sacked {
			if !s.mayResend(g) || !s.loss.pace(len(g.payload), now) {
				return
			}
			s.transmit(b, g, now)
		}
		s.loss.lost[0] = nil
		s.loss.lost = s.loss.lost[1:]
	}
}

// mayResend reports whether the congestion window has room. A segment may always be sent if nothing else is
// in flight: otherwise the stream would stall.
func (s *Stream) mayResend(g *segment) bool {
	if s.cautious && !s.proven && g.sends > 3 {
		return false
	}
	return s.out.inFlight+len(g.payload) <= s.loss.cc.window() || s.out.inFlight == 0
}

// sendNew appends segments that were not sent before.
func (s *Stream) sendNew(b *batch, now time.Time) {
	for len(s.out.queue) > 0 && len(b.ends) < maxBatch && len(s.loss.lost) == 0 {
		g := s.out.queue[0]
		n := len(g.payload)
		switch {
		case s.cautious && !s.proven && s.out.next > 0:
			return
		case s.out.inFlight > 0 && s.out.inFlight+n > s.loss.cc.window():
			s.loss.limited = true
			return
		case n > 0 && s.out.unacked+n > s.out.peerWindow:
			return
		case !s.loss.pace(n, now):
			return
		}
		s.out.queue[0] = nil
		s.out.queue = s.out.queue[1:]
		g.seq = s.out.next
		s.out.next++
		s.out.unsent -= n
		s.out.unacked += n
		if g.end {
			s.out.endSeq, s.out.endSent = g.seq, true
		}
		if len(s.out.sent) == 0 {
			s.loss.restart(now)
		}
		s.out.sent = append(s.out.sent, g)
		g.probe = s.mtu.probe(g)
		s.transmit(b, g, now)
	}
}

// transmit appends a segment's packet to the batch.
func (s *Stream) transmit(b *batch, g *segment, now time.Time) {
	types := byte(typeData)
	if g.end {
		types = typeEnd
		if len(g.payload) > 0 {
			types |= typeData
		}
	}
	h := s.header(types, g.seq)
	pad := 0
	if g.probe > 0 {
		pad = g.probe - len(g.payload)
	}
	h.offset = byte(pad)
	b.buf = h.append(b.buf)
	b.buf = append(b.buf, padding[:pad]...)
	b.buf = append(b.buf, g.payload...)
	b.done()
	if g.sends > 0 {
		s.stats.Resent++
	} else {
		s.stats.Sent++
	}
	g.sends++
	g.sentAt, g.lost = now, false
	s.out.inFlight += len(g.payload)
	s.loss.order.push(g)
	s.loss.sent(now, len(s.out.sent))
}

var padding [256]byte

// probeWindow asks for the peer's window if it is 0 and no packet in flight will return it.
func (s *Stream) probeWindow(b *batch, now time.Time) {
	o := &s.out
	if len(o.queue) == 0 || len(o.sent) > 0 || o.unacked+len(o.queue[0].payload) <= o.peerWindow || s.cautious && !s.proven {
		o.askAt = time.Time{}
		return
	}
	if now.Before(o.askAt) {
		return
	}
	if o.asked > maxTimeouts {
		s.finish(ErrTimeout)
		return
	}
	o.asked++
	o.askAt = now.Add(2 * s.loss.rto())
	h := s.header(typeHeartbeat, o.next)
	b.buf = h.append(b.buf)
	b.done()
}

// write sends the datagrams, those of one size with one system call where possible. Errors are ignored: an
// unsent datagram counts as lost.
func (b *batch) write() {
	at := 0
	for i := 0; i < len(b.ends); {
		size := b.ends[i] - at
		n := 1
		for i+n < len(b.ends) && b.ends[i+n]-b.ends[i+n-1] == size {
			n++
		}
		// The last datagram of a train may be shorter than the others.
		if i+n < len(b.ends) && b.ends[i+n]-b.ends[i+n-1] < size {
			n++
		}
		end := b.ends[i+n-1]
		if n == 1 || !b.sock.writeTrain(b.buf[at:end], size, b.to) {
			for begin := at; begin < end; {
				next := min(begin+size, end)
				_ = b.sock.Write(b.buf[begin:next], b.to)
				begin = next
			}
		}
		at = end
		i += n
	}
}
