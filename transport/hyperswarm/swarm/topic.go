package swarm

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/parleyhub/parley/transport/hyperswarm/hyperdht"
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

// Topic is a swarm's membership of a topic. It is safe for concurrent use.
type Topic struct {
	s              *Swarm
	topic          [32]byte
	server, client bool
	cancel         context.CancelFunc
	ctx            context.Context
	refresh        chan struct{}
	flushed        chan struct{}
	done           chan struct{}
	once           sync.Once
	mu             sync.Mutex
	err            error
	announced      bool
}

// Join looks a topic up and announces the swarm under it, as the role says, until
// the topic is left, and again every ten minutes or so. Joining again returns the
// same topic, with the first role. Any 32 bytes are a topic; the DHT's nodes see
// them, and who knows them has no right by that: derive them from a secret.
func (s *Swarm) Join(topic [32]byte, r Role) (*Topic, error) {
	if r&Server != 0 {
		if _, err := s.listen(); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[topic]; t != nil {
		return t, nil
	}
	t := &Topic{
		s: s, topic: topic, server: r&Server != 0, client: r&Client != 0,
		refresh: make(chan struct{}, 1), flushed: make(chan struct{}), done: make(chan struct{}),
	}
	t.ctx, t.cancel = context.WithCancel(s.ctx)
	if !s.goBackground(t.run) {
		t.cancel()
		return nil, ErrClosed
	}
	s.topics[topic] = t
	return t, nil
}

// Flushed waits until the first lookup, and announcement, is done.
func (t *Topic) Flushed(ctx context.Context) error {
	select {
	case <-t.flushed:
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.err
	case <-t.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Refresh looks up and announces now, e.g. because the network has changed.
func (t *Topic) Refresh() {
	select {
	case t.refresh <- struct{}{}:
	default:
	}
}

// Leave takes the announcement back and waits for that, a few seconds at most.
// Connections stay.
func (t *Topic) Leave() {
	t.cancel()
	<-t.done
}

func (t *Topic) run() {
	defer close(t.done)
	defer t.leave()
	for {
		err := t.round()
		if t.ctx.Err() != nil {
			return
		}
		t.mu.Lock()
		t.err = err
		t.mu.Unlock()
		t.once.Do(func() { close(t.flushed) })
		wait := refreshTime + rand.N(refreshJitter)
		if err != nil {
			t.s.log.Debug("a topic cannot be refreshed", "error", err)
			wait = retryTime
		}
		timer := time.NewTimer(wait)
		select {
		case <-t.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-t.refresh:
			timer.Stop()
		}
	}
}

// round is one lookup, and announcement.
func (t *Topic) round() error {
	found := func(p hyperdht.Peer) bool {
		if t.client {
			t.s.found(t.topic, p)
		}
		return true
	}
	if !t.server {
		return t.s.o.Node.Lookup(t.ctx, t.topic, found)
	}
	l, err := t.s.listen()
	if err != nil {
		return err
	}
	if err := l.WaitAnnounced(t.ctx); err != nil {
		return err
	}
	t.mu.Lock()
	t.announced = true
	t.mu.Unlock()
	return t.s.o.Node.Announce(t.ctx, t.topic, t.s.pair, l.Relays(), found)
}

// leave takes back what round did.
func (t *Topic) leave() {
	t.s.mu.Lock()
	delete(t.s.topics, t.topic)
	t.s.mu.Unlock()
	t.mu.Lock()
	announced := t.announced
	t.mu.Unlock()
	if !announced {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), withdrawTime)
	defer cancel()
	// What cannot be taken back expires.
	_ = t.s.o.Node.Unannounce(ctx, t.topic, t.s.pair)
}
