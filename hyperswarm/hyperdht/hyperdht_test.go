package hyperdht_test

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo accepts connections and sends all data back.
func echo(t *testing.T, l *hyperdht.Listener) {
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(c, c) // the client detects an error
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

func listen(t *testing.T, n *hyperdht.Node, o hyperdht.ListenOptions) *hyperdht.Listener {
	t.Helper()
	l, err := n.Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.WaitAnnounced(hyperswarmtest.Context(t)); err != nil {
		t.Fatal(err)
	}
	return l
}

// exchange sends data and checks that it is echoed.
func exchange(t *testing.T, c *secretstream.Conn, data []byte) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Write(data); err != nil {
			t.Error(err)
		}
	})
	got := make([]byte, len(data))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the echoed data differs: %v", err)
	}
	wg.Wait()
}

// Each end may be a public node of the DHT, or firewalled.
func TestPeersConnect(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 6)
	for name, c := range map[string]struct{ server, client hyperdht.Options }{
		"both public":     {hyperdht.Options{Public: hyperswarmtest.Loopback}, hyperdht.Options{Public: hyperswarmtest.Loopback}},
		"server public":   {hyperdht.Options{Public: hyperswarmtest.Loopback}, hyperdht.Options{}},
		"client public":   {hyperdht.Options{}, hyperdht.Options{Public: hyperswarmtest.Loopback}},
		"both firewalled": {hyperdht.Options{}, hyperdht.Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			c.server.Bootstrap, c.client.Bootstrap = bootstrap, bootstrap
			server, client := hyperswarmtest.Node(t, c.server), hyperswarmtest.Node(t, c.client)
			l := listen(t, server, hyperdht.ListenOptions{})
			echo(t, l)
			began := time.Now()
			conn, err := client.Dial(hyperswarmtest.Context(t), l.Key(), hyperdht.DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			t.Logf("connected after %v", time.Since(began))
			exchange(t, conn, bytes.Repeat([]byte("parley "), 100_000))
			if conn.RemoteKey() != l.Key() {
				t.Errorf("the peer is %v", conn.RemoteKey())
			}
		})
	}
}

// WIRE-T9, WIRE-T10.
func TestRecords(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 5)
	a, b := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap}), hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	ctx := hyperswarmtest.Context(t)
	pair := identity.Generate()
	put := func(value string, seq uint64, want hyperdht.Code) {
		t.Helper()
		if err := a.PutMutable(ctx, pair, []byte(value), seq); hyperdht.CodeOf(err) != want {
			t.Errorf("put %.9q as %d: %v, want %q", value, seq, err, want)
		}
	}
	put("one", 1, "")
	put("one", 1, "") // repeating it is allowed
	put("other", 1, hyperdht.CodeExists)
	put("two", 7, "")
	put("late", 3, hyperdht.CodeStale)
	put(string(make([]byte, 901)), 9, hyperdht.CodeTooLarge)
	put(string(make([]byte, 900)), 8, "")
	r, err := b.GetMutable(ctx, pair.Public(), 0)
	if err != nil || r.Seq != 8 || len(r.Value) != 900 {
		t.Errorf("%d bytes of version %d, %v", len(r.Value), r.Seq, err)
	}
	if _, err := b.GetMutable(ctx, pair.Public(), 9); hyperdht.CodeOf(err) != hyperdht.CodeNotFound {
		t.Errorf("a version that does not exist: %v", err)
	}
	hash, err := b.PutImmutable(ctx, []byte("for ever"))
	if err != nil {
		t.Fatal(err)
	}
	if v, err := a.GetImmutable(ctx, hash); err != nil || string(v) != "for ever" {
		t.Errorf("%q, %v", v, err)
	}
	if _, err := a.GetImmutable(ctx, [32]byte{1}); hyperdht.CodeOf(err) != hyperdht.CodeNotFound {
		t.Errorf("a hash that does not exist: %v", err)
	}
}

func TestTopics(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 5)
	n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	ctx := hyperswarmtest.Context(t)
	topic := identity.Hash([]byte("a topic"))
	pairs := []*identity.Pair{identity.Generate(), identity.Generate()}
	peers := func() int {
		seen := 0
		if err := n.Lookup(ctx, topic, func(hyperdht.Peer) bool { seen++; return true }); err != nil {
			t.Fatal(err)
		}
		return seen
	}
	for i, p := range pairs {
		if err := n.Announce(ctx, topic, p, nil, nil); err != nil {
			t.Fatal(err)
		}
		if got := peers(); got != i+1 {
			t.Errorf("%d of %d peers are found", got, i+1)
		}
	}
	if err := n.Unannounce(ctx, topic, pairs[0]); err != nil {
		t.Fatal(err)
	}
	if got := peers(); got != 1 {
		t.Errorf("%d peers are found after one was unannounced", got)
	}
}

func TestDialUnknownPeer(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 3)
	n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	_, err := n.Dial(hyperswarmtest.Context(t), identity.Generate().Public(), hyperdht.DialOptions{})
	if hyperdht.CodeOf(err) != hyperdht.CodePeerNotFound {
		t.Errorf("got %v", err)
	}
}

// A peer that is not allowed gets no answer, and Accept does not return it.
//
// WIRE-STRANGER.
func TestAccessIsDecidedInsideTheHandshake(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 3)
	friend := identity.Generate()
	server := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	l := listen(t, server, hyperdht.ListenOptions{Allow: func(k identity.PublicKey) bool { return k == friend.Public() }})
	echo(t, l)
	client := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	if _, err := client.Dial(hyperswarmtest.Context(t), l.Key(), hyperdht.DialOptions{}); hyperdht.CodeOf(err) != hyperdht.CodeUnanswered {
		t.Errorf("a stranger: %v", err)
	}
	conn, err := client.Dial(hyperswarmtest.Context(t), l.Key(), hyperdht.DialOptions{Pair: friend})
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, conn, []byte("hello"))
	conn.Destroy()
}

// A node without bootstrap nodes joins when SetBootstrap is called.
func TestBootstrapNodesCanComeLater(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 3)
	server := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	l, err := server.Listen(hyperdht.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.WaitAnnounced(hyperswarmtest.Context(t)); err != nil {
		t.Fatal(err)
	}
	late := hyperswarmtest.Node(t, hyperdht.Options{})
	if _, err := late.Dial(hyperswarmtest.Context(t), l.Key(), hyperdht.DialOptions{}); err == nil {
		t.Fatal("the peer was found without a bootstrap node")
	}
	if err := late.SetBootstrap([]string{"nonsense"}); hyperdht.CodeOf(err) != hyperdht.CodeInvalid {
		t.Errorf("got %v", err)
	}
	if err := late.SetBootstrap(bootstrap); err != nil {
		t.Fatal(err)
	}
	c, err := late.Dial(hyperswarmtest.Context(t), l.Key(), hyperdht.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Destroy()
}
