package relay_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/transport/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/transport/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/transport/hyperswarm/keys"
	"github.com/parleyhub/parley/transport/hyperswarm/relay"
	"github.com/parleyhub/parley/transport/hyperswarm/secretstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type network struct {
	bootstrap []string
	server    *relay.Server
}

func newNetwork(t *testing.T, o relay.ServerOptions, access func(keys.PublicKey) bool) *network {
	t.Helper()
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	hub := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap, Public: hyperswarmtest.Loopback})
	l, err := hub.Listen(hyperdht.ListenOptions{Access: access})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.WaitAnnounced(hyperswarmtest.Context(t)); err != nil {
		t.Fatal(err)
	}
	n := &network{bootstrap, relay.Serve(l, o)}
	t.Cleanup(func() {
		if err := n.server.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *network) node(t *testing.T) *hyperdht.Node {
	return hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: n.bootstrap})
}

func (n *network) listen(t *testing.T, o relay.ListenOptions) *relay.Listener {
	t.Helper()
	l := relay.Listen(n.node(t), n.server.Key(), o)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.WaitRegistered(hyperswarmtest.Context(t)); err != nil {
		t.Fatal(err)
	}
	return l
}

// Req 3.6: where no direct path is found, a hub forwards what it cannot read.
func TestPeersConnectThroughARelay(t *testing.T) {
	n := newNetwork(t, relay.ServerOptions{}, nil)
	pair := keys.Generate()
	l := n.listen(t, relay.ListenOptions{Pair: pair})
	ctx := hyperswarmtest.Context(t)
	client := n.node(t)
	a, err := relay.Dial(ctx, client, n.server.Key(), pair.Public(), nil, secretstream.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if a.RemoteKey() != pair.Public() || b.RemoteKey() != client.Key() {
		t.Error("the ends are not who they should be")
	}
	if n.server.Paths() != 1 {
		t.Errorf("%d paths", n.server.Paths())
	}
	data := bytes.Repeat([]byte("parley "), 300_000)
	var wg sync.WaitGroup
	for _, c := range []*secretstream.Conn{a, b} {
		wg.Go(func() {
			if _, err := c.Write(data); err != nil {
				t.Error(err)
			}
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes of %d arrived, %v", len(got), len(data), err)
			}
		})
	}
	wg.Wait()
	<-a.Ended()
	<-b.Ended()
}

func TestPeersThatTheRelayDoesNotReach(t *testing.T) {
	n := newNetwork(t, relay.ServerOptions{}, nil)
	_, err := relay.Dial(hyperswarmtest.Context(t), n.node(t), n.server.Key(), keys.Generate().Public(), nil, secretstream.Options{})
	if !errors.Is(err, relay.ErrUnknown) {
		t.Errorf("got %v", err)
	}
}

// The peer, not the relay, decides who may connect.
func TestAccessIsThePeers(t *testing.T) {
	n := newNetwork(t, relay.ServerOptions{}, nil)
	friend, pair := keys.Generate(), keys.Generate()
	l := n.listen(t, relay.ListenOptions{Pair: pair, Access: func(k keys.PublicKey) bool { return k == friend.Public() }})
	client := n.node(t)
	if _, err := relay.Dial(hyperswarmtest.Context(t), client, n.server.Key(), pair.Public(), nil, secretstream.Options{}); err == nil {
		t.Error("a stranger is connected")
	}
	c, err := relay.Dial(hyperswarmtest.Context(t), client, n.server.Key(), pair.Public(), friend, secretstream.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Destroy()
	got, err := l.Accept(hyperswarmtest.Context(t))
	if err != nil || got.RemoteKey() != friend.Public() {
		t.Fatalf("%v", err)
	}
	got.Destroy()
}

// A relay serves only whom it lets in, and no more than it may.
func TestLimitsOfTheRelay(t *testing.T) {
	allowed := keys.Generate()
	n := newNetwork(t, relay.ServerOptions{MaxRegistered: 1, MaxPaths: 1}, func(k keys.PublicKey) bool { return k == allowed.Public() })
	if _, err := relay.Dial(hyperswarmtest.Context(t), n.node(t), n.server.Key(), allowed.Public(), nil, secretstream.Options{}); hyperdht.CodeOf(err) != hyperdht.CodeUnanswered {
		t.Errorf("a stranger uses the relay: %v", err)
	}
	l := n.listen(t, relay.ListenOptions{Pair: allowed})
	client := n.node(t)
	first, err := relay.Dial(hyperswarmtest.Context(t), client, n.server.Key(), allowed.Public(), allowed, secretstream.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := relay.Dial(hyperswarmtest.Context(t), client, n.server.Key(), allowed.Public(), allowed, secretstream.Options{}); !errors.Is(err, relay.ErrBusy) {
		t.Errorf("a path too many: %v", err)
	}
	there, err := l.Accept(hyperswarmtest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	first.Destroy()
	if _, err := there.ReadMessage(); err == nil {
		t.Error("the path's end is not noticed")
	}
	there.Destroy()
}

func TestClosedListener(t *testing.T) {
	n := newNetwork(t, relay.ServerOptions{}, nil)
	l := n.listen(t, relay.ListenOptions{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(context.Background()); !errors.Is(err, relay.ErrClosed) {
		t.Errorf("got %v", err)
	}
	lost := relay.Listen(n.node(t), keys.Generate().Public(), relay.ListenOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := lost.WaitRegistered(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := lost.Close(); err != nil {
		t.Fatal(err)
	}
	if err := lost.WaitRegistered(context.Background()); !errors.Is(err, relay.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
