package relay_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/relay"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type network struct {
	bootstrap []string
	server    *relay.Server
}

func newNetwork(t *testing.T, o relay.ServerOptions, access func(identity.PublicKey) bool) *network {
	t.Helper()
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	hub := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap, Public: hyperswarmtest.Loopback})
	l, err := hub.Listen(hyperdht.ListenOptions{Allow: access})
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

// Req 3.6: without a direct path, peers connect through a relay.
func TestPeersConnectThroughARelay(t *testing.T) {
	n := newNetwork(t, relay.ServerOptions{}, nil)
	pair := identity.Generate()
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
		t.Error("an end has the wrong key")
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

func TestDialUnregisteredPeer(t *testing.T) {
	n := newNetwork(t, relay.ServerOptions{}, nil)
	_, err := relay.Dial(hyperswarmtest.Context(t), n.node(t), n.server.Key(), identity.Generate().Public(), nil, secretstream.Options{})
	if !errors.Is(err, relay.ErrUnknown) {
		t.Errorf("got %v", err)
	}
}

// The peer decides who may connect, not the relay.
//
// WIRE-STRANGER.
func TestThePeerDecidesWhoConnects(t *testing.T) {
	n := newNetwork(t, relay.ServerOptions{}, nil)
	friend, pair := identity.Generate(), identity.Generate()
	l := n.listen(t, relay.ListenOptions{Pair: pair, Allow: func(k identity.PublicKey) bool { return k == friend.Public() }})
	client := n.node(t)
	if _, err := relay.Dial(hyperswarmtest.Context(t), client, n.server.Key(), pair.Public(), nil, secretstream.Options{}); err == nil {
		t.Error("a peer that is not allowed has connected")
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

// A relay serves only allowed peers, within its limits.
//
// WIRE-RELAY.
func TestRelayLimits(t *testing.T) {
	allowed := identity.Generate()
	n := newNetwork(t, relay.ServerOptions{MaxRegistered: 1, MaxPaths: 1}, func(k identity.PublicKey) bool { return k == allowed.Public() })
	if _, err := relay.Dial(hyperswarmtest.Context(t), n.node(t), n.server.Key(), allowed.Public(), nil, secretstream.Options{}); hyperdht.CodeOf(err) != hyperdht.CodeUnanswered {
		t.Errorf("a peer that is not allowed uses the relay: %v", err)
	}
	l := n.listen(t, relay.ListenOptions{Pair: allowed})
	client := n.node(t)
	first, err := relay.Dial(hyperswarmtest.Context(t), client, n.server.Key(), allowed.Public(), allowed, secretstream.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := relay.Dial(hyperswarmtest.Context(t), client, n.server.Key(), allowed.Public(), allowed, secretstream.Options{}); !errors.Is(err, relay.ErrBusy) {
		t.Errorf("a path beyond the limit: %v", err)
	}
	there, err := l.Accept(hyperswarmtest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	first.Destroy()
	if _, err := there.ReadMessage(); err == nil {
		t.Error("the relay still counts a path that has ended")
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
	lost := relay.Listen(n.node(t), identity.Generate().Public(), relay.ListenOptions{})
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

// A peer that is no longer allowed loses its paths at once; other peers keep theirs.
//
// WIRE-REMOVED.
func TestRevokedPeerLosesItsPaths(t *testing.T) {
	n := newNetwork(t, relay.ServerOptions{}, nil)
	gone, stays := identity.Generate(), identity.Generate()
	ctx := hyperswarmtest.Context(t)
	client := n.node(t)
	through := func(pair *identity.Pair) (here, there *secretstream.Conn) {
		l := n.listen(t, relay.ListenOptions{Pair: pair})
		here, err := relay.Dial(ctx, client, n.server.Key(), pair.Public(), nil, secretstream.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if there, err = l.Accept(ctx); err != nil {
			t.Fatal(err)
		}
		return here, there
	}
	cut, _ := through(gone)
	kept, other := through(stays)
	defer kept.Destroy()
	defer other.Destroy()
	n.server.Recheck(func(k identity.PublicKey) bool { return k != gone.Public() })
	if _, err := cut.ReadMessage(); err == nil {
		t.Error("the path is still open")
	}
	cut.Destroy()
	if err := kept.WriteMessage([]byte("still here")); err != nil {
		t.Fatal(err)
	}
	if m, err := other.ReadMessage(); err != nil || string(m) != "still here" {
		t.Errorf("the path of another peer: %q, %v", m, err)
	}
}

// WaitRegistered returns the error of the first attempt to register.
func TestUnreachableRelay(t *testing.T) {
	n := newNetwork(t, relay.ServerOptions{}, nil)
	l := relay.Listen(n.node(t), identity.Generate().Public(), relay.ListenOptions{})
	if err := l.WaitRegistered(hyperswarmtest.Context(t)); hyperdht.CodeOf(err) != hyperdht.CodePeerNotFound {
		t.Errorf("got %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// spy is a hostile relay: it records and changes the data that it forwards.
type spy struct {
	l       *hyperdht.Listener
	wg      sync.WaitGroup
	waiting chan *secretstream.Conn // the registered connection, for one dial

	mu     sync.Mutex
	seen   []byte
	falsef func([]byte)
}

func newSpy(t *testing.T, n *network) *spy {
	t.Helper()
	l, err := n.node(t).Listen(hyperdht.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.WaitAnnounced(hyperswarmtest.Context(t)); err != nil {
		t.Fatal(err)
	}
	s := &spy{l: l, waiting: make(chan *secretstream.Conn, 1)}
	dialled := make(chan *secretstream.Conn, 1)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		s.wg.Wait()
	})
	s.wg.Go(func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			s.wg.Go(func() {
				stop := context.AfterFunc(ctx, c.Destroy)
				defer stop()
				m, err := c.ReadMessage()
				if err != nil {
					return
				}
				switch m := string(m); {
				case strings.HasPrefix(m, "parley-relay/1 register "):
					_ = c.WriteMessage([]byte("\x02ok")) // the test detects an error
					s.waiting <- c
					<-ctx.Done()
				case strings.HasPrefix(m, "parley-relay/1 dial "):
					dialled <- c
					if err := (<-s.waiting).WriteMessage(make([]byte, 16)); err != nil {
						t.Error(err)
					}
					<-ctx.Done()
				case strings.HasPrefix(m, "parley-relay/1 accept "):
					other := <-dialled
					_ = other.WriteMessage([]byte("\x02ok")) // the test detects an error
					_ = c.WriteMessage([]byte("\x02ok"))
					s.wg.Go(func() { s.forward(c, other) })
					s.forward(other, c)
				}
			})
		}
	})
	return s
}

func (s *spy) forward(to, from *secretstream.Conn) {
	defer to.Destroy()
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.seen = append(s.seen, buf[:n]...)
		if s.falsef != nil {
			s.falsef(buf[:n])
		}
		s.mu.Unlock()
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (s *spy) falsify(f func([]byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.falsef = f
}

// A relay cannot read or change the data that it forwards, and cannot impersonate the peer.
//
// WIRE-RELAY.
func TestHostileRelay(t *testing.T) {
	n := newNetwork(t, relay.ServerOptions{}, nil)
	ctx := hyperswarmtest.Context(t)
	pair := identity.Generate()
	s := newSpy(t, n)
	l := relay.Listen(n.node(t), s.l.Key(), relay.ListenOptions{Pair: pair})
	defer l.Close()
	if err := l.WaitRegistered(ctx); err != nil {
		t.Fatal(err)
	}
	a, err := relay.Dial(ctx, n.node(t), s.l.Key(), pair.Public(), nil, secretstream.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Destroy()
	b, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Destroy()
	secret := []byte("nobody else's business, said twice: nobody else's business")
	if err := a.WriteMessage(secret); err != nil {
		t.Fatal(err)
	}
	if m, err := b.ReadMessage(); err != nil || !bytes.Equal(m, secret) {
		t.Fatalf("%q, %v", m, err)
	}
	s.mu.Lock()
	if len(s.seen) < len(secret) || bytes.Contains(s.seen, secret[:16]) {
		t.Error("the relay can read the data, or forwards nothing")
	}
	s.mu.Unlock()
	s.falsify(func(p []byte) { p[len(p)-1] ^= 1 })
	if err := a.WriteMessage(secret); err != nil {
		t.Fatal(err)
	}
	if m, err := b.ReadMessage(); !errors.Is(err, secretstream.ErrForged) {
		t.Errorf("a message that the relay has changed: %q, %v", m, err)
	}
}
