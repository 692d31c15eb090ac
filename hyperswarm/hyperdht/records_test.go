package hyperdht

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/identity"
)

func numbered(n int) (k [32]byte) {
	k[0], k[1], k[2] = byte(n), byte(n>>8), byte(n>>16)
	return k
}

// A flood of announcements does not exceed the store's limits.
//
// WIRE-ANNOUNCE-FLOOD.
func TestFloodOfAnnouncements(t *testing.T) {
	s := newStore()
	one := netip.MustParseAddr("7.7.7.7")
	for n := range 5000 {
		s.announce(numbered(n/10), Peer{Key: identity.PublicKey(numbered(n))}, one)
	}
	if got := s.hosts[one]; got != maxPerHost {
		t.Errorf("one host has %d entries", got)
	}
	topic := numbered(1 << 20)
	for n := range 2000 {
		host := netip.AddrFrom4([4]byte{8, 8, byte(n >> 8), byte(n)})
		if !s.announce(topic, Peer{Key: identity.PublicKey(numbered(n))}, host) {
			t.Fatalf("announcement %d, from a new host, was refused", n)
		}
	}
	if got := len(s.topics[topic]); got != maxPerTopic {
		t.Errorf("one topic has %d peers", got)
	}
	if got := s.lookup(topic); len(got) != maxPeers {
		t.Errorf("a lookup returns %d peers", len(got))
	}
	for n := range 200_000 {
		host := netip.AddrFrom4([4]byte{9, byte(n >> 16), byte(n >> 8), byte(n)})
		s.announce(numbered(n), Peer{Key: identity.PublicKey(numbered(n))}, host)
	}
	if got := len(s.peers.young) + len(s.peers.old); got > maxPeerRecords {
		t.Errorf("%d records are stored", got)
	}
	if len(s.topics) > maxPeerRecords || len(s.hosts) > maxPeerRecords {
		t.Errorf("%d topics and %d hosts are stored", len(s.topics), len(s.hosts))
	}
}

func TestCacheEntriesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache[int, string](time.Hour, 10)
		c.keep(1, "one")
		time.Sleep(30 * time.Minute) // fake time
		if v, ok := c.get(1); !ok || v != "one" {
			t.Error("an entry expired after half its life")
		}
		time.Sleep(3 * time.Hour)
		if _, ok := c.get(1); ok {
			t.Error("an entry has not expired after three times its life")
		}
		for n := range 100 {
			c.keep(n, "x")
		}
		if n := len(c.young) + len(c.old); n > 10 {
			t.Errorf("%d entries are stored", n)
		}
	})
}

func TestLaterAnnouncementReplacesEarlierOne(t *testing.T) {
	s := newStore()
	topic, host := numbered(1), netip.MustParseAddr("7.7.7.7")
	for _, port := range []uint16{1, 2} {
		s.announce(topic, Peer{Key: identity.PublicKey(numbered(5)), Relays: []netip.AddrPort{netip.AddrPortFrom(host, port)}}, host)
	}
	all := s.lookup(topic)
	if len(all) != 1 || all[0].Relays[0].Port() != 2 || s.hosts[host] != 1 {
		t.Errorf("got %+v, and %d entries for the host", all, s.hosts[host])
	}
	s.unannounce(topic, identity.PublicKey(numbered(5)))
	if len(s.lookup(topic)) != 0 || len(s.topics) != 0 || len(s.hosts) != 0 {
		t.Error("the store is not empty")
	}
}

// The limit of a host counts all kinds of entries, so that one host cannot evict the entries of others. Entries
// of the node itself do not count.
//
// WIRE-ANNOUNCE-FLOOD.
func TestHostLimitCountsAllKinds(t *testing.T) {
	one, other := netip.MustParseAddr("7.7.7.7"), netip.MustParseAddr("8.8.8.8")
	for kind, put := range map[string]func(s *store, n int, host netip.Addr) bool{
		"routes": func(s *store, n int, host netip.Addr) bool {
			return s.setRoute(numbered(n), route{addr: netip.AddrPortFrom(host, 1)})
		},
		"topics": func(s *store, n int, host netip.Addr) bool {
			return s.announce(numbered(n/2), Peer{Key: identity.PublicKey(numbered(n))}, host)
		},
		"mutable": func(s *store, n int, host netip.Addr) bool {
			code, ok := s.putMutable(numbered(n), mutable{seq: 1, value: []byte("v")}, host)
			return code == 0 && ok
		},
		"immutable": func(s *store, n int, host netip.Addr) bool { return s.putImmutable(numbered(n), []byte("v"), host) },
	} {
		t.Run(kind, func(t *testing.T) {
			s := newStore()
			for n := range 2 * maxPerHost {
				if got, want := put(s, n, one), n < maxPerHost; got != want {
					t.Fatalf("entry %d was stored: %v", n, got)
				}
			}
			for again, host := range []netip.Addr{one, netip.Addr{}, other} {
				if !put(s, again, host) { // existing entries may be renewed, also by other hosts
					t.Errorf("%v cannot renew an entry", host)
				}
			}
			if !put(s, 1<<20, other) || !put(s, 1<<20+1, netip.Addr{}) {
				t.Error("the limit of one host affects another")
			}
			if s.hosts[one] > maxPerHost || s.hosts[other] == 0 || s.hosts[netip.Addr{}] != 0 {
				t.Errorf("the counts are %v", s.hosts)
			}
		})
	}
}

// Expired entries do not count towards the limit of a host.
func TestExpiredEntriesDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, host := newStore(), netip.MustParseAddr("7.7.7.7")
		for n := range maxPerHost {
			s.putImmutable(numbered(n), []byte("v"), host)
		}
		if s.setRoute(numbered(0), route{addr: netip.AddrPortFrom(host, 1)}) {
			t.Fatal("the limit of the host is not reached")
		}
		time.Sleep(2 * recordLife) // fake time
		s.getImmutable(numbered(0))
		if len(s.hosts) != 0 || !s.setRoute(numbered(0), route{addr: netip.AddrPortFrom(host, 1)}) {
			t.Errorf("the counts are %v", s.hosts)
		}
		s.removeRoute(numbered(0))
		if len(s.hosts) != 0 {
			t.Errorf("the counts are %v", s.hosts)
		}
	})
}
