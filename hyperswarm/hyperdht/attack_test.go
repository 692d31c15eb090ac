package hyperdht_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
)

// The commands' numbers in the protocol.
const (
	handshakeCommand = 0
	findPeerCommand  = 2
	lookupCommand    = 3
	announceCommand  = 4
	putCommand       = 6

	putImmutableCommand = 8
)

// attacker is a socket on the simulated network that sends any datagrams.
type attacker struct {
	t    *testing.T
	conn *hyperswarmtest.Conn
	addr netip.AddrPort
	got  chan *dhtrpc.Message
}

func newAttacker(t *testing.T, i *internet, at string) *attacker {
	a := &attacker{t: t, conn: i.net.Listen(at), addr: netip.MustParseAddrPort(at), got: make(chan *dhtrpc.Message, 10_000)}
	t.Cleanup(func() { a.conn.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, _, err := a.conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if m, err := dhtrpc.Parse(bytes.Clone(buf[:n])); err == nil {
				a.got <- m
			}
		}
	}()
	return a
}

func (a *attacker) send(to netip.AddrPort, m dhtrpc.Message) {
	a.t.Helper()
	if _, err := a.conn.WriteToUDPAddrPort(m.Append(nil), to); err != nil {
		a.t.Fatal(err)
	}
}

// settle waits until everything in progress has happened, and drops the datagrams received.
func (a *attacker) settle() (count int) {
	time.Sleep(time.Second) // fake time
	synctest.Wait()
	for {
		select {
		case <-a.got:
			count++
		default:
			return count
		}
	}
}

// ask sends a message and returns its answer, or nil if there is none.
func (a *attacker) ask(to netip.AddrPort, m dhtrpc.Message) *dhtrpc.Message {
	a.t.Helper()
	a.send(to, m)
	time.Sleep(time.Second) // fake time
	synctest.Wait()
	select {
	case r := <-a.got:
		return r
	default:
		return nil
	}
}

// token requests a token from a node.
func (a *attacker) token(to netip.AddrPort) (token, id *[32]byte) {
	a.t.Helper()
	r := a.ask(to, dhtrpc.Message{Command: lookupCommand, Target: &[32]byte{}})
	if r == nil || r.Token == nil {
		a.t.Fatal("the node returned no token")
	}
	return r.Token, r.ID
}

// handshakeMessage is a client's first message to the owner of a key.
func handshakeMessage(t *testing.T, from *identity.Pair, to identity.PublicKey) []byte {
	t.Helper()
	i, err := secretstream.NewInitiator(from, to)
	if err != nil {
		t.Fatal(err)
	}
	payload := []byte{1, 24, 0, 1, 1, 0, 7, 0, 1} // open, stream 7
	msg, err := i.Message(payload)
	if err != nil {
		t.Fatal(err)
	}
	return dhtrpc.AppendBuffer([]byte{0, 0}, msg)
}

// A recorded handshake that is replayed opens no connection and does not affect the existing one.
//
// WIRE-T14.
func TestReplayedHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 6)
		defer i.close()
		server := i.public(netip.MustParseAddrPort("9.1.1.1:49737"))
		l, err := server.Listen(hyperdht.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.WaitAnnounced(context.Background()); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var recorded *dhtrpc.Message
		i.net.Tap(func(data []byte, _, to netip.AddrPort) bool {
			mu.Lock()
			defer mu.Unlock()
			if m, err := dhtrpc.Parse(bytes.Clone(data)); err == nil && !m.Response && !m.Internal && m.Command == handshakeCommand && to == server.Public() {
				recorded = m
			}
			return true
		})
		client := i.behind(i.net.NAT("5.5.5.5", hyperswarmtest.Same), "192.168.0.2")
		conn, err := client.Dial(context.Background(), l.Key(), hyperdht.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		live, err := l.Accept(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		mallory := newAttacker(t, i, "7.7.7.7:7")
		for _, wait := range []time.Duration{time.Second, 12 * time.Second, 5 * time.Minute} {
			time.Sleep(wait) // fake time
			mu.Lock()
			replay := *recorded
			mu.Unlock()
			mallory.send(server.Public(), replay)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			if c, err := l.Accept(ctx); err == nil {
				t.Errorf("after %v a replay made a connection with %v", wait, c.RemoteKey())
			}
			cancel()
		}
		if err := conn.WriteMessage([]byte("still here")); err != nil {
			t.Fatal(err)
		}
		if m, err := live.ReadMessage(); err != nil || string(m) != "still here" {
			t.Errorf("the live connection: %q, %v", m, err)
		}
		conn.Destroy()
	})
}

// Handshakes of one host whose peer never answers are bounded, and their streams are freed.
//
// WIRE-HANDSHAKE-FLOOD.
func TestFloodOfHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 4)
		defer i.close()
		server := i.public(netip.MustParseAddrPort("9.1.1.1:49737"))
		l := i.serve(server)
		key := l.Key()
		target := identity.Hash(key[:])
		mallory := newAttacker(t, i, "7.7.7.7:7")
		const flood = 300
		for n := range flood {
			mallory.send(server.Public(), dhtrpc.Message{TID: uint16(n), Command: handshakeCommand, Target: &target, Value: handshakeMessage(t, identity.Generate(), key)})
		}
		if answered := mallory.settle(); answered == 0 || answered > 60 {
			t.Errorf("%d of %d handshakes of one host were answered", answered, flood)
		}
		// Other peers still connect.
		conn, err := i.behind(i.net.NAT("5.5.5.5", hyperswarmtest.Same), "192.168.0.2").Dial(context.Background(), key, hyperdht.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		conn.Destroy()
		time.Sleep(time.Minute) // fake time
		if n := server.Streams(); n != 0 {
			t.Errorf("%d streams are left", n)
		}
	})
}

// A flood may name a new client in each message (as a relay does), or forge source addresses. In the first case
// other peers still connect; in the second, peers that have connected before do.
//
// WIRE-HANDSHAKE-FLOOD.
func TestFloodOfForwardedAndForgedHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 4)
		defer i.close()
		at := netip.MustParseAddrPort("9.1.1.1:49737")
		server := i.node(hyperdht.Options{Listen: at, Public: at, HandshakeRate: 1}, func(at netip.AddrPort) (udx.PacketConn, error) { return i.net.ListenAt(at), nil })
		l := i.serve(server)
		key := l.Key()
		target := identity.Hash(key[:])
		dial := func(n *hyperdht.Node) {
			t.Helper()
			conn, err := n.Dial(context.Background(), key, hyperdht.DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.ReadMessage(); err != nil {
				t.Error(err)
			}
			conn.Destroy()
		}
		friend := i.behind(i.net.NAT("6.6.6.6", hyperswarmtest.Same), "192.168.0.2")
		dial(friend)
		mallory := newAttacker(t, i, "7.7.7.7:7")
		msg := handshakeMessage(t, identity.Generate(), key)
		forwarded := func(n int, client netip.Addr) dhtrpc.Message {
			m := bytes.Clone(msg)
			m[0], m[1] = 1, 2                              // the client's address follows; from a relay
			m[len(m)-1], m[len(m)-2] = byte(n), byte(n>>8) // another message each time
			return dhtrpc.Message{TID: uint16(n), Command: handshakeCommand, Target: &target, Value: dhtrpc.AppendAddr(m, netip.AddrPortFrom(client, 5))}
		}
		numbered := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{8, 1, byte(n >> 8), byte(n)}) }
		// flood sends messages at an interval until the other peers have dialled.
		flood := func(every time.Duration, send func(n int), others func()) {
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					send(n)
					time.Sleep(every) // fake time
				}
			})
			time.Sleep(10 * time.Second) // fake time: saved allowances are used up
			others()
		}
		var strangers []*hyperdht.Node
		for n := range 8 {
			strangers = append(strangers, i.behind(i.net.NAT(fmt.Sprintf("5.5.5.%d", n+1), hyperswarmtest.Same), "192.168.0.2"))
		}
		flood(5*time.Millisecond, func(n int) { mallory.send(server.Public(), forwarded(n, numbered(n))) }, func() {
			for _, n := range strangers {
				dial(n)
			}
		})
		flood(time.Millisecond, func(n int) { // from anywhere
			forged := dhtrpc.Message{TID: uint16(n), Command: handshakeCommand, Target: &target, Value: bytes.Clone(msg)}
			forged.Value[len(msg)-1], forged.Value[len(msg)-2] = byte(n), byte(n>>8)
			conn := i.net.ListenAt(netip.AddrPortFrom(numbered(n), 5))
			if _, err := conn.WriteToUDPAddrPort(forged.Append(nil), server.Public()); err != nil {
				t.Error(err)
			}
			conn.Close()
		}, func() {
			for range 5 {
				dial(friend)
			}
		})
	})
}

// A forged packet may name a victim's address as the client's; the victim receives almost nothing.
//
// WIRE-T26.
func TestUnprovenClientsGetAlmostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 4)
		defer i.close()
		server := i.public(netip.MustParseAddrPort("9.1.1.1:49737"))
		l := i.serve(server) // which sends a message at once
		key := l.Key()
		target := identity.Hash(key[:])
		msg := dhtrpc.Message{Command: handshakeCommand, Target: &target, Value: handshakeMessage(t, identity.Generate(), key)}
		victim := netip.MustParseAddrPort("8.8.8.8:8")
		var mu sync.Mutex
		sent := 0
		i.net.Tap(func(data []byte, _, to netip.AddrPort) bool {
			mu.Lock()
			defer mu.Unlock()
			if to == victim {
				sent += len(data)
			}
			return true
		})
		forged := newAttacker(t, i, victim.String()) // uses the victim's address as the source
		forged.send(server.Public(), msg)
		time.Sleep(time.Minute) // fake time
		mu.Lock()
		defer mu.Unlock()
		if got, budget := sent, 3*len(msg.Append(nil)); got == 0 || got > budget {
			t.Errorf("the victim received %d bytes for a request of %d", got, len(msg.Append(nil)))
		}
	})
}

// A node sends nothing to third parties that they have not requested.
//
// WIRE-T26.
func TestNodesDoNotReflect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 4)
		defer i.close()
		node := i.nodes[1]
		victim, mallory := newAttacker(t, i, "8.8.8.8:8"), newAttacker(t, i, "7.7.7.7:7")
		target := [32]byte{1}
		noise := bytes.Repeat([]byte{1}, 500)
		value := func(mode byte, addrs ...netip.AddrPort) []byte {
			b := dhtrpc.AppendBuffer([]byte{byte(1<<len(addrs) - 1), mode}, noise)
			for _, a := range addrs {
				b = dhtrpc.AppendAddr(b, a)
			}
			return b
		}
		punch := func(mode byte) []byte {
			return dhtrpc.AppendAddr(dhtrpc.AppendBuffer([]byte{1, mode, 0}, noise), victim.addr)
		}
		for n, m := range []dhtrpc.Message{
			{Command: 0, Target: &target, Value: value(1, victim.addr)},              // an answer to no request
			{Command: 0, Target: &target, Value: value(0, victim.addr, victim.addr)}, // a relay chosen by the client
			{Command: 0, Target: &target, Value: value(2, victim.addr)},
			{Command: 0, Target: &target, Value: value(3, victim.addr, victim.addr)},
			{Command: 1, Target: &target, Value: punch(0)},
			{Command: 1, Target: &target, Value: punch(1)},
			{Command: 1, Target: &target, Value: punch(2)},
		} {
			mallory.send(node.Public(), m)
			if got := victim.settle(); got != 0 {
				t.Errorf("message %d made the node send %d to a third party", n, got)
			}
		}
	})
}

// A node refuses announcements and records signed by another key, or for a key under which everything verifies.
//
// WIRE-T9, WIRE-T24.
func TestForgedAnnouncementsAndRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 4)
		defer i.close()
		node := i.nodes[1].Public()
		mallory := newAttacker(t, i, "7.7.7.7:7")
		victim, own := identity.Generate(), identity.Generate()
		announce := func(target [32]byte, key identity.PublicKey, sign func([]byte) [64]byte) dhtrpc.Message {
			token, id := mallory.token(node)
			peer := append(key[:], 0)
			h := identity.Hash(target[:], id[:], token[:], peer)
			sig := sign(append(identity.Announce[:], h[:]...))
			return dhtrpc.Message{Command: announceCommand, Target: &target, Token: token, Value: append(append([]byte{5}, peer...), sig[:]...)}
		}
		v := victim.Public()
		target := identity.Hash(v[:])
		everything := func([]byte) [64]byte { return [64]byte{1} }
		var neutral identity.PublicKey
		neutral[0] = 1
		for name, m := range map[string]dhtrpc.Message{
			"signed by another":        announce(target, v, own.Sign),
			"a key of small order":     announce(target, neutral, everything),
			"for the key's own target": announce(identity.Hash(neutral[:]), neutral, everything),
		} {
			if r := mallory.ask(node, m); r != nil {
				t.Errorf("an announcement, %s: %+v", name, r)
			}
		}
		if r := mallory.ask(node, announce(target, own.Public(), own.Sign)); r == nil || r.Error != 0 {
			t.Errorf("a valid announcement to another key's target as a topic: %+v", r)
		}
		if r := mallory.ask(node, dhtrpc.Message{Command: findPeerCommand, Target: &target}); r == nil || r.Value != nil {
			t.Errorf("the victim's route is %+v", r)
		}
		for name, key := range map[string]identity.PublicKey{"another's key": v, "a key of small order": neutral} {
			token, _ := mallory.token(node)
			target := identity.Hash(key[:])
			value := dhtrpc.AppendBuffer(append(key[:], 1), []byte("evil"))
			if r := mallory.ask(node, dhtrpc.Message{Command: putCommand, Target: &target, Token: token, Value: append(value, append([]byte{1}, make([]byte, 63)...)...)}); r != nil {
				t.Errorf("a record under %s: %+v", name, r)
			}
		}
		without := announce(target, own.Public(), own.Sign)
		without.Token = nil
		if r := mallory.ask(node, without); r != nil {
			t.Errorf("an announcement without a token: %+v", r)
		}
	})
}

// WIRE-T9: a node stores records of 900 bytes; a request with 901 gets no answer.
func TestLargestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 4)
		defer i.close()
		node := i.nodes[1].Public()
		anybody := newAttacker(t, i, "7.7.7.7:7")
		for _, size := range []int{900, 901} {
			value, pair := make([]byte, size), identity.Generate()
			token, _ := anybody.token(node)
			key := pair.Public()
			h := identity.Hash(append([]byte{1}, dhtrpc.AppendBuffer(nil, value)...)) // version 1
			sig := pair.Sign(append(identity.MutablePut[:], h[:]...))
			target := identity.Hash(key[:])
			put := dhtrpc.AppendBuffer(append(key[:], 1), value)
			mutable := anybody.ask(node, dhtrpc.Message{Command: putCommand, Target: &target, Token: token, Value: append(put, sig[:]...)})
			target = identity.Hash(value)
			immutable := anybody.ask(node, dhtrpc.Message{Command: putImmutableCommand, Target: &target, Token: token, Value: value})
			for kind, r := range map[string]*dhtrpc.Message{"mutable": mutable, "immutable": immutable} {
				if stored := r != nil && r.Error == 0; stored != (size <= 900) || r != nil && size > 900 {
					t.Errorf("a %s record of %d bytes: %+v", kind, size, r)
				}
			}
		}
	})
}

// A node that listens on a key does not let announcements replace that key's route.
//
// WIRE-T4.
func TestAnnouncementsDoNotReplaceAListenersRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 4)
		defer i.close()
		server := i.public(netip.MustParseAddrPort("9.1.1.1:49737"))
		pair := identity.Generate()
		l, err := server.Listen(hyperdht.ListenOptions{Pair: pair})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.WaitAnnounced(context.Background()); err != nil {
			t.Fatal(err)
		}
		// Not even an announcement signed with the key itself replaces the route.
		mallory := newAttacker(t, i, "7.7.7.7:7")
		token, id := mallory.token(server.Public())
		key := pair.Public()
		target := identity.Hash(key[:])
		peer := append(key[:], 0)
		h := identity.Hash(target[:], id[:], token[:], peer)
		sig := pair.Sign(append(identity.Announce[:], h[:]...))
		mallory.ask(server.Public(), dhtrpc.Message{Command: announceCommand, Target: &target, Token: token, Value: append(append([]byte{5}, peer...), sig[:]...)})
		r := mallory.ask(server.Public(), dhtrpc.Message{Command: findPeerCommand, Target: &target})
		if r == nil {
			t.Fatal("the node does not answer")
		}
		v := dhtrpc.NewReader(r.Value)
		if v.Fixed32() != [32]byte(key) {
			t.Errorf("the node returns %x", r.Value)
		}
		if relays := v.Addrs(); v.Err() != nil || len(relays) == 0 || relays[0] != server.Public() {
			t.Errorf("the node returns the relays %v", relays)
		}
	})
}
