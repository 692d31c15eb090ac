// Package swarm keeps connections to the peers of topics, as the npm package
// hyperswarm does: it announces and looks up, dials who is found, keeps one
// connection with each peer and brings back those that break.
package swarm

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/relay"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
)

// ErrClosed is returned for what a closed swarm no longer does.
var ErrClosed = errors.New("the swarm is closed")

// Options set a [Swarm] up.
type Options struct {
	// Node is the member of the DHT. It is the caller's.
	Node *hyperdht.Node
	// Pair is the swarm's identity; nil means the node's. One key can be listened
	// on once.
	Pair *identity.Pair
	// Allow decides with whom to be connected: asked before dialling, and inside
	// the handshake when dialled. Nil allows everybody. It must not block.
	Allow func(identity.PublicKey) bool
	// Relays are hubs, by their keys, to go through when no direct path leads to a
	// peer, and through which peers may come; see package relay. They are tried in
	// turn.
	Relays []identity.PublicKey
	// Stream sets up connections through relays; those on a path of their own are the
	// node's.
	Stream secretstream.Options
	// MaxPeers bounds the connections; 0 means 64.
	MaxPeers int
	// MaxDials bounds the dials at once; 0 means 3.
	MaxDials int
	// Logger gets what nobody else learns of; nil discards it.
	Logger *slog.Logger
}

const (
	defaultPeers = 64
	defaultDials = 3
	maxKnown     = 4096 // peers that are remembered
	dialTimeout  = 30 * time.Second
	goodTime     = 15 * time.Second // a connection that lasted so long was a good one
	freshTime    = 3 * time.Second  // two connections within it were begun at once
	backlog      = 64
)

// Conn is a connection with a peer of the swarm.
type Conn struct {
	*secretstream.Conn
	began time.Time
}

// Swarm is safe for concurrent use.
type Swarm struct {
	o      Options
	pair   *identity.Pair
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	accept chan *Conn
	wake   chan struct{}

	mu       sync.Mutex
	closed   bool
	listener *hyperdht.Listener
	relays   []*relay.Listener
	topics   map[[32]byte]*meeting
	peers    map[identity.PublicKey]*peer
	conns    map[identity.PublicKey]*Conn
	dials    int
}

// New returns a swarm without topics.
func New(o Options) *Swarm {
	if o.Pair == nil {
		o.Pair = o.Node.Pair()
	}
	if o.MaxPeers == 0 {
		o.MaxPeers = defaultPeers
	}
	if o.MaxDials == 0 {
		o.MaxDials = defaultDials
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	s := &Swarm{
		o: o, pair: o.Pair, log: o.Logger, accept: make(chan *Conn, backlog), wake: make(chan struct{}, 1),
		topics: make(map[[32]byte]*meeting), peers: make(map[identity.PublicKey]*peer), conns: make(map[identity.PublicKey]*Conn),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.schedule)
	return s
}

// Key returns the swarm's public key.
func (s *Swarm) Key() identity.PublicKey { return s.pair.Public() }

// Accept returns the next connection, whoever began it. A connection that the
// peer began may be unconfirmed: see [hyperdht.Listener.Accept].
func (s *Swarm) Accept(ctx context.Context) (*Conn, error) {
	select {
	case c := <-s.accept:
		return c, nil
	case <-s.ctx.Done():
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Connected returns the peers that are connected.
func (s *Swarm) Connected() []identity.PublicKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []identity.PublicKey
	for k := range s.conns {
		all = append(all, k)
	}
	return all
}

// Close leaves all topics, destroys all connections and waits for everything.
func (s *Swarm) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	var meetings []*meeting
	for _, m := range s.topics {
		meetings = append(meetings, m)
	}
	l, relays := s.listener, s.relays
	s.mu.Unlock()
	s.cancel()
	var wg sync.WaitGroup
	for _, m := range meetings {
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
	var open []*Conn
	for _, c := range s.conns {
		open = append(open, c)
	}
	s.mu.Unlock()
	for _, c := range open {
		c.Destroy()
	}
	s.wg.Wait()
	return nil
}

// goBackground runs f unless the swarm is closed; s.mu is held.
func (s *Swarm) goBackground(f func()) bool {
	if s.closed {
		return false
	}
	s.wg.Go(f)
	return true
}

// Listen makes the swarm reachable for peers that know its key, whatever its topics,
// until it closes. It does not wait until they can find it.
func (s *Swarm) Listen() error {
	_, err := s.listen()
	return err
}

// listen makes the swarm reachable, once.
func (s *Swarm) listen() (*hyperdht.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if s.listener != nil {
		return s.listener, nil
	}
	l, err := s.o.Node.Listen(hyperdht.ListenOptions{Pair: s.pair, Access: s.allowed})
	if err != nil {
		return nil, err
	}
	s.listener = l
	s.wg.Go(func() { s.serve(l) })
	for _, key := range s.o.Relays {
		r := relay.Listen(s.o.Node, key, relay.ListenOptions{Pair: s.pair, Access: s.allowed, Stream: s.o.Stream, Logger: s.log})
		s.relays = append(s.relays, r)
		s.wg.Go(func() { s.serve(r) })
	}
	return l, nil
}

func (s *Swarm) allowed(k identity.PublicKey) bool {
	return k != s.pair.Public() && (s.o.Allow == nil || s.o.Allow(k))
}

// serve takes the connections that peers begin.
func (s *Swarm) serve(l interface {
	Accept(context.Context) (*secretstream.Conn, error)
}) {
	for {
		c, err := l.Accept(s.ctx)
		if err != nil {
			return
		}
		s.take(c)
	}
}

// take decides on a connection that a peer has begun. There may be another with
// it: one of ours that is under way, or one that is dead and nobody has noticed.
func (s *Swarm) take(c *secretstream.Conn) {
	key := c.RemoteKey()
	s.mu.Lock()
	old, p := s.conns[key], s.peers[key]
	switch {
	case len(s.conns) >= s.o.MaxPeers && old == nil:
		s.mu.Unlock()
		c.Destroy()
		return
	case old == nil && p != nil && p.cancel != nil && s.larger(key):
		s.mu.Unlock() // both dial: the connection of the larger key stays, which is ours
		c.Destroy()
		return
	case old == nil:
		if p != nil && p.cancel != nil {
			p.cancel()
		}
		added := s.add(c)
		s.mu.Unlock()
		if !added {
			c.Destroy()
		}
		return
	}
	// A handshake can be a recording. Only what has proved itself may replace
	// another connection.
	waits := s.goBackground(func() {
		if err := c.WaitConfirmed(s.ctx); err != nil {
			c.Destroy()
			return
		}
		s.replace(c)
	})
	s.mu.Unlock()
	if !waits {
		c.Destroy()
	}
}

// larger reports whether our key is larger than a peer's.
func (s *Swarm) larger(key identity.PublicKey) bool {
	own := s.pair.Public()
	return slices.Compare(own[:], key[:]) > 0
}

// replace puts a connection, which the peer began and has confirmed, in the place
// of another, unless both were begun at once and the other is to stay.
func (s *Swarm) replace(c *secretstream.Conn) {
	s.mu.Lock()
	old := s.conns[c.RemoteKey()]
	atOnce := old != nil && time.Since(old.began) < freshTime
	if s.closed || atOnce && old.Initiator() && s.larger(c.RemoteKey()) {
		s.mu.Unlock()
		c.Destroy()
		return
	}
	added := s.add(c)
	s.mu.Unlock()
	if !added {
		c.Destroy()
		return
	}
	if old != nil {
		old.Destroy()
	}
}

// add makes c the connection with its peer and hands it out. It reports false if
// nobody takes it: then the caller, who holds s.mu, destroys it afterwards.
func (s *Swarm) add(c *secretstream.Conn) bool {
	if s.closed {
		return false
	}
	conn := &Conn{Conn: c, began: time.Now()}
	select {
	case s.accept <- conn:
	default:
		s.log.Warn("a connection was dropped: nobody accepts them", "peer", c.RemoteKey())
		return false
	}
	s.conns[c.RemoteKey()] = conn
	return s.goBackground(func() { s.follow(conn) })
}

// follow waits for a connection's end and has the peer dialled again.
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
		return // another has taken its place
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

// JoinPeer keeps a connection with a peer whatever its topics.
func (s *Swarm) JoinPeer(key identity.PublicKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.know(key, nil); p != nil {
		p.explicit = true
		s.retrySoon(p)
	}
}

// LeavePeer takes back JoinPeer. The connection, if there is one, stays.
func (s *Swarm) LeavePeer(key identity.PublicKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[key]; p != nil {
		p.explicit = false
	}
}

// found notes a peer that a lookup has brought.
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

// know returns the record of a peer, a new one if there is room; s.mu is held.
func (s *Swarm) know(key identity.PublicKey, relays []netip.AddrPort) *peer {
	p := s.peers[key]
	if p == nil {
		if len(s.peers) >= maxKnown && !s.forget() || s.closed {
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

// forget drops a peer that nothing holds.
func (s *Swarm) forget() bool {
	for k, p := range s.peers {
		if !p.explicit && p.cancel == nil && s.conns[k] == nil {
			delete(s.peers, k)
			return true
		}
	}
	return false
}
