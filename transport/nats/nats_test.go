package nats_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel/transporttest"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/nats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestValidPrefix(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("x", 32)
	for prefix, want := range map[string]bool{
		"parley": true, "a.B-c._9": true, token: true, strings.Repeat(token+".", 7) + token: true,
		"": false, ".": false, "a.": false, ".a": false, "a..b": false, token + "x": false, strings.Repeat("a.", 8) + "a": false,
		"a b": false, "a.*": false, ">": false, "a\n": false, "aé": false, "é": false, "a/b": false, "a\x00b": false,
	} {
		if got := nats.ValidPrefix(prefix); got != want {
			t.Errorf("ValidPrefix(%q) = %v", prefix, got)
		}
	}
}

// natsServer is a NATS server for tests.
type natsServer struct{ *testbed.Server }

func startServer(t testing.TB) *natsServer {
	return &natsServer{testbed.StartNATS(t, testbed.WithoutJetStream)}
}

func (n *natsServer) connect(t testing.TB) *natsgo.Conn {
	t.Helper()
	nc, err := natsgo.Connect(n.URL(),
		natsgo.MaxReconnects(-1), natsgo.ReconnectWait(10*time.Millisecond), natsgo.ReconnectJitter(0, 0), natsgo.ErrorHandler(quiet))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// quiet ignores slow-consumer errors: the listener's limits drop excess messages.
func quiet(*natsgo.Conn, *natsgo.Subscription, error) {}

func anybody(identity.PublicKey) bool { return true }

func listen(t testing.TB, o nats.ListenOptions) transport.Listener {
	t.Helper()
	if o.Pair == nil {
		o.Pair = identity.Generate()
	}
	l, err := nats.Listen(deadline(t), o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// ends returns a dialer and a function that makes listeners, each with its own connection.
func ends(t testing.TB, n *natsServer) transporttest.Transport {
	here, there := n.connect(t), n.connect(t)
	return transporttest.Transport{
		Dialer: &nats.Dialer{Options: nats.Options{Conn: here, Pair: identity.Generate()}},
		Listen: func(t testing.TB) transport.Listener {
			return listen(t, nats.ListenOptions{Options: nats.Options{Conn: there}, Allow: anybody})
		},
	}
}

// Req 3.6 and 3.7: the transport passes the common tests of all transports.
func TestTransport(t *testing.T) {
	n := startServer(t)
	transporttest.Run(t, func(t *testing.T) transporttest.Transport { return ends(t, n) })
}

// pair returns the two ends of a connection.
func pair(t testing.TB, d transport.Dialer, l transport.Listener) (here, there transport.Conn) {
	t.Helper()
	here, err := d.Dial(deadline(t), l.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	if there, err = l.Accept(deadline(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close(); there.Close() })
	return here, there
}

// Only allowed keys connect; by default none is. Peer returns the proved key.
//
// WIRE-STRANGER.
func TestOnlyAllowedPeersConnect(t *testing.T) {
	n := startServer(t)
	me := identity.Generate()
	d := &nats.Dialer{Options: nats.Options{Conn: n.connect(t), Pair: me}}
	for name, allow := range map[string]func(identity.PublicKey) bool{
		"nobody": nil, "another": func(k identity.PublicKey) bool { return k != me.Public() },
	} {
		closed := listen(t, nats.ListenOptions{Options: nats.Options{Conn: n.connect(t)}, Allow: allow})
		ctx, cancel := context.WithTimeout(deadline(t), 200*time.Millisecond)
		if _, err := d.Dial(ctx, closed.Endpoint()); transport.CodeOf(err) != transport.CodeUnreachable {
			t.Errorf("%s is paired: %v", name, err)
		}
		cancel()
		if err := closed.Close(); err != nil {
			t.Error(err)
		}
	}
	open := listen(t, nats.ListenOptions{Options: nats.Options{Conn: n.connect(t)}, Allow: func(k identity.PublicKey) bool { return k == me.Public() }})
	defer open.Close()
	here, there := pair(t, d, open)
	if _, key, err := nats.ParseAddress(open.Endpoint().Address); err != nil || here.Peer() != key.String() || there.Peer() != me.Public().String() {
		t.Errorf("the peers are %s and %s: %v", here.Peer(), there.Peer(), err)
	}
}

// A dial fails at once if there is no listener, or no longer one.
func TestDialWithoutAListener(t *testing.T) {
	n := startServer(t)
	d := &nats.Dialer{Options: nats.Options{Conn: n.connect(t), Pair: identity.Generate()}}
	to := agent.Endpoint{Transport: agent.TransportNATS, Address: nats.Address("", identity.Generate().Public())}
	_, err := d.Dial(deadline(t), to)
	if transport.CodeOf(err) != transport.CodeUnreachable || !strings.Contains(err.Error(), "no subscription") {
		t.Errorf("got %v", err)
	}
}

func TestDialRefusesInvalidAddresses(t *testing.T) {
	n := startServer(t)
	d := &nats.Dialer{Options: nats.Options{Conn: n.connect(t), Pair: identity.Generate()}}
	key := identity.Generate().Public().String()
	for _, address := range []string{"", "x", key, "parley.hub.", "parley.hub." + key[1:], "parley.hub." + strings.ToUpper(key), "other.hub." + key,
		">.hub." + key, "*.hub." + key, "a b.hub." + key, "parley.hub." + strings.Repeat("0", 64)} {
		if _, err := d.Dial(deadline(t), agent.Endpoint{Transport: agent.TransportNATS, Address: address}); transport.CodeOf(err) != transport.CodeInvalid {
			t.Errorf("%q: %v", address, err)
		}
	}
	for name, o := range map[string]nats.Options{"no connection": {Pair: identity.Generate()}, "no identity": {Conn: d.Conn}, "a wildcard": {Conn: d.Conn, Pair: d.Pair, Prefix: "a.>"}} {
		if _, err := nats.Listen(deadline(t), nats.ListenOptions{Options: o}); transport.CodeOf(err) != transport.CodeInvalid {
			t.Errorf("listen with %s: %v", name, err)
		}
		if _, err := (&nats.Dialer{Options: o}).Dial(deadline(t), agent.Endpoint{Transport: agent.TransportNATS}); transport.CodeOf(err) != transport.CodeInvalid {
			t.Errorf("dial with %s: %v", name, err)
		}
	}
}

// tap is another client of the same server, subscribed to all subjects.
type tap struct {
	nc *natsgo.Conn
	mu sync.Mutex
	// The messages published below the prefix.
	heard []*natsgo.Msg
	more  chan struct{}
}

func newTap(t testing.TB, n *natsServer) *tap {
	w := &tap{nc: n.connect(t), more: make(chan struct{}, 1)}
	if _, err := w.nc.Subscribe("parley.>", func(m *natsgo.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.heard = append(w.heard, m)
		select {
		case w.more <- struct{}{}:
		default:
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return w
}

// find waits for the first message of a kind.
func (w *tap) find(t testing.TB, kind byte) *natsgo.Msg {
	for i := 0; ; {
		w.mu.Lock()
		for ; i < len(w.heard); i++ {
			if m := w.heard[i]; len(m.Data) > 0 && m.Data[0] == kind {
				w.mu.Unlock()
				return m
			}
		}
		w.mu.Unlock()
		select {
		case <-w.more:
		case <-deadline(t).Done():
			t.Fatalf("no message of kind %c was published", kind)
		}
	}
}

func data(text string) []transport.Frame {
	return []transport.Frame{{Kind: transport.Close, Reason: &transport.Reason{Code: "X", Message: text}}}
}

// A client that subscribes to everything cannot read the messages, and a handshake that it replays has no effect.
func TestOtherClientsOfTheServer(t *testing.T) {
	n := startServer(t)
	w := newTap(t, n)
	l := listen(t, nats.ListenOptions{Options: nats.Options{Conn: n.connect(t)}, Allow: anybody})
	defer l.Close()
	d := &nats.Dialer{Options: nats.Options{Conn: n.connect(t), Pair: identity.Generate()}}
	here, there := pair(t, d, l)
	const secret = "the password is swordfish"
	if err := here.Send(deadline(t), data(secret)); err != nil {
		t.Fatal(err)
	}
	if frames, err := there.Receive(deadline(t)); err != nil || frames[0].Reason.Message != secret {
		t.Fatalf("%v, %v", frames, err)
	}
	w.mu.Lock()
	for _, m := range w.heard {
		if strings.Contains(string(m.Data), "swordfish") || strings.Contains(string(m.Data), "parley-channel") {
			t.Errorf("another client can read %q", m.Data)
		}
	}
	w.mu.Unlock()
	open := w.find(t, 'O')
	inbox := w.nc.NewInbox()
	sub, err := w.nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := w.nc.PublishRequest(open.Subject, inbox, open.Data); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := sub.NextMsg(200 * time.Millisecond); err == nil {
		t.Errorf("a replayed handshake was answered: %q", m.Data)
	}
	ctx, cancel := context.WithTimeout(deadline(t), 100*time.Millisecond)
	defer cancel()
	if c, err := l.Accept(ctx); err == nil {
		t.Errorf("a replayed handshake opened a connection with %s", c.Peer())
	}
}

// Messages that others publish to an end at most break its connection, with an error that the channel recovers
// from. They never reach the agents.
//
// WIRE-FRAME.
func TestForgedMessages(t *testing.T) {
	for name, forged := range map[string]string{
		"data": "D\x00\x00\x00\x00\x00\x00\x00\x00hello", "a gap": "D\x00\x00\x00\x00\x00\x0f\x00\x00hello", "a grant": "W\xff\xff\xff\xff\xff\xff\xff\xff",
		"an old grant": "W\x00\x00\x00\x00\x00\x00\x00\x00", "a reset": "R\x00\x00\x00\x00\x00\x00\x00\x00", "a kind": "?\x00\x00\x00\x00\x00\x00\x00\x00",
		"loss": "P\x00\x00\x00\x00\x00\x0f\x00\x00", "an end": "F\x00\x00\x00\x00\x00\x0f\x00\x00", "too much": "D\x00\x00\x00\x00\x00\x00\x00\x00" + strings.Repeat("x", 900<<10),
	} {
		t.Run(name, func(t *testing.T) {
			n := startServer(t)
			w := newTap(t, n)
			l := listen(t, nats.ListenOptions{Options: nats.Options{Conn: n.connect(t)}, Allow: anybody})
			defer l.Close()
			_, there := pair(t, &nats.Dialer{Options: nats.Options{Conn: n.connect(t), Pair: identity.Generate()}}, l)
			first := w.find(t, 'D')
			for range 3 {
				if err := w.nc.Publish(first.Subject, []byte(forged)); err != nil {
					t.Fatal(err)
				}
				if err := w.nc.Publish(first.Reply, []byte(forged)); err != nil {
					t.Fatal(err)
				}
			}
			if frames, err := there.Receive(deadline(t)); transport.CodeOf(err) != transport.CodeClosed {
				t.Errorf("got %v, %v", frames, err)
			}
		})
	}
	t.Run("noise", func(t *testing.T) { // bytes that are no message do not affect the connection
		n := startServer(t)
		w := newTap(t, n)
		l := listen(t, nats.ListenOptions{Options: nats.Options{Conn: n.connect(t)}, Allow: anybody})
		defer l.Close()
		here, there := pair(t, &nats.Dialer{Options: nats.Options{Conn: n.connect(t), Pair: identity.Generate()}}, l)
		first := w.find(t, 'D')
		for _, noise := range []string{"", "x", "A", "Ahello", "D\x00"} {
			if err := w.nc.Publish(first.Reply, []byte(noise)); err != nil {
				t.Fatal(err)
			}
			if err := w.nc.Publish(l.Endpoint().Address, []byte("O"+noise+strings.Repeat("x", 100))); err != nil {
				t.Fatal(err)
			}
		}
		if err := here.Send(deadline(t), data("still here")); err != nil {
			t.Fatal(err)
		}
		if frames, err := there.Receive(deadline(t)); err != nil || frames[0].Reason.Message != "still here" {
			t.Errorf("got %v, %v", frames, err)
		}
	})
}
