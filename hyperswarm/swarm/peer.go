package swarm

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/relay"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
)

// peer is the state of a known peer. It is guarded by the swarm's mu.
type peer struct {
	key      identity.PublicKey
	relays   []netip.AddrPort
	topics   map[[32]byte]struct{}
	explicit bool
	proven   bool // there was a connection to it
	attempts int  // since the last good connection
	due      time.Time
	cancel   context.CancelFunc // of the dial under way
}

// maxAttempts is how often a peer is dialled before it must be found again.
const maxAttempts = 3

// delay returns how long to wait before a peer's next dial, and false if it is not dialled.
func (p *peer) delay() (time.Duration, bool) {
	delays := []time.Duration{5 * time.Second, 15 * time.Second, 15 * time.Second}
	if p.proven || p.explicit { // the peer is more likely to be online
		delays = []time.Duration{time.Second, 5 * time.Second, 15 * time.Second}
	}
	var d time.Duration
	switch {
	case p.attempts < 1:
		return 0, true
	case p.attempts <= maxAttempts:
		d = delays[p.attempts-1]
	case p.explicit: // dialled until LeavePeer
		if d = 15 * time.Second; !p.proven {
			d = min(d<<min(p.attempts-maxAttempts, 3), time.Minute)
		}
	default:
		return 0, false
	}
	return d + time.Duration(rand.Int64N(int64(d/2))), true
}

// wanted reports whether a connection to the peer is needed; s.mu is held.
func (s *Swarm) wanted(p *peer) bool {
	if p.explicit {
		return true
	}
	for t := range p.topics {
		if m := s.topics[t]; m != nil && m.role()&Client != 0 {
			return true
		}
	}
	return false
}

// retry schedules the next dial after a connection or dial ended; s.mu is held.
func (s *Swarm) retry(p *peer) {
	p.attempts++
	d, ok := p.delay()
	if !ok {
		p.due = time.Time{}
		return
	}
	p.due = time.Now().Add(d)
	wait.Nudge(s.wake)
}

// retrySoon schedules a dial now, unless one is scheduled; s.mu is held.
func (s *Swarm) retrySoon(p *peer) {
	if p.due.IsZero() {
		if p.attempts > maxAttempts {
			p.attempts = maxAttempts // it was found again
		}
		d, _ := p.delay()
		p.due = time.Now().Add(d)
	}
	wait.Nudge(s.wake)
}

// schedule dials peers when they are due.
func (s *Swarm) schedule() {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		t.Reset(s.dialDue())
		select {
		case <-s.ctx.Done():
			return
		case <-s.wake:
		case <-t.C:
		}
	}
}

// dialDue begins the dials that are due and returns the time until the next one.
func (s *Swarm) dialDue() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, now := time.Hour, time.Now()
	for key, p := range s.peers {
		if p.due.IsZero() || p.cancel != nil || s.conns[key] != nil {
			continue
		}
		if !s.wanted(p) {
			p.due = time.Time{}
			continue
		}
		if left := p.due.Sub(now); left > 0 {
			next = min(next, left)
			continue
		}
		if s.dials >= s.o.MaxDials || len(s.conns)+s.dials >= s.o.MaxPeers {
			next = min(next, time.Second)
			continue
		}
		s.dial(p)
	}
	return next
}

// dial begins one dial; s.mu is held.
func (s *Swarm) dial(p *peer) {
	ctx, cancel := context.WithTimeout(s.ctx, dialTimeout)
	relays := p.relays
	p.cancel, p.due = cancel, time.Time{}
	s.dials++
	if !s.queue.Go(func() {
		defer cancel()
		direct := hyperdht.DialOptions{Pair: s.pair, Relays: relays}
		c, err := relay.DialAny(ctx, s.o.Node, s.o.Relays, p.key, direct, s.o.Stream)
		if !s.dialled(p, c, err) {
			c.Destroy()
		}
	}) {
		cancel()
	}
}

// dialled handles the outcome of a dial. It reports false if the connection is not needed any more.
func (s *Swarm) dialled(p *peer, c *secretstream.Conn, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.cancel = nil
	s.dials--
	wait.Nudge(s.wake)
	connected := s.conns[p.key] != nil // the peer has dialled meanwhile
	switch {
	case err != nil && !connected:
		s.log.Debug("a peer cannot be dialled", "peer", p.key, "error", err)
		s.retry(p)
		return true
	case err != nil:
		return true
	}
	return !connected && s.add(c)
}
