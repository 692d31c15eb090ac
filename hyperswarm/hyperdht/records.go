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

// cache holds a set number of entries for a while. Half of them at most is
// forgotten at once: entries live two to four thirds of the life. It is not safe
// for concurrent use.
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

// turn makes the young old when it is time or there are too many.
func (c *cache[K, V]) turn() {
	now := time.Now()
	age, period := now.Sub(c.turned), c.life*2/3
	if len(c.young) < c.size/2 && age < period {
		return
	}
	gone := []map[K]V{c.old}
	c.old, c.young, c.turned = c.young, make(map[K]V), now
	if age >= 2*period { // nobody asked for long
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

// keep moves an entry to the young: what is read stays.
func (c *cache[K, V]) keep(k K, v V) {
	c.turn()
	delete(c.old, k)
	c.young[k] = v
}

func (c *cache[K, V]) remove(k K) {
	delete(c.young, k)
	delete(c.old, k)
}

// store is what a node keeps for others. It is safe for concurrent use.
type store struct {
	mu        sync.Mutex
	forward   *cache[dhtrpc.ID, route]
	topics    map[dhtrpc.ID]map[identity.PublicKey]struct{}
	peers     *cache[peerKey, peerRecord]
	mutable   *cache[dhtrpc.ID, mutableRecord]
	immutable *cache[dhtrpc.ID, immutableRecord]
	hosts     hostQuota
}

// owned is an entry that counts for the host that stored it. An invalid address is the
// node itself, which counts for nobody.
type owned interface{ owner() netip.Addr }

// route is where a self-announced peer can be reached.
type route struct {
	addr netip.AddrPort
	peer Peer
}

func (r route) owner() netip.Addr { return r.addr.Addr() }

type peerKey struct {
	topic dhtrpc.ID
	key   identity.PublicKey
}

type peerRecord struct {
	peer Peer
	host netip.Addr
}

func (r peerRecord) owner() netip.Addr { return r.host }

type mutableRecord struct {
	mutable
	host netip.Addr
}

func (r mutableRecord) owner() netip.Addr { return r.host }

type immutableRecord struct {
	value []byte
	host  netip.Addr
}

func (r immutableRecord) owner() netip.Addr { return r.host }

// hostQuota counts what each host has stored, of every kind.
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
	s := &store{
		forward: newCache[dhtrpc.ID, route](peerLife, maxPeerRecords),
		topics:  make(map[dhtrpc.ID]map[identity.PublicKey]struct{}),
		peers:   newCache[peerKey, peerRecord](peerLife, maxPeerRecords),
		mutable: newCache[dhtrpc.ID, mutableRecord](recordLife, maxRecords), immutable: newCache[dhtrpc.ID, immutableRecord](recordLife, maxRecords),
		hosts: make(hostQuota),
	}
	s.peers.dropped = func(k peerKey, r peerRecord) {
		s.hosts.done(r.host)
		s.unlist(k)
	}
	s.forward.dropped = func(_ dhtrpc.ID, r route) { s.hosts.done(r.owner()) }
	s.mutable.dropped = func(_ dhtrpc.ID, r mutableRecord) { s.hosts.done(r.host) }
	s.immutable.dropped = func(_ dhtrpc.ID, r immutableRecord) { s.hosts.done(r.host) }
	return s
}

// put keeps an entry in one of the store's caches, in the place of what is there. It
// reports false, and changes nothing, if the entry's host has its share already; s.mu
// is held.
func put[K comparable, V owned](s *store, c *cache[K, V], k K, v V) bool {
	old, replaces := c.get(k)
	if s.hosts.full(v.owner()) && !(replaces && old.owner() == v.owner()) {
		return false
	}
	if replaces {
		s.hosts.done(old.owner())
	}
	s.hosts.add(v.owner())
	c.keep(k, v)
	return true
}

// drop takes an entry out of one of the store's caches; s.mu is held.
func drop[K comparable, V owned](s *store, c *cache[K, V], k K) {
	if old, ok := c.get(k); ok {
		s.hosts.done(old.owner())
		c.remove(k)
	}
}

// unlist takes a peer out of its topic's index.
func (s *store) unlist(k peerKey) {
	t := s.topics[k.topic]
	delete(t, k.key)
	if len(t) == 0 {
		delete(s.topics, k.topic)
	}
}

// announce puts a peer under a topic, for a host. A later announcement replaces an
// earlier one. It reports false if the host has its share already.
func (s *store) announce(topic dhtrpc.ID, p Peer, host netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := peerKey{topic, p.Key}
	if !put(s, s.peers, k, peerRecord{p, host}) {
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
	for key := range t { // somebody has to go, or a flood keeps all others out
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
			all = append(all, r.peer)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	all = all[:min(len(all), maxPeers)]
	if r, ok := s.forward.get(topic); ok && len(all) < maxPeers {
		all = append(all, r.peer)
	}
	return all
}

// setRoute notes where a peer is. It reports false if the host has its share already.
func (s *store) setRoute(target dhtrpc.ID, r route) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return put(s, s.forward, target, r)
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
	return r, ok
}

// putMutable stores a record for a host unless a later one, or another of the same
// version, is there: then it returns the code to answer with. It reports false if the
// host has its share already.
func (s *store) putMutable(target dhtrpc.ID, m mutable, host netip.Addr) (code uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.mutable.get(target); ok {
		switch {
		case old.seq > m.seq:
			return errorSeqTooLow, true
		case old.seq == m.seq && string(old.value) != string(m.value):
			return errorSeqReused, true
		}
	}
	return 0, put(s, s.mutable, target, mutableRecord{m, host})
}

func (s *store) getMutable(target dhtrpc.ID) (mutable, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.mutable.get(target)
	if ok {
		s.mutable.keep(target, r)
	}
	return r.mutable, ok
}

// putImmutable stores a value for a host. It reports false if the host has its share
// already. A value that is there stays whoever stores it again.
func (s *store) putImmutable(target dhtrpc.ID, value []byte, host netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.immutable.get(target); ok {
		s.immutable.keep(target, old)
		return true
	}
	return put(s, s.immutable, target, immutableRecord{value, host})
}

func (s *store) getImmutable(target dhtrpc.ID) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.immutable.get(target)
	if ok {
		s.immutable.keep(target, r)
	}
	return r.value, ok
}
