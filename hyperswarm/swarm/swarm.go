// Package swarm keeps connections to the peers of topics, like the npm package hyperswarm: it announces topics and
// looks them up, dials the peers found, keeps one connection to each peer and redials when it breaks.
package swarm

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/relay"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
)

// ErrClosed reports that the swarm, or the topic's membership, is closed.
var ErrClosed = errors.New("the swarm is closed")

// Options configure a [Swarm].
type Options struct {
	// Node is the DHT node. It stays the caller's.
	Node *hyperdht.Node
	// Pair is the swarm's identity; nil means the node's. A node can have one listener for each key.
	Pair *identity.Pair
	// Allow decides which peers to dial, and which may connect; nil allows everyone.
	Allow identity.Allow
	// Relays are the keys of relays, tried in order when there is no direct path to a peer. Peers can
	// connect through them as well; see package relay.
	Relays []identity.PublicKey
	// Stream configures connections through relays; direct ones are configured by the node.
	Stream secretstream.Options
	// MaxPeers bounds the connections; 0 means 64.
	MaxPeers int
	// MaxDials bounds the concurrent dials; 0 means 3.
	MaxDials int
	// Logger receives failures that no call returns; nil discards them.
	Logger *slog.Logger
}

const (
	defaultPeers = 64
	defaultDials = 3
	maxKnown     = 4096 // peers remembered
	dialTimeout  = 30 * time.Second
	goodTime     = 15 * time.Second // a connection that lasted this long resets the attempts
	freshTime    = 3 * time.Second  // connections begun within this time count as simultaneous
	maxWaiting   = 64               // connections that wait for Accept
)

// Conn is a connection to a peer of the swarm.
type Conn struct {
	*secretstream.Conn
	began time.Time
}

// Swarm keeps connections to the peers of topics. It is safe for concurrent use.
type Swarm struct {
	o     Options
	pair  *identity.Pair
	log   *slog.Logger
	queue *wait.Backlog[*Conn]
	ctx   context.Context // of queue
	wake  chan struct{}

	mu       sync.Mutex
	listener *hyperdht.Listener
	relays   []*relay.Listener
	topics   map[[32]byte]*topicState
	peers    map[identity.PublicKey]*peer
	conns    map[identity.PublicKey]*Conn
	dials    int
}

// New returns a swarm without topics.
func New(o Options) *Swarm {
	o.Pair = cmp.Or(o.Pair, o.Node.Pair())
	o.MaxPeers, o.MaxDials = cmp.Or(o.MaxPeers, defaultPeers), cmp.Or(o.MaxDials, defaultDials)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	s := &Swarm{
		o: o, pair: o.Pair, log: o.Logger, wake: make(chan struct{}, 1),
		topics: make(map[[32]byte]*topicState), peers: make(map[identity.PublicKey]*peer), conns: make(map[identity.PublicKey]*Conn),
	}
	s.queue = wait.NewBacklog(context.Background(), maxWaiting, func(c *Conn) { c.Destroy() }, func() error { return ErrClosed })
	s.ctx = s.queue.Context()
	s.queue.Go(s.schedule)
	return s
}

// Key returns the swarm's public key.
func (s *Swarm) Key() identity.PublicKey { return s.pair.Public() }

// Accept returns the next connection, dialled or accepted. An accepted connection may be unconfirmed: see
// [hyperdht.Listener.Accept].
func (s *Swarm) Accept(ctx context.Context) (*Conn, error) { return s.queue.Accept(ctx) }

// Connected returns the connected peers.
func (s *Swarm) Connected() []identity.PublicKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.conns))
}

// Close leaves all topics, destroys all connections and waits for all goroutines.
func (s *Swarm) Close() error {
	s.mu.Lock()
	if !s.queue.Stop() { // with the lock: Join and Listen check it, and then start goroutines that Close waits for
		s.mu.Unlock()
		return nil
	}
	topics := slices.Collect(maps.Values(s.topics))
	l, relays := s.listener, s.relays
	s.mu.Unlock()
	s.queue.End()
	var wg sync.WaitGroup
	for _, m := range topics {
		wg.Go(func() { <-m.done })
	}
	if l != nil {
		wg.Go(func() { _ = l.Close() }) // it always succeeds
	}
	for _, r := range relays {
		wg.Go(func() { _ = r.Close() }) // it always succeeds
	}
	wg.Wait()
	s.mu.Lock()
	open := slices.Collect(maps.Values(s.conns))
	s.mu.Unlock()
	for _, c := range open {
		c.Destroy()
	}
	s.queue.Close()
	return nil
}

// Listen makes the swarm reachable by its key, even without a topic, until it closes. It does not wait
// until peers can find it.
func (s *Swarm) Listen() error {
	_, err := s.listen()
	return err
}

// listen starts the listeners, once.
func (s *Swarm) listen() (*hyperdht.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue.Stopped() {
		return nil, ErrClosed
	}
	if s.listener != nil {
		return s.listener, nil
	}
	l, err := s.o.Node.Listen(hyperdht.ListenOptions{Pair: s.pair, Allow: s.allowed})
	if err != nil {
		return nil, err
	}
	s.listener = l
	s.queue.Go(func() { s.serve(l) })
	for _, key := range s.o.Relays {
		r := relay.Listen(s.o.Node, key, relay.ListenOptions{Pair: s.pair, Allow: s.allowed, Stream: s.o.Stream, Logger: s.log})
		s.relays = append(s.relays, r)
		s.queue.Go(func() { s.serve(r) })
	}
	return l, nil
}

func (s *Swarm) allowed(k identity.PublicKey) bool {
	return k != s.pair.Public() && (s.o.Allow == nil || s.o.Allow(k))
}

// serve handles the connections that peers begin.
func (s *Swarm) serve(l interface {
	Accept(context.Context) (*secretstream.Conn, error)
}) {
	for {
		c, err := l.Accept(s.ctx)
		if err != nil {
			return
		}
		if !s.incoming(c) {
			c.Destroy()
		}
	}
}

// incoming decides whether to keep a connection that a peer began; otherwise the caller destroys it. There
// may be another one to the peer: a dial under way, or a connection that broke unnoticed.
func (s *Swarm) incoming(c *secretstream.Conn) bool {
	key := c.RemoteKey()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[key]
	dials := p != nil && p.cancel != nil
	switch {
	case s.conns[key] != nil:
		// A handshake may be a recording: only a confirmed connection may replace another.
		return s.queue.Go(func() {
			if c.WaitConfirmed(s.ctx) != nil || !s.replace(c) {
				c.Destroy()
			}
		})
	case len(s.conns) >= s.o.MaxPeers:
		return false
	case dials && s.larger(key):
		return false // both dial: the larger key's connection, our own, is kept
	case dials:
		p.cancel()
	}
	return s.add(c)
}

// larger reports whether our key is larger than a peer's.
func (s *Swarm) larger(key identity.PublicKey) bool {
	own := s.pair.Public()
	return slices.Compare(own[:], key[:]) > 0
}

// replace replaces the connection to a peer by a confirmed one that the peer began, and reports whether it
// did: not if both were begun simultaneously and the other one is kept.
func (s *Swarm) replace(c *secretstream.Conn) bool {
	s.mu.Lock()
	old := s.conns[c.RemoteKey()]
	atOnce := old != nil && time.Since(old.began) < freshTime
	added := !(atOnce && old.Initiator() && s.larger(c.RemoteKey())) && s.add(c)
	s.mu.Unlock()
	if added && old != nil {
		old.Destroy()
	}
	return added
}

// add makes c the connection to its peer and delivers it. If it reports false, the caller, who holds s.mu,
// destroys c after unlocking.
func (s *Swarm) add(c *secretstream.Conn) bool {
	if s.queue.Stopped() {
		return false
	}
	conn := &Conn{Conn: c, began: time.Now()}
	if !s.queue.Offer(conn) {
		s.log.Warn("the backlog of connections is full: a connection was dropped", "peer", c.RemoteKey())
		return false
	}
	s.conns[c.RemoteKey()] = conn
	return s.queue.Go(func() { s.follow(conn) })
}

// follow waits for a connection's end and schedules the next dial.
func (s *Swarm) follow(c *Conn) {
	select {
	case <-c.Done():
	case <-c.Ended():
		c.Destroy()
	}
	key := c.RemoteKey()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns[key] != c {
		return // another one has replaced it
	}
	delete(s.conns, key)
	p := s.peers[key]
	if p == nil {
		return
	}
	if time.Since(c.began) >= goodTime {
		p.attempts = 0
	}
	p.proven = true
	s.retry(p)
}

// JoinPeer keeps a connection to a peer, even without a common topic.
func (s *Swarm) JoinPeer(key identity.PublicKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.know(key, nil); p != nil {
		p.explicit = true
		s.retrySoon(p)
	}
}

// LeavePeer undoes JoinPeer. An existing connection stays open.
func (s *Swarm) LeavePeer(key identity.PublicKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[key]; p != nil {
		p.explicit = false
	}
}

// found records a peer that a lookup has found.
func (s *Swarm) found(topic [32]byte, found hyperdht.Peer) {
	if !s.allowed(found.Key) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.know(found.Key, found.Relays)
	if p == nil {
		return
	}
	p.topics[topic] = struct{}{}
	s.retrySoon(p)
}

// know returns the record of a peer, creating it if there is room; s.mu is held.
func (s *Swarm) know(key identity.PublicKey, relays []netip.AddrPort) *peer {
	p := s.peers[key]
	if p == nil {
		if len(s.peers) >= maxKnown && !s.forget() || s.queue.Stopped() {
			return nil
		}
		p = &peer{key: key, topics: make(map[[32]byte]struct{})}
		s.peers[key] = p
	}
	if len(relays) > 0 {
		p.relays = relays
	}
	return p
}

// forget drops the record of one unused peer and reports whether there was one.
func (s *Swarm) forget() bool {
	for k, p := range s.peers {
		if !p.explicit && p.cancel == nil && s.conns[k] == nil {
			delete(s.peers, k)
			return true
		}
	}
	return false
}
