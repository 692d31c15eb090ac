package hyperswarm_test

import (
	"context"
	"net/netip"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/relay"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm"
)

// world is a DHT of four public nodes on a simulated network, with the nodes that a test adds.
type world struct {
	t         *testing.T
	net       *hyperswarmtest.Simulation
	bootstrap []string
	nodes     []*hyperdht.Node
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, net: hyperswarmtest.Simulate(1, hyperswarmtest.Faults{Delay: 10 * time.Millisecond})}
	onNet := func(at netip.AddrPort) (udx.PacketConn, error) { return w.net.ListenAt(at), nil }
	for _, at := range []string{"9.0.0.1:49737", "9.0.0.2:49737", "9.0.0.3:49737", "9.0.0.4:49737"} {
		if err := w.node(at, true, onNet).WaitReady(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) node(at string, public bool, open func(netip.AddrPort) (udx.PacketConn, error)) *hyperdht.Node {
	w.t.Helper()
	o := options(w.bootstrap)
	o.Listen, o.UDX.Open = netip.MustParseAddrPort(at), open
	if public {
		o.Public = o.Listen
	}
	n, err := hyperdht.Listen(o)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(w.nodes) == 0 {
		w.bootstrap = []string{at}
	}
	w.nodes = append(w.nodes, n)
	return n
}

// behind adds a node behind its own NAT.
func (w *world) behind(host string, m hyperswarmtest.Mapping) *hyperdht.Node {
	r := w.net.NAT(host, m)
	return w.node("192.168.0.2:0", false, func(at netip.AddrPort) (udx.PacketConn, error) { return r.Listen(at), nil })
}

func (w *world) close() {
	for i := len(w.nodes) - 1; i >= 0; i-- {
		if err := w.nodes[i].Close(); err != nil {
			w.t.Error(err)
		}
	}
}

// Req 3.6: two agents behind NATs without a direct path connect through a relay.
func TestAgentsBehindRandomNATsUseARelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		w := newWorld(t)
		defer w.close()
		inner := hyperswarmtest.Listen(ctx, t, w.nodes[3])
		hub := relay.Serve(inner, relay.ServerOptions{})
		defer hub.Close()

		relays := []identity.PublicKey{hub.Key()}
		l, err := hyperswarm.Listen(ctx, hyperswarm.ListenOptions{Node: w.behind("5.5.5.5", hyperswarmtest.Fresh), Allow: anybody, Relays: relays})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		client := w.behind("6.6.6.6", hyperswarmtest.Fresh)
		if _, err := (&hyperswarm.Dialer{Node: client}).Dial(ctx, l.Endpoint()); transport.CodeOf(err) != transport.CodeUnreachable {
			t.Fatalf("without a relay: %v", err)
		}
		here, err := (&hyperswarm.Dialer{Node: client, Relays: relays}).Dial(ctx, l.Endpoint())
		if err != nil {
			t.Fatal(err)
		}
		there, err := l.Accept(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if there.Peer() != client.Key().String() || here.Peer() != l.Endpoint().Address {
			t.Errorf("the peers are %s and %s", there.Peer(), here.Peer())
		}
		if err := here.Send(ctx, []transport.Frame{{Kind: transport.Ready}}); err != nil {
			t.Fatal(err)
		}
		if frames, err := there.Receive(ctx); err != nil || frames[0].Kind != transport.Ready {
			t.Errorf("%v, %v", frames, err)
		}
		here.Close()
		there.Close()
	})
}

// Req 3.7: channels over a hole-punched connection survive a network outage without lost or repeated envelopes.
func TestChannelsSurviveANetworkOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		w := newWorld(t)
		defer w.close()
		there, here := w.behind("5.5.5.5", hyperswarmtest.Same), w.behind("6.6.6.6", hyperswarmtest.Same)
		l, err := hyperswarm.Listen(ctx, hyperswarm.ListenOptions{Node: there, Allow: func(k identity.PublicKey) bool { return k == here.Key() }})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		const total = 300
		arrived := make(chan string, 2*total)
		mb := channel.NewManager(channel.Options{}, func(c *channel.Channel) {
			c.OnMessage(func(_ context.Context, e *envelope.Envelope) { arrived <- string(e.Payload) })
		})
		defer mb.Close()
		served := make(chan error, 1)
		go func() { served <- mb.Serve(ctx, l) }()
		ma := channel.NewManager(channel.Options{Dialers: map[agent.Transport]transport.Dialer{agent.TransportHyperswarm: &hyperswarm.Dialer{Node: here}}}, nil)
		defer ma.Close()
		began := time.Now()
		c, err := ma.OpenAt(ctx, "a", "b", l.Endpoint())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("connecting took %v", d)
		}
		for n := range total {
			if n == total/3 {
				w.net.Set(hyperswarmtest.Faults{Loss: 1})
				time.AfterFunc(40*time.Second, func() { w.net.Set(hyperswarmtest.Faults{Delay: 10 * time.Millisecond}) })
			}
			e, err := envelope.New("a", "b", envelope.Notification, n)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Send(ctx, e); err != nil {
				t.Fatalf("send %d: %v", n, err)
			}
		}
		if err := c.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d < 40*time.Second {
			t.Errorf("all arrived after %v, while the network was cut", d)
		}
		for n := range total {
			if got := <-arrived; got != strconv.Itoa(n) {
				t.Fatalf("envelope %d is %s", n, got)
			}
		}
		if len(arrived) > 0 {
			t.Errorf("%d more envelopes arrived", len(arrived))
		}
		ma.Close()
		l.Close()
		<-served
	})
}

// When Listen returns, the agent is reachable, also through the relay.
func TestListenWaitsForTheRelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		w := newWorld(t)
		defer w.close()
		inner := hyperswarmtest.Listen(ctx, t, w.nodes[3])
		hub := relay.Serve(inner, relay.ServerOptions{})
		defer hub.Close()
		home, nobody := w.behind("5.5.5.5", hyperswarmtest.Fresh), identity.Generate().Public()
		pair := identity.Generate()
		o := hyperswarm.ListenOptions{Node: home, Pair: pair, Allow: anybody, Relays: []identity.PublicKey{nobody}}
		if _, err := hyperswarm.Listen(ctx, o); transport.CodeOf(err) != transport.CodeUnreachable {
			t.Fatalf("Listen with no relay reachable: %v", err)
		}
		late, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := hyperswarm.Listen(late, o); transport.CodeOf(err) != transport.CodeUnreachable {
			t.Fatalf("Listen with an ended context: %v", err)
		}
		o.Background = true
		l, err := hyperswarm.Listen(late, o)
		if err != nil {
			t.Fatalf("Listen in the background: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		o.Background, o.Relays = false, []identity.PublicKey{nobody, hub.Key()}
		if l, err = hyperswarm.Listen(ctx, o); err != nil {
			t.Fatalf("Listen with one relay reachable: %v", err)
		}
		defer l.Close()
		c, err := relay.Dial(ctx, w.behind("6.6.6.6", hyperswarmtest.Fresh), hub.Key(), pair.Public(), nil, options(nil).Stream)
		if err != nil {
			t.Fatalf("a relayed dial directly after Listen: %v", err)
		}
		c.Destroy()
	})
}

// A relay closes a path without keep-alives, but keeps an idle path with them.
//
// WIRE-RELAY.
func TestIdlePathsThroughARelayEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		w := newWorld(t)
		defer w.close()
		inner := hyperswarmtest.Listen(ctx, t, w.nodes[3])
		const idle = time.Minute
		hub := relay.Serve(inner, relay.ServerOptions{Idle: idle})
		defer hub.Close()
		client := w.behind("6.6.6.6", hyperswarmtest.Fresh)
		var listeners []*relay.Listener
		defer func() {
			for _, l := range listeners {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		}()
		through := func(host string, stream secretstream.Options) (a, b *secretstream.Conn) {
			pair := identity.Generate()
			l := relay.Listen(w.behind(host, hyperswarmtest.Fresh), hub.Key(), relay.ListenOptions{Pair: pair, Stream: stream})
			listeners = append(listeners, l)
			if err := l.WaitRegistered(ctx); err != nil {
				t.Fatal(err)
			}
			a, err := relay.Dial(ctx, client, hub.Key(), pair.Public(), nil, stream)
			if err != nil {
				t.Fatal(err)
			}
			if b, err = l.Accept(ctx); err != nil {
				t.Fatal(err)
			}
			return a, b
		}
		a, b := through("5.5.5.5", secretstream.Options{KeepAlive: -1})
		began := time.Now()
		for _, c := range []*secretstream.Conn{a, b} {
			if m, err := c.ReadMessage(); err == nil {
				t.Errorf("received %q", m)
			}
			c.Destroy()
		}
		if took := time.Since(began); took < idle-time.Second || took > 2*idle { // fake time
			t.Errorf("the silent path ended after %v", took)
		}
		a, b = through("5.5.5.6", secretstream.Options{})
		time.Sleep(10 * idle) // fake time
		if err := a.WriteMessage([]byte("still here")); err != nil {
			t.Fatal(err)
		}
		if m, err := b.ReadMessage(); err != nil || string(m) != "still here" {
			t.Errorf("%q, %v", m, err)
		}
		a.Destroy()
		b.Destroy()
	})
}

// A node that leaves a topic is not found afterwards: leaving waits for a withdrawal in progress.
func TestLeavingATopicWaitsForTheWithdrawal(t *testing.T) {
	for _, wait := range []time.Duration{0, 5 * time.Millisecond, 25 * time.Millisecond, 45 * time.Millisecond} { // a round trip takes 20 ms
		t.Run(wait.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				w := newWorld(t)
				defer w.close()
				s := swarm.New(swarm.Options{Node: w.behind("5.5.5.5", hyperswarmtest.Same)})
				defer s.Close()
				topic := identity.Hash([]byte("topic"))
				listed := func() (found bool) {
					if err := w.nodes[0].Lookup(ctx, topic, func(p hyperdht.Peer) bool { found = found || p.Key == s.Key(); return true }); err != nil {
						t.Fatal(err)
					}
					return found
				}
				join := func(r swarm.Role) *swarm.Topic {
					m, err := s.Join(topic, r)
					if err != nil {
						t.Fatal(err)
					}
					if err := m.Flushed(ctx); err != nil {
						t.Fatal(err)
					}
					return m
				}
				looks, found := join(swarm.Client), join(swarm.Server)
				if !listed() {
					t.Fatal("the node is not found")
				}
				found.Leave()    // with the next round
				time.Sleep(wait) // fake time
				looks.Leave()
				if listed() {
					t.Error("the node can still be found")
				}
			})
		})
	}
}
