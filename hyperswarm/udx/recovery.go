package udx

import (
	"math"
	"time"
)

const (
	minRTO       = time.Second
	maxRTO       = 30 * time.Second
	minProbe     = 10 * time.Millisecond
	maxTimeouts  = 6 // with one more the stream fails
	rttMemory    = 10 * time.Second
	maxReordered = 16
	maxBurst     = 32 // packets that pacing allows at once
)

// recovery detects losses (RACK-TLP, RFC 8985), computes timeouts (RFC 6298) and paces the sending.
type recovery struct {
	cc      *cubic
	limited bool // the congestion window limited the sender

	srtt, rttvar time.Duration
	minRTT       time.Duration
	minRTTAt     time.Time

	order segmentList // in flight, by the time of their last transmission
	lost  []*segment  // to be sent again

	newest     time.Time // transmission time of the newest packet known to have arrived
	newestSeq  uint32
	newestRTT  time.Duration
	reordered  int // how often packets arrived late; tolerances grow with it
	sacked     int // packets that arrived beyond a gap
	highest    uint32
	hasHighest bool

	recovering bool
	recoverTo  uint32

	timeouts  int
	timeoutAt time.Time // zero: nothing is in flight
	probeAt   time.Time // of the tail loss probe
	probed    bool
	reorderAt time.Time
	paceAt    time.Time

	tokens   float64 // bytes that pacing allows now
	tokensAt time.Time
}

// rto returns the retransmission timeout.
func (r *recovery) rto() time.Duration {
	if r.srtt == 0 {
		return minRTO
	}
	return min(max(r.srtt+4*r.rttvar, minRTO), maxRTO)
}

// restart restarts the retransmission timer.
func (r *recovery) restart(now time.Time) {
	d := r.rto()
	if r.timeouts > 0 {
		d *= 2
	}
	r.timeoutAt = now.Add(d)
}

// sent schedules the tail loss probe after a transmission.
func (r *recovery) sent(now time.Time, out int) {
	if r.probed || r.recovering {
		return
	}
	d := minRTO
	if r.srtt > 0 {
		d = max(2*r.srtt, minProbe)
		if out == 1 {
			d += 2 * time.Millisecond
		}
	}
	r.probeAt = now.Add(d)
}

// pace takes n bytes from the tokens and reports true, or sets the time when there are enough.
func (r *recovery) pace(n int, now time.Time) bool {
	if r.srtt == 0 {
		return true // the first window
	}
	rate := r.cc.rate(r.srtt)
	burst := max(maxBurst*maxPayload, rate/1000)
	if r.tokensAt.IsZero() {
		r.tokens = burst
	} else {
		r.tokens = min(r.tokens+rate*now.Sub(r.tokensAt).Seconds(), burst)
	}
	r.tokensAt = now
	if r.tokens < float64(n) {
		wait := math.Max((math.Min(burst/2, rate/1000)-r.tokens)/rate, 0.0005)
		r.paceAt = now.Add(time.Duration(wait * float64(time.Second)))
		return false
	}
	r.tokens -= float64(n)
	return true
}

func (r *recovery) sample(rtt time.Duration, now time.Time) {
	rtt = max(rtt, time.Microsecond)
	const suspicious = 5 * time.Second
	if r.srtt > 0 && rtt > suspicious {
		rtt = min(rtt, max(suspicious, r.srtt+5*r.rttvar))
	}
	if r.minRTT == 0 || rtt <= r.minRTT || now.Sub(r.minRTTAt) > rttMemory {
		r.minRTT, r.minRTTAt = rtt, now
	}
	if r.srtt == 0 {
		r.srtt, r.rttvar = rtt, rtt/2
		return
	}
	r.rttvar += ((r.srtt - rtt).Abs() - r.rttvar) / 4
	r.srtt += (rtt - r.srtt) / 8
}

// acknowledged handles the acknowledgements of a packet; s.mu is held.
func (s *Stream) acknowledged(p *packet, now time.Time) {
	a := acking{now: now}
	s.loss.limited = s.loss.limited || 2*s.out.inFlight >= s.loss.cc.window()
	n := 0
	if news := p.ack - s.out.una; news <= uint32(len(s.out.sent)) {
		n = int(news)
	}
	for i := range n {
		s.arrived(s.out.sent[i], &a)
		s.release(i)
	}
	if n > 0 {
		s.out.sent = s.out.sent[n:]
		s.out.una = p.ack
		s.loss.timeouts = 0
		if s.loss.recovering && !before(p.ack, s.loss.recoverTo) {
			s.loss.recovering = false
		}
		if s.out.endSent && before(s.out.endSeq, p.ack) {
			s.out.endAcked = true
		}
	}
	p.ranges(func(first, end uint32) { s.sackRange(first, end, &a) })
	if a.bytes == 0 && n == 0 {
		return
	}
	r := &s.loss
	if a.rtt > 0 {
		r.sample(a.rtt, now)
	}
	r.probed = false
	if len(s.out.sent) == 0 {
		r.timeoutAt, r.probeAt, r.reorderAt = time.Time{}, time.Time{}, time.Time{}
	} else {
		r.restart(now)
		r.sent(now, len(s.out.sent))
	}
	s.detectLoss(now)
	if !r.recovering {
		r.cc.acked(a.bytes, r.limited, a.rtt, r.minRTT, now)
	}
	r.limited = false
}

// acking accumulates what one packet acknowledges.
type acking struct {
	now   time.Time
	bytes int
	rtt   time.Duration // of the last segment that was sent only once
}

// arrived records that a segment has arrived.
func (s *Stream) arrived(g *segment, a *acking) {
	if g.sacked {
		s.loss.sacked--
		return
	}
	r := &s.loss
	if !g.lost {
		r.order.remove(g)
		s.out.inFlight -= len(g.payload)
	}
	a.bytes += max(len(g.payload), 1)
	rtt := a.now.Sub(g.sentAt)
	late := g.lost || rtt < r.minRTT/2 // the first transmission arrived after all
	switch {
	case g.sends == 1 && !g.lost:
		a.rtt = max(rtt, 1)
		if r.hasHighest && before(g.seq, r.highest) {
			r.reordered = max(r.reordered, 1)
		}
	case late && r.timeouts == 0:
		r.reordered = min(r.reordered+1, maxReordered)
		if r.recovering {
			r.recovering = false
			r.cc.spurious()
		}
	}
	if !r.hasHighest || before(r.highest, g.seq) {
		r.highest, r.hasHighest = g.seq, true
	}
	if g.sends == 1 || rtt >= r.minRTT {
		if g.sentAt.After(r.newest) || g.sentAt.Equal(r.newest) && before(r.newestSeq, g.seq) {
			r.newest, r.newestSeq, r.newestRTT = g.sentAt, g.seq, rtt
		}
	}
	if g.probe > 0 && s.mtu.succeeded(g.probe) {
		r.cc.mss = s.mtu.payload
	}
	g.probe = 0
}

// release recycles the i-th sent segment.
func (s *Stream) release(i int) {
	g := s.out.sent[i]
	s.out.sent[i] = nil
	s.out.unacked -= len(g.payload)
	if !g.lost { // otherwise it is still in loss.lost
		segments.Put(g)
		return
	}
	g.sacked = true
}

func (s *Stream) sackRange(first, end uint32, a *acking) {
	from, to := first-s.out.una, end-s.out.una
	if from >= to || to > uint32(len(s.out.sent)) { // not in flight
		return
	}
	for i := from; i < to; i++ {
		g := s.out.sent[i]
		if g.sacked {
			continue
		}
		s.arrived(g, a)
		g.sacked = true
		s.loss.sacked++
	}
}

// detectLoss marks segments as lost that were sent well before one that has arrived.
func (s *Stream) detectLoss(now time.Time) {
	r := &s.loss
	r.reorderAt = time.Time{}
	wait := min(r.minRTT/4*time.Duration(max(r.reordered, 1)), r.srtt)
	if r.reordered == 0 && (r.recovering || r.sacked >= 3) {
		wait = 0
	}
	for g := r.order.first; g != nil; g = r.order.first {
		if !g.sentAt.Before(r.newest) && !(g.sentAt.Equal(r.newest) && before(g.seq, r.newestSeq)) {
			return
		}
		if left := g.sentAt.Add(r.newestRTT + wait).Sub(now); left > 0 {
			r.reorderAt = now.Add(left)
			return
		}
		s.markLost(g)
	}
}

// retract moves a segment from those in flight to the lost ones, and reports whether it was an MTU probe.
func (s *Stream) retract(g *segment) (probe bool) {
	s.loss.order.remove(g)
	s.out.inFlight -= len(g.payload)
	g.lost = true
	s.loss.lost = append(s.loss.lost, g)
	if probe = g.probe > 0; probe {
		g.probe = 0
		s.mtu.failed()
	}
	return probe
}

func (s *Stream) markLost(g *segment) {
	r := &s.loss
	// A probe may be lost because of its size: that is no sign of congestion.
	if !s.retract(g) && !r.recovering {
		r.recovering, r.recoverTo, r.probeAt = true, s.out.next, time.Time{}
		r.cc.lost()
	}
}

// arm sets the timer to the earliest due time; s.mu is held.
func (s *Stream) arm() {
	if s.over {
		return
	}
	var at time.Time
	for _, t := range []time.Time{s.loss.timeoutAt, s.loss.probeAt, s.loss.reorderAt, s.loss.paceAt, s.out.askAt, s.lingerAt} {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if at.IsZero() || !s.armed.IsZero() && !at.Before(s.armed) {
		return // a timer that fires too early is set again
	}
	s.armed = at
	d := max(time.Until(at), 0)
	if s.timer == nil {
		s.timer = time.AfterFunc(d, s.tick)
		return
	}
	s.timer.Reset(d)
}

// tick handles what is due.
func (s *Stream) tick() {
	s.mu.Lock()
	s.armed = time.Time{}
	if s.over {
		s.mu.Unlock()
		return
	}
	now := time.Now()
	r := &s.loss
	if due(r.paceAt, now) {
		r.paceAt = time.Time{}
	}
	if due(s.lingerAt, now) {
		s.mu.Unlock()
		s.Destroy()
		return
	}
	if due(r.timeoutAt, now) {
		s.timedOut(now)
	} else {
		if due(r.reorderAt, now) {
			s.detectLoss(now)
		}
		if due(r.probeAt, now) {
			s.probeTail(now)
		}
	}
	s.mu.Unlock()
	s.flush()
}

func due(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }

// probeTail sends the last packet again if no new one would reveal whether it arrived.
func (s *Stream) probeTail(now time.Time) {
	r := &s.loss
	r.probeAt, r.probed = time.Time{}, true
	g := r.order.last
	if len(s.out.queue) > 0 || g == nil || len(r.lost) > 0 {
		return
	}
	s.retract(g)
	r.restart(now)
}

// timedOut treats everything in flight as lost, or fails the stream.
func (s *Stream) timedOut(now time.Time) {
	r := &s.loss
	r.timeouts++
	if r.timeouts > maxTimeouts {
		s.finish(ErrTimeout)
		return
	}
	for g := r.order.first; g != nil; g = r.order.first {
		s.retract(g)
	}
	r.lost = r.lost[:0] // rebuilt in the order of sequence numbers
	s.out.inFlight = 0
	for _, g := range s.out.sent {
		if !g.sacked {
			g.lost = true
			r.lost = append(r.lost, g)
		}
	}
	if r.timeouts == 1 {
		r.cc.timedOut()
	}
	r.recovering, r.recoverTo = true, s.out.next
	r.probeAt, r.reorderAt = time.Time{}, time.Time{}
	r.restart(now)
}

// segmentList is a doubly linked list.
type segmentList struct{ first, last *segment }

func (l *segmentList) push(g *segment) {
	g.prev, g.next = l.last, nil
	if l.last != nil {
		l.last.next = g
	} else {
		l.first = g
	}
	l.last = g
}

func (l *segmentList) remove(g *segment) {
	if g.prev != nil {
		g.prev.next = g.next
	} else {
		l.first = g.next
	}
	if g.next != nil {
		g.next.prev = g.prev
	} else {
		l.last = g.prev
	}
	g.prev, g.next = nil, nil
}
