package swarm

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
)

const (
	refreshTime   = 10 * time.Minute
	refreshJitter = 2 * time.Minute
	retryTime     = 5 * time.Second
	withdrawTime  = 3 * time.Second
)

// Role is what to do about a topic.
type Role int

// The roles; add them to have both.
const (
	Server Role = 1 << iota // be found
	Client                  // find and dial others
)

// Topic is one membership of a topic. It is safe for concurrent use.
type Topic struct {
	m    *meeting
	role Role
	left sync.Once
	gone chan struct{} // closed when it is left
}

// meeting is what a swarm does about a topic, for all its memberships together: it has
// the roles that any of them has.
type meeting struct {
	s       *Swarm
	topic   [32]byte
	before  *meeting // of the same topic, that takes its announcement back first
	ctx     context.Context
	cancel  context.CancelFunc
	refresh chan struct{}
	done    chan struct{}

	members map[*Topic]struct{} // under the swarm's mu

	mu        sync.Mutex
	rounds    map[Role]chan struct{} // closed after the first round with a role
	err       error                  // of the last round
	announced bool
}

// Join looks a topic up and announces the swarm under it, as the role says, until the
// topic is left, and again every ten minutes or so. A topic can be joined several times:
// the swarm has the roles of all its memberships, and each is left for itself. Any 32
// bytes are a topic; the DHT's nodes see them, and who knows them has no right by that:
// derive them from a secret.
func (s *Swarm) Join(topic [32]byte, r Role) (*Topic, error) {
	if r&Server != 0 {
		if _, err := s.listen(); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	m := s.topics[topic]
	if m == nil || len(m.members) == 0 {
		m = s.meet(topic, m)
	}
	t := &Topic{m: m, role: r, gone: make(chan struct{})}
	had := m.role()
	m.members[t] = struct{}{}
	if m.role() != had && had != 0 {
		m.again()
	}
	return t, nil
}

// meet begins to do something about a topic; s.mu is held.
func (s *Swarm) meet(topic [32]byte, before *meeting) *meeting {
	m := &meeting{
		s: s, topic: topic, before: before, members: make(map[*Topic]struct{}),
		refresh: make(chan struct{}, 1), done: make(chan struct{}), rounds: make(map[Role]chan struct{}),
	}
	m.ctx, m.cancel = context.WithCancel(s.ctx)
	s.topics[topic] = m
	s.wg.Go(m.run)
	return m
}

// role is what to do; s.mu is held.
func (m *meeting) role() (all Role) {
	for t := range m.members {
		all |= t.role
	}
	return all
}

// Flushed waits until the first lookup, and announcement, of its role is done.
func (t *Topic) Flushed(ctx context.Context) error {
	select {
	case <-t.m.round(t.role):
		t.m.mu.Lock()
		defer t.m.mu.Unlock()
		return t.m.err
	case <-t.gone:
		return ErrClosed
	case <-t.m.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// round is closed after the first round with a role.
func (m *meeting) round(r Role) chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.rounds[r]
	if c == nil {
		c = make(chan struct{})
		m.rounds[r] = c
	}
	return c
}

// Refresh looks up and announces now, e.g. because the network has changed.
func (t *Topic) Refresh() { t.m.again() }

func (m *meeting) again() {
	select {
	case m.refresh <- struct{}{}:
	default:
	}
}

// Leave ends the membership. If it was the last one to be found by, it takes the
// announcement back, if it was the last one it waits for that, a few seconds at most.
// Connections stay. Leaving again does nothing but wait.
func (t *Topic) Leave() {
	m := t.m
	m.s.mu.Lock()
	had := m.role()
	delete(m.members, t)
	last := len(m.members) == 0
	if !last && m.role() != had {
		m.again()
	}
	m.s.mu.Unlock()
	t.left.Do(func() { close(t.gone) })
	if last {
		m.cancel()
		<-m.done
	}
}

func (m *meeting) run() {
	defer close(m.done)
	defer m.leave()
	if m.before != nil {
		<-m.before.done
		m.before = nil
	}
	for m.ctx.Err() == nil {
		m.s.mu.Lock()
		role := m.role()
		m.s.mu.Unlock()
		err := m.look(role)
		if m.ctx.Err() != nil {
			return
		}
		m.rounded(role, err)
		wait := refreshTime + rand.N(refreshJitter)
		if err != nil {
			m.s.log.Debug("a topic cannot be refreshed", "error", err)
			wait = retryTime
		}
		timer := time.NewTimer(wait)
		select {
		case <-m.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-m.refresh:
			timer.Stop()
		}
	}
}

// rounded tells of a round with a role who waits for it, or for a part of it.
func (m *meeting) rounded(role Role, err error) {
	for _, part := range []Role{0, Client, Server, Client | Server} {
		if part&^role != 0 {
			continue
		}
		done := m.round(part)
		select {
		case <-done:
		default:
			defer close(done)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// look is one lookup, and announcement.
func (m *meeting) look(role Role) error {
	found := func(p hyperdht.Peer) bool {
		if role&Client != 0 {
			m.s.found(m.topic, p)
		}
		return true
	}
	if role&Server == 0 {
		m.withdraw()
		return m.s.o.Node.Lookup(m.ctx, m.topic, found)
	}
	l, err := m.s.listen()
	if err != nil {
		return err
	}
	if err := l.WaitAnnounced(m.ctx); err != nil {
		return err
	}
	m.mu.Lock()
	m.announced = true
	m.mu.Unlock()
	return m.s.o.Node.Announce(m.ctx, m.topic, m.s.pair, l.Relays(), found)
}

// leave ends the meeting, unless another has taken its place.
func (m *meeting) leave() {
	m.withdraw()
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if m.s.topics[m.topic] == m {
		delete(m.s.topics, m.topic)
	}
}

// withdraw takes the announcement back, if there is one. Who leaves meanwhile waits for
// that: it is not begun again.
func (m *meeting) withdraw() {
	m.mu.Lock()
	announced := m.announced
	m.announced = false
	m.mu.Unlock()
	if announced {
		ctx, cancel := context.WithTimeout(context.Background(), withdrawTime)
		defer cancel()
		// What cannot be taken back expires.
		_ = m.s.o.Node.Unannounce(ctx, m.topic, m.s.pair)
	}
}
