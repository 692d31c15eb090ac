package swarm

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/internal/base/wait"
)

const (
	refreshTime   = 10 * time.Minute
	refreshJitter = 2 * time.Minute
	retryTime     = 5 * time.Second
	withdrawTime  = 3 * time.Second
)

// Role says what a member of a topic does.
type Role int

// The roles; combine them with | to have both.
const (
	Server Role = 1 << iota // announce the swarm
	Client                  // find and dial the peers
)

// Topic is one membership of a topic. It is safe for concurrent use.
type Topic struct {
	m    *topicState
	role Role
	left sync.Once
	gone chan struct{} // closed by Leave
}

// topicState is the state of a topic, common to all its memberships. It has the roles that any of them has.
type topicState struct {
	s       *Swarm
	topic   [32]byte
	before  *topicState // the topic's former state, whose announcement is withdrawn first
	ctx     context.Context
	cancel  context.CancelFunc
	refresh chan struct{}
	done    chan struct{}

	announced bool // used by run only

	members map[*Topic]struct{} // guarded by the swarm's mu

	mu      sync.Mutex
	rounds  map[Role]bool // roles of the rounds that are done
	err     error         // of the last one
	rounded wait.Signal   // after a round
}

// Join announces the swarm under a topic, looks the topic up, or both, depending on the role, and repeats
// it about every ten minutes until Leave. A topic may be joined several times: the swarm has the roles of
// all memberships. Any 32 bytes are a topic. DHT nodes see it, so derive it from a secret, and do not take
// its knowledge for authorization.
func (s *Swarm) Join(topic [32]byte, r Role) (*Topic, error) {
	if r&Server != 0 {
		if _, err := s.listen(); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue.Stopped() {
		return nil, ErrClosed
	}
	m := s.topics[topic]
	if m == nil || len(m.members) == 0 {
		m = s.newState(topic, m)
	}
	t := &Topic{m: m, role: r, gone: make(chan struct{})}
	had := m.role()
	m.members[t] = struct{}{}
	if m.role() != had && had != 0 {
		wait.Nudge(m.refresh)
	}
	return t, nil
}

// newState creates a topic's state and starts its goroutine; s.mu is held.
func (s *Swarm) newState(topic [32]byte, before *topicState) *topicState {
	m := &topicState{
		s: s, topic: topic, before: before, members: make(map[*Topic]struct{}),
		refresh: make(chan struct{}, 1), done: make(chan struct{}), rounds: make(map[Role]bool),
	}
	m.ctx, m.cancel = context.WithCancel(s.ctx)
	s.topics[topic] = m
	s.queue.Go(m.run)
	return m
}

// role returns the union of the members' roles; s.mu is held.
func (m *topicState) role() (all Role) {
	for t := range m.members {
		all |= t.role
	}
	return all
}

// Flushed blocks until the first round that includes the membership's role is done.
func (t *Topic) Flushed(ctx context.Context) error {
	for {
		rounded := t.m.rounded.Wait()
		if done, err := t.m.flushed(t.role); done {
			return err
		}
		select {
		case <-rounded:
		case <-t.gone:
			return ErrClosed
		case <-t.m.done:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *topicState) flushed(r Role) (done bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for role := range m.rounds {
		done = done || r&^role == 0
	}
	return done, m.err
}

// Refresh runs a round now, e.g. after the network has changed.
func (t *Topic) Refresh() { wait.Nudge(t.m.refresh) }

// Leave ends the membership. The announcement is withdrawn when no other membership needs it. The last membership's
// Leave blocks until that is done, a few seconds at most. Connections stay open. Another call only waits.
func (t *Topic) Leave() {
	m := t.m
	m.s.mu.Lock()
	had := m.role()
	delete(m.members, t)
	last := len(m.members) == 0
	if !last && m.role() != had {
		wait.Nudge(m.refresh)
	}
	m.s.mu.Unlock()
	t.left.Do(func() { close(t.gone) })
	if last {
		m.cancel()
		<-m.done
	}
}

func (m *topicState) run() {
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
		m.mu.Lock()
		m.rounds[role], m.err = true, err
		m.mu.Unlock()
		m.rounded.Send()
		pause := refreshTime + rand.N(refreshJitter)
		if err != nil {
			m.s.log.Debug("a topic cannot be refreshed", "error", err)
			pause = retryTime
		}
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(pause):
		case <-m.refresh:
		}
	}
}

// look runs one lookup, with an announcement if the role includes Server.
func (m *topicState) look(role Role) error {
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
	m.announced = true
	return m.s.o.Node.Announce(m.ctx, m.topic, m.s.pair, l.Relays(), found)
}

// leave withdraws the announcement and removes the topic's state, unless it was replaced.
func (m *topicState) leave() {
	m.withdraw()
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if m.s.topics[m.topic] == m {
		delete(m.s.topics, m.topic)
	}
}

// withdraw removes the announcement if there is one. It runs after the context has ended.
func (m *topicState) withdraw() {
	if !m.announced {
		return
	}
	m.announced = false
	ctx, cancel := context.WithTimeout(context.Background(), withdrawTime)
	defer cancel()
	// An announcement that is not removed expires.
	_ = m.s.o.Node.Unannounce(ctx, m.topic, m.s.pair)
}
