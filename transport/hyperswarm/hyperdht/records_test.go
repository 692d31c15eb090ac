package hyperdht

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/transport/hyperswarm/keys"
)

func numbered(n int) (k [32]byte) {
	k[0], k[1], k[2] = byte(n), byte(n>>8), byte(n>>16)
	return k
}

// However much is announced, what a node keeps stays within its limits.
func TestFloodOfAnnouncements(t *testing.T) {
	s := newStore()
	one := netip.MustParseAddr("7.7.7.7")
	for n := range 5000 {
		s.announce(numbered(n/10), Peer{Key: keys.PublicKey(numbered(n))}, one)
	}
	if got := s.hosts.n[one]; got != maxPerHost {
		t.Errorf("one host has %d entries", got)
	}
	topic := numbered(1 << 20)
	for n := range 2000 {
		host := netip.AddrFrom4([4]byte{8, 8, byte(n >> 8), byte(n)})
		if !s.announce(topic, Peer{Key: keys.PublicKey(numbered(n))}, host) {
			t.Fatalf("announcement %d of a host of its own was refused", n)
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
		s.announce(numbered(n), Peer{Key: keys.PublicKey(numbered(n))}, host)
	}
	if got := len(s.peers.young) + len(s.peers.old); got > maxPeerRecords {
		t.Errorf("%d records are kept", got)
	}
	if len(s.topics) > maxPeerRecords || len(s.hosts.n) > maxPeerRecords {
		t.Errorf("%d topics and %d hosts are remembered", len(s.topics), len(s.hosts.n))
	}
}

func TestCachesForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache[int, string](time.Hour, 10)
		c.keep(1, "one")
		time.Sleep(30 * time.Minute) // of the bubble
		if v, ok := c.get(1); !ok || v != "one" {
			t.Error("half the life is too long")
		}
		time.Sleep(3 * time.Hour)
		if _, ok := c.get(1); ok {
			t.Error("three lives are not enough")
		}
		for n := range 100 {
			c.keep(n, "x")
		}
		if n := len(c.young) + len(c.old); n > 10 {
			t.Errorf("%d entries are kept", n)
		}
	})
}

func TestALaterAnnouncementReplacesAnEarlierOne(t *testing.T) {
	s := newStore()
	topic, host := numbered(1), netip.MustParseAddr("7.7.7.7")
	for _, port := range []uint16{1, 2} {
		s.announce(topic, Peer{Key: keys.PublicKey(numbered(5)), Relays: []netip.AddrPort{netip.AddrPortFrom(host, port)}}, host)
	}
	all := s.lookup(topic)
	if len(all) != 1 || all[0].Relays[0].Port() != 2 || s.hosts.n[host] != 1 {
		t.Errorf("got %+v, and %d entries for the host", all, s.hosts.n[host])
	}
	s.unannounce(topic, keys.PublicKey(numbered(5)))
	if len(s.lookup(topic)) != 0 || len(s.topics) != 0 || len(s.hosts.n) != 0 {
		t.Error("something is left")
	}
}
