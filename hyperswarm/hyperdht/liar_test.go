package hyperdht_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/identity"
)

// liar is a node of the DHT with a valid id and false answers: it returns as many nodes as a datagram holds,
// which do not exist or are liars as well, invents peers and records, and answers handshakes with random bytes.
type liar struct {
	conn   *hyperswarmtest.Conn
	addr   netip.AddrPort
	others []netip.AddrPort
	rng    *rand.Rand
}

func newLiar(i *internet, at netip.AddrPort, others []netip.AddrPort) *liar {
	l := &liar{conn: i.net.ListenAt(at), addr: at, others: others, rng: rand.New(rand.NewPCG(1, uint64(at.Port())))}
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := l.conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if m, err := dhtrpc.Parse(bytes.Clone(buf[:n])); err == nil && !m.Response {
				l.answer(m, from)
			}
		}
	}()
	return l
}

func (l *liar) nowhere() netip.AddrPort {
	var a [4]byte
	binary.LittleEndian.PutUint32(a[:], l.rng.Uint32())
	a[0] = 11
	return netip.AddrPortFrom(netip.AddrFrom4(a), uint16(1+l.rng.IntN(65535)))
}

func (l *liar) answer(m *dhtrpc.Message, from netip.AddrPort) {
	id, token := dhtrpc.NodeID(l.addr), [32]byte{1}
	r := dhtrpc.Message{Response: true, TID: m.TID, To: from, ID: &id, Token: &token}
	r.Closer = append(r.Closer, l.others...)
	for len(r.Closer) < 20 {
		r.Closer = append(r.Closer, l.nowhere())
	}
	switch {
	case m.Internal:
	case m.Command == lookupCommand: // more peers than the datagram has
		r.Value = dhtrpc.AppendUint(nil, 1_000_000)
		for range 20 {
			key := identity.Generate().Public()
			r.Value = append(r.Value, key[:]...)
			r.Value = dhtrpc.AppendAddrs(r.Value, []netip.AddrPort{l.nowhere()})
		}
	case m.Command == findPeerCommand: // the record of another peer
		key := identity.Generate().Public()
		r.Value = dhtrpc.AppendAddrs(append([]byte(nil), key[:]...), []netip.AddrPort{l.nowhere(), l.addr})
	case m.Command == handshakeCommand:
		r.Value = dhtrpc.AppendBuffer([]byte{0, 4}, make([]byte, 200))
	default: // a record of the highest version with an invalid signature
		r.Value = dhtrpc.AppendUint(nil, dhtrpc.MaxUint)
		r.Value = append(dhtrpc.AppendBuffer(r.Value, []byte("evil")), make([]byte, 64)...)
	}
	data := r.Append(nil)
	_, _ = l.conn.WriteToUDPAddrPort(data, from)
}

// Lying nodes cost bounded time and packets, and do not change which peers and records are found or who is dialled.
func TestLyingNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 8)
		defer i.close()
		ctx := context.Background()
		var liars []netip.AddrPort
		for n := range 4 {
			liars = append(liars, netip.AddrPortFrom(netip.AddrFrom4([4]byte{12, 66, 66, byte(n + 1)}), 6666))
		}
		for _, at := range liars {
			l := newLiar(i, at, liars)
			defer l.conn.Close()
			// All nodes know the liars.
			for _, n := range i.nodes {
				id := dhtrpc.NodeID(at)
				m := dhtrpc.Message{Internal: true, ID: &id, To: n.Public()}
				if _, err := l.conn.WriteToUDPAddrPort(m.Append(nil), n.Public()); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Second) // fake time

		topic, pair := identity.Hash([]byte("topic")), identity.Generate()
		server := i.behind(i.net.NAT("5.5.5.5", hyperswarmtest.Same), "192.168.0.2")
		l := i.serve(server)
		if err := server.Announce(ctx, topic, server.Pair(), l.Relays(), nil); err != nil {
			t.Fatal(err)
		}
		if err := server.PutMutable(ctx, pair, []byte("true"), 7); err != nil {
			t.Fatal(err)
		}
		client := i.behind(i.net.NAT("6.6.6.6", hyperswarmtest.Same), "192.168.0.3")
		var sent atomic.Int64
		i.net.Tap(func(_ []byte, from, _ netip.AddrPort) bool {
			if from.Addr() == netip.MustParseAddr("6.6.6.6") {
				sent.Add(1)
			}
			return true
		})
		bounded := func(what string, f func()) {
			t.Helper()
			began, before := time.Now(), sent.Load()
			f()
			took, packets := time.Since(began), sent.Load()-before
			t.Logf("%s: %v, %d packets", what, took, packets)
			if took > 30*time.Second || packets > 1000 {
				t.Errorf("%s takes %v and %d packets", what, took, packets)
			}
		}
		bounded("a lookup", func() {
			found := false
			if err := client.Lookup(ctx, topic, func(p hyperdht.Peer) bool {
				found = found || p.Key == server.Key()
				return true
			}); err != nil || !found {
				t.Errorf("found: %v, %v", found, err)
			}
		})
		bounded("a record", func() {
			if r, err := client.GetMutable(ctx, pair.Public(), 0); err != nil || string(r.Value) != "true" || r.Seq != 7 {
				t.Errorf("%q of version %d, %v", r.Value, r.Seq, err)
			}
		})
		bounded("a dial", func() {
			c, err := client.Dial(ctx, l.Key(), hyperdht.DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if m, err := c.ReadMessage(); err != nil || string(m) != "welcome" {
				t.Errorf("%q, %v", m, err)
			}
			c.Destroy()
		})
		if n := client.Known(); n > len(i.nodes)+len(liars) {
			t.Errorf("the table has %d nodes, most of which do not exist", n)
		}
	})
}
