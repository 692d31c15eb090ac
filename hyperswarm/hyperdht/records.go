package hyperdht

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/identity"
)

const (
	peerLife   = 20 * time.Minute
	recordLife = 48 * time.Hour

	maxPeerRecords = 65536
	maxPerTopic    = 256
	maxPerHost     = 1024
	maxRecords     = 32768
)

// cache holds a bounded number of entries for two to four thirds of a time. When full, it forgets the older
// half at most. It is not safe for concurrent use.
type cache[K comparable, V any] struct {
	life       time.Duration
	size       int
	young, old map[K]V
	turned     time.Time
	dropped    func(K, V)
}

func newCache[K comparable, V any](life time.Duration, size int) *cache[K, V] {
	return &cache[K, V]{life: life, size: size, young: make(map[K]V), turned: time.Now()}
}

// turn starts a new generation when it is due or the current one is full.
func (c *cache[K, V]) turn() {
	now := time.Now()
	age, period := now.Sub(c.turned), c.life*2/3
	if len(c.young) < c.size/2 && age < period {
		return
	}
	gone := []map[K]V{c.old}
	c.old, c.young, c.turned = c.young, make(map[K]V), now
	if age >= 2*period { // both generations have expired
		gone, c.old = append(gone, c.old), nil
	}
	if c.dropped == nil {
		return
	}
	for _, m := range gone {
		for k, v := range m {
			c.dropped(k, v)
		}
	}
}

func (c *cache[K, V]) get(k K) (V, bool) {
	c.turn()
	if v, ok := c.young[k]; ok {
		return v, true
	}
	v, ok := c.old[k]
	return v, ok
}

// keep stores or renews an entry.
func (c *cache[K, V]) keep(k K, v V) {
	c.turn()
	delete(c.old, k)
	c.young[k] = v
}

func (c *cache[K, V]) remove(k K) {
	delete(c.young, k)
	delete(c.old, k)
}

// store holds what a node stores for others. It is safe for concurrent use.
type store struct {
	mu        sync.Mutex
	forward   *cache[dhtrpc.ID, owned[route]]
	topics    map[dhtrpc.ID]map[identity.PublicKey]struct{}
	peers     *cache[peerKey, owned[Peer]]
	mutable   *cache[dhtrpc.ID, owned[mutable]]
	immutable *cache[dhtrpc.ID, owned[[]byte]]
	hosts     hostQuota
}

// owned is an entry that counts for the host that stored it. An invalid address is the node itself, which
// has no quota.
type owned[V any] struct {
	value V
	host  netip.Addr
}

// route is the address of a self-announced peer.
type route struct {
	addr netip.AddrPort
	peer Peer
}

type peerKey struct {
	topic dhtrpc.ID
	key   identity.PublicKey
}

// hostQuota counts the entries of every kind that each host has stored.
type hostQuota map[netip.Addr]int

func (q hostQuota) full(h netip.Addr) bool { return q[h] >= maxPerHost }

func (q hostQuota) add(h netip.Addr) {
	if h.IsValid() {
		q[h]++
	}
}

func (q hostQuota) done(h netip.Addr) {
	if q[h]--; q[h] <= 0 {
		delete(q, h)
	}
}

func newStore() *store {
	s := &store{topics: make(map[dhtrpc.ID]map[identity.PublicKey]struct{}), hosts: make(hostQuota)}
	s.forward = ownedCache[dhtrpc.ID, route](s, peerLife, maxPeerRecords)
	s.peers = ownedCache[peerKey, Peer](s, peerLife, maxPeerRecords)
	s.mutable = ownedCache[dhtrpc.ID, mutable](s, recordLife, maxRecords)
	s.immutable = ownedCache[dhtrpc.ID, []byte](s, recordLife, maxRecords)
	s.peers.dropped = func(k peerKey, r owned[Peer]) {
		s.hosts.done(r.host)
		s.unlist(k)
	}
	return s
}

// ownedCache returns a cache whose expired entries no longer count for their hosts.
func ownedCache[K comparable, V any](s *store, life time.Duration, size int) *cache[K, owned[V]] {
	c := newCache[K, owned[V]](life, size)
	c.dropped = func(_ K, v owned[V]) { s.hosts.done(v.host) }
	return c
}

// put stores an entry of a host in one of the store's caches. It reports false, and changes nothing, if the
// host's quota is used up; s.mu is held.
func put[K comparable, V any](s *store, c *cache[K, owned[V]], k K, v V, host netip.Addr) bool {
	old, replaces := c.get(k)
	if s.hosts.full(host) && !(replaces && old.host == host) {
		return false
	}
	if replaces {
		s.hosts.done(old.host)
	}
	s.hosts.add(host)
	c.keep(k, owned[V]{v, host})
	return true
}

// drop removes an entry from one of the store's caches; s.mu is held.
func drop[K comparable, V any](s *store, c *cache[K, owned[V]], k K) {
	if old, ok := c.get(k); ok {
		s.hosts.done(old.host)
		c.remove(k)
	}
}

// renewed returns an entry of one of the store's caches and restarts its life.
func renewed[K comparable, V any](s *store, c *cache[K, owned[V]], k K) (V, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := c.get(k)
	if ok {
		c.keep(k, r)
	}
	return r.value, ok
}

// unlist removes a peer from its topic's index.
func (s *store) unlist(k peerKey) {
	t := s.topics[k.topic]
	delete(t, k.key)
	if len(t) == 0 {
		delete(s.topics, k.topic)
	}
}

// announce stores a peer under a topic for a host, or replaces it. It reports false if the host's quota is used up.
func (s *store) announce(topic dhtrpc.ID, p Peer, host netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := peerKey{topic, p.Key}
	if !put(s, s.peers, k, p, host) {
		return false
	}
	t := s.topics[topic]
	if t == nil {
		t = make(map[identity.PublicKey]struct{})
		s.topics[topic] = t
	}
	t[p.Key] = struct{}{}
	if len(t) <= maxPerTopic {
		return true
	}
	for key := range t { // drop a random peer: a flood must not keep new ones out
		if key != p.Key {
			drop(s, s.peers, peerKey{topic, key})
			s.unlist(peerKey{topic, key})
			break
		}
	}
	return true
}

func (s *store) unannounce(topic dhtrpc.ID, key identity.PublicKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	drop(s, s.peers, peerKey{topic, key})
	s.unlist(peerKey{topic, key})
}

// lookup returns some peers of a topic.
func (s *store) lookup(topic dhtrpc.ID) []Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Peer
	for key := range s.topics[topic] {
		if r, ok := s.peers.get(peerKey{topic, key}); ok {
			all = append(all, r.value)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	all = all[:min(len(all), maxPeers)]
	if r, ok := s.forward.get(topic); ok && len(all) < maxPeers {
		all = append(all, r.value.peer)
	}
	return all
}

// setRoute stores a peer's address. It reports false if the host's quota is used up.
func (s *store) setRoute(target dhtrpc.ID, r route) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return put(s, s.forward, target, r, r.addr.Addr())
}

func (s *store) removeRoute(target dhtrpc.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	drop(s, s.forward, target)
}

func (s *store) route(target dhtrpc.ID) (route, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.forward.get(target)
	return r.value, ok
}

// putMutable stores a record for a host. If a later record, or another one of the same version, is stored,
// it returns the error code to answer with. It reports false if the host's quota is used up.
func (s *store) putMutable(target dhtrpc.ID, m mutable, host netip.Addr) (code uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.mutable.get(target); ok {
		switch {
		case old.value.seq > m.seq:
			return errorSeqTooLow, true
		case old.value.seq == m.seq && string(old.value.value) != string(m.value):
			return errorSeqReused, true
		}
	}
	return 0, put(s, s.mutable, target, m, host)
}

func (s *store) getMutable(target dhtrpc.ID) (mutable, bool) {
	return renewed(s, s.mutable, target)
}

// putImmutable stores a value for a host, or renews it for the host that stored it first. It reports false
// if the host's quota is used up.
func (s *store) putImmutable(target dhtrpc.ID, value []byte, host netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.immutable.get(target); ok {
		s.immutable.keep(target, old)
		return true
	}
	return put(s, s.immutable, target, value, host)
}

func (s *store) getImmutable(target dhtrpc.ID) ([]byte, bool) {
	return renewed(s, s.immutable, target)
}
