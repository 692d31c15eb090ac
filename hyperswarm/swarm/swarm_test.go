package swarm_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newSwarm(t testing.TB, bootstrap []string, o swarm.Options) *swarm.Swarm {
	t.Helper()
	if o.Node == nil {
		o.Node = hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap, Pair: o.Pair})
	}
	s := swarm.New(o)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func join(t testing.TB, s *swarm.Swarm, topic [32]byte, r swarm.Role) *swarm.Topic {
	t.Helper()
	j, err := s.Join(topic, r)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Flushed(hyperswarmtest.Context(t)); err != nil {
		t.Fatal(err)
	}
	return j
}

func accept(t testing.TB, s *swarm.Swarm) *swarm.Conn {
	t.Helper()
	c, err := s.Accept(hyperswarmtest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// talk checks that messages arrive in both directions.
func talk(t testing.TB, a, b *swarm.Conn) {
	t.Helper()
	for _, c := range [][2]*swarm.Conn{{a, b}, {b, a}} {
		if err := c[0].WriteMessage([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if m, err := c[1].ReadMessage(); err != nil || string(m) != "hello" {
			t.Fatalf("%q, %v", m, err)
		}
	}
}

// Peers of a topic connect, in whichever order they join.
func TestPeersOfATopicFindEachOther(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	topic := identity.Hash([]byte("topic"))
	a, b := newSwarm(t, bootstrap, swarm.Options{}), newSwarm(t, bootstrap, swarm.Options{})
	join(t, a, topic, swarm.Server|swarm.Client)
	join(t, b, topic, swarm.Server|swarm.Client)
	x, y := accept(t, a), accept(t, b)
	if x.RemoteKey() != b.Key() || y.RemoteKey() != a.Key() {
		t.Fatal("the connections have the wrong keys")
	}
	talk(t, x, y)
	if n := a.Connected(); len(n) != 1 || n[0] != b.Key() {
		t.Errorf("connected with %v", n)
	}
}

// Req 3.7: the swarm replaces a broken connection.
func TestBrokenConnectionIsReplaced(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	topic := identity.Hash([]byte("topic"))
	a, b := newSwarm(t, bootstrap, swarm.Options{}), newSwarm(t, bootstrap, swarm.Options{})
	join(t, a, topic, swarm.Server)
	join(t, b, topic, swarm.Client)
	for range 2 {
		x, y := accept(t, a), accept(t, b)
		talk(t, x, y)
		x.Destroy()
	}
	talk(t, accept(t, a), accept(t, b))
}

// A peer that is joined by its key needs no topic.
func TestExplicitPeers(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	a, b := newSwarm(t, bootstrap, swarm.Options{}), newSwarm(t, bootstrap, swarm.Options{})
	join(t, a, [32]byte{1}, swarm.Server)
	b.JoinPeer(a.Key())
	talk(t, accept(t, a), accept(t, b))
	b.LeavePeer(a.Key())
}

// If both ends dial at once, one connection remains, the same at both ends.
//
// WIRE-T13.
func TestOneConnectionWithEachPeer(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	for range 10 {
		a, b := newSwarm(t, bootstrap, swarm.Options{}), newSwarm(t, bootstrap, swarm.Options{})
		join(t, a, [32]byte{1}, swarm.Server)
		join(t, b, [32]byte{2}, swarm.Server)
		a.JoinPeer(b.Key())
		b.JoinPeer(a.Key())
		ctx := hyperswarmtest.Context(t)
		// The duplicates end soon; the remaining connection transmits a message.
		serve := func(s *swarm.Swarm, got chan<- *swarm.Conn) {
			for {
				c, err := s.Accept(ctx)
				if err != nil {
					return
				}
				go func() {
					if err := c.WriteMessage([]byte("hello")); err != nil {
						return
					}
					if _, err := c.ReadMessage(); err == nil {
						got <- c
					}
				}()
			}
		}
		atA, atB := make(chan *swarm.Conn, 10), make(chan *swarm.Conn, 10)
		go serve(a, atA)
		go serve(b, atB)
		<-atA
		<-atB
		if len(a.Connected()) != 1 || len(b.Connected()) != 1 {
			t.Errorf("%d and %d connections", len(a.Connected()), len(b.Connected()))
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOnlyAllowedPeersAreDialled(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	topic := identity.Hash([]byte("topic"))
	friend := identity.Generate()
	stranger := newSwarm(t, bootstrap, swarm.Options{})
	a := newSwarm(t, bootstrap, swarm.Options{Allow: func(k identity.PublicKey) bool { return k == friend.Public() }})
	b := newSwarm(t, bootstrap, swarm.Options{Pair: friend})
	join(t, stranger, topic, swarm.Server)
	join(t, b, topic, swarm.Server)
	join(t, a, topic, swarm.Client)
	if c := accept(t, a); c.RemoteKey() != friend.Public() {
		t.Error("a peer that is not allowed was dialled")
	}
	if len(stranger.Connected()) != 0 {
		t.Error("a peer that is not allowed has connected")
	}
}

// A restarted peer's new connection replaces its dead one.
func TestRestartedPeerReplacesItsOldConnection(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	a := newSwarm(t, bootstrap, swarm.Options{})
	join(t, a, [32]byte{1}, swarm.Server)
	pair := identity.Generate()
	node := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap, Pair: pair})
	first, err := node.Dial(hyperswarmtest.Context(t), a.Key(), hyperdht.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Destroy()
	old := accept(t, a)
	if err := old.WaitConfirmed(hyperswarmtest.Context(t)); err != nil {
		t.Fatal(err)
	}
	second, err := node.Dial(hyperswarmtest.Context(t), a.Key(), hyperdht.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Destroy()
	c := accept(t, a)
	if err := second.WriteMessage([]byte("again")); err != nil {
		t.Fatal(err)
	}
	if m, err := c.ReadMessage(); err != nil || string(m) != "again" {
		t.Errorf("%q, %v", m, err)
	}
	<-old.Done()
	if len(a.Connected()) != 1 {
		t.Errorf("%d connections", len(a.Connected()))
	}
}

func TestPeerLimit(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	a := newSwarm(t, bootstrap, swarm.Options{MaxPeers: 1})
	join(t, a, [32]byte{1}, swarm.Server)
	b := newSwarm(t, bootstrap, swarm.Options{})
	b.JoinPeer(a.Key())
	talk(t, accept(t, b), accept(t, a))
	c := newSwarm(t, bootstrap, swarm.Options{})
	c.JoinPeer(a.Key())
	if conn, err := c.Accept(hyperswarmtest.Context(t)); err == nil {
		if _, err := conn.ReadMessage(); err == nil {
			t.Error("two peers are connected; the limit is one")
		}
	}
}

func TestClosedSwarm(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 2)
	a := newSwarm(t, bootstrap, swarm.Options{})
	topic := join(t, a, [32]byte{1}, swarm.Server)
	topic.Refresh()
	topic.Leave()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Accept(context.Background()); err != swarm.ErrClosed {
		t.Errorf("accept: %v", err)
	}
	if _, err := a.Join([32]byte{2}, swarm.Client); err != swarm.ErrClosed {
		t.Errorf("join: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := topic.Flushed(ctx); err != nil && err != swarm.ErrClosed {
		t.Errorf("flushed: %v", err)
	}
}

// A single public node is a network: peers find the announcements and records that it stores itself.
func TestOnePublicHubIsEnough(t *testing.T) {
	bootstrap, nodes := hyperswarmtest.Network(t, 1)
	topic := identity.Hash([]byte("network"))
	hub := newSwarm(t, nil, swarm.Options{Node: nodes[0]})
	join(t, hub, topic, swarm.Server)
	for range 2 {
		home := newSwarm(t, bootstrap, swarm.Options{})
		join(t, home, topic, swarm.Client)
		x, y := accept(t, home), accept(t, hub)
		if x.RemoteKey() != hub.Key() || y.RemoteKey() != home.Key() {
			t.Fatal("the connections have the wrong keys")
		}
		talk(t, x, y)
	}
	pair := identity.Generate()
	if err := nodes[0].PutMutable(hyperswarmtest.Context(t), pair, []byte("record"), 1); err != nil {
		t.Fatal(err)
	}
	client := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	for _, n := range []*hyperdht.Node{client, nodes[0]} {
		if r, err := n.GetMutable(hyperswarmtest.Context(t), pair.Public(), 0); err != nil || string(r.Value) != "record" {
			t.Errorf("%q, %v", r.Value, err)
		}
	}
	if err := nodes[0].PutMutable(hyperswarmtest.Context(t), pair, []byte("older"), 0); hyperdht.CodeOf(err) != hyperdht.CodeStale {
		t.Errorf("an older version: %v", err)
	}
	hash, err := nodes[0].PutImmutable(hyperswarmtest.Context(t), []byte("value"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []*hyperdht.Node{client, nodes[0]} {
		if v, err := n.GetImmutable(hyperswarmtest.Context(t), hash); err != nil || string(v) != "value" {
			t.Errorf("%q, %v", v, err)
		}
	}
}

// A swarm combines the roles of all its memberships of a topic, in any order.
func TestMembershipRolesAreCombined(t *testing.T) {
	bootstrap, nodes := hyperswarmtest.Network(t, 4)
	topic := identity.Hash([]byte("topic"))
	ctx := hyperswarmtest.Context(t)
	a := newSwarm(t, bootstrap, swarm.Options{})
	listed := func() (found bool) {
		if err := nodes[0].Lookup(ctx, topic, func(p hyperdht.Peer) bool { found = found || p.Key == a.Key(); return true }); err != nil {
			t.Fatal(err)
		}
		return found
	}
	looks, err := a.Join(topic, swarm.Client)
	if err != nil {
		t.Fatal(err)
	}
	found, err := a.Join(topic, swarm.Server) // before the first membership's first round ends
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*swarm.Topic{found, looks} {
		if err := m.Flushed(ctx); err != nil {
			t.Fatal(err)
		}
	}
	// A round that refreshes an announcement removes the old one first, so that a lookup may meet neither.
	for !listed() {
		if ctx.Err() != nil {
			t.Fatal("a second membership as a server is not announced")
		}
	}
	both := join(t, a, topic, swarm.Server|swarm.Client)
	found.Leave()
	found.Leave()
	for !listed() {
		if ctx.Err() != nil {
			t.Fatal("leaving one membership ended another")
		}
	}
	both.Leave() // the client membership remains
	for listed() {
		if ctx.Err() != nil {
			t.Fatal("the announcement remains without a server membership")
		}
	}
	b := newSwarm(t, bootstrap, swarm.Options{})
	join(t, b, topic, swarm.Server)
	looks.Refresh()
	talk(t, accept(t, a), accept(t, b))
	if err := found.Flushed(ctx); err != nil && err != swarm.ErrClosed {
		t.Errorf("a membership that has ended: %v", err)
	}
	looks.Leave()
}

// A peer that leaves a topic and joins it again is found: leaving withdraws only the first announcement.
func TestJoiningWhileLeaving(t *testing.T) {
	bootstrap, nodes := hyperswarmtest.Network(t, 4)
	topic := identity.Hash([]byte("topic"))
	ctx := hyperswarmtest.Context(t)
	a := newSwarm(t, bootstrap, swarm.Options{})
	member := join(t, a, topic, swarm.Server)
	for range 5 {
		left := make(chan struct{})
		go func() {
			defer close(left)
			member.Leave()
		}()
		next := join(t, a, topic, swarm.Server) // before, during or after the withdrawal
		<-left
		member = next
		found := false
		if err := nodes[0].Lookup(ctx, topic, func(p hyperdht.Peer) bool { found = found || p.Key == a.Key(); return true }); err != nil {
			t.Fatal(err)
		}
		if !found {
			t.Fatal("the peer is not found")
		}
	}
}

// Close waits only for topics whose goroutine runs, whether they are joined before it, at the same time or after.
func TestJoiningWhileClosing(t *testing.T) {
	node := hyperswarmtest.Node(t, hyperdht.Options{})
	for range 1500 {
		s := swarm.New(swarm.Options{Node: node})
		joined := make(chan struct{})
		var joins sync.WaitGroup
		joins.Go(func() {
			for n := range byte(8) {
				if _, err := s.Join([32]byte{n}, swarm.Client); err != nil {
					return
				}
				if n == 0 {
					close(joined)
				}
			}
		})
		<-joined
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		joins.Wait()
	}
}
