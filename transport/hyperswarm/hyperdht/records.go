package hyperdht

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/parleyhub/parley/transport/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/transport/hyperswarm/keys"
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
	topics    map[dhtrpc.ID]map[keys.PublicKey]struct{}
	peers     *cache[peerKey, peerRecord]
	mutable   *cache[dhtrpc.ID, mutable]
	immutable *cache[dhtrpc.ID, []byte]
	hosts     *hostQuota
}

// route is where a self-announced peer can be reached.
type route struct {
	addr netip.AddrPort
	peer Peer
}

type peerKey struct {
	topic dhtrpc.ID
	key   keys.PublicKey
}

type peerRecord struct {
	peer Peer
	host netip.Addr
}

// hostQuota counts what each host has stored.
type hostQuota struct{ n map[netip.Addr]int }

func (q *hostQuota) add(h netip.Addr) { q.n[h]++ }

func (q *hostQuota) done(h netip.Addr) {
	if q.n[h]--; q.n[h] <= 0 {
		delete(q.n, h)
	}
}

func newStore() *store {
	s := &store{
		forward: newCache[dhtrpc.ID, route](peerLife, maxPeerRecords),
		topics:  make(map[dhtrpc.ID]map[keys.PublicKey]struct{}),
		peers:   newCache[peerKey, peerRecord](peerLife, maxPeerRecords),
		mutable: newCache[dhtrpc.ID, mutable](recordLife, maxRecords), immutable: newCache[dhtrpc.ID, []byte](recordLife, maxRecords),
		hosts: &hostQuota{n: make(map[netip.Addr]int)},
	}
	s.peers.dropped = func(k peerKey, r peerRecord) { s.unlist(k, r) }
	return s
}

// unlist takes a peer out of its topic's index.
func (s *store) unlist(k peerKey, r peerRecord) {
	s.hosts.done(r.host)
	t := s.topics[k.topic]
	delete(t, k.key)
	if len(t) == 0 {
		delete(s.topics, k.topic)
	}
}

// announce puts a peer under a topic. A later announcement replaces an earlier
// one. It reports false if the topic or the host has its share already.
func (s *store) announce(topic dhtrpc.ID, p Peer, host netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := peerKey{topic, p.Key}
	if old, ok := s.peers.get(k); ok {
		s.unlist(k, old)
		s.peers.remove(k)
	}
	if s.hosts.n[host] >= maxPerHost {
		return false
	}
	if len(s.topics[topic]) >= maxPerTopic { // somebody has to go, or a flood keeps all others out
		for key := range s.topics[topic] {
			gone := peerKey{topic, key}
			if r, ok := s.peers.get(gone); ok {
				s.unlist(gone, r)
				s.peers.remove(gone)
			}
			break
		}
	}
	s.peers.keep(k, peerRecord{p, host})
	s.hosts.add(host)
	if s.topics[topic] == nil {
		s.topics[topic] = make(map[keys.PublicKey]struct{})
	}
	s.topics[topic][p.Key] = struct{}{}
	return true
}

func (s *store) unannounce(topic dhtrpc.ID, key keys.PublicKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := peerKey{topic, key}
	if r, ok := s.peers.get(k); ok {
		s.unlist(k, r)
		s.peers.remove(k)
	}
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

func (s *store) setRoute(target dhtrpc.ID, r route) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forward.keep(target, r)
}

func (s *store) removeRoute(target dhtrpc.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forward.remove(target)
}

func (s *store) route(target dhtrpc.ID) (route, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.forward.get(target)
	return r, ok
}

// putMutable stores a record unless a later one, or another of the same version,
// is there. It returns the code to answer with.
func (s *store) putMutable(target dhtrpc.ID, m mutable) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.mutable.get(target); ok {
		switch {
		case old.seq > m.seq:
			return errorSeqTooLow
		case old.seq == m.seq && string(old.value) != string(m.value):
			return errorSeqReused
		}
	}
	s.mutable.keep(target, m)
	return 0
}

func (s *store) getMutable(target dhtrpc.ID) (mutable, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.mutable.get(target)
	if ok {
		s.mutable.keep(target, m)
	}
	return m, ok
}

func (s *store) putImmutable(target dhtrpc.ID, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.immutable.keep(target, value)
}

func (s *store) getImmutable(target dhtrpc.ID) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.immutable.get(target)
	if ok {
		s.immutable.keep(target, v)
	}
	return v, ok
}
