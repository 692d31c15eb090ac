package hyperdht_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
)

// internet is a DHT of public nodes on a simulated network.
type internet struct {
	t         *testing.T
	net       *hyperswarmtest.Simulation
	bootstrap []string
	nodes     []*hyperdht.Node
}

func newInternet(t *testing.T, size int) *internet {
	i := &internet{t: t, net: hyperswarmtest.Simulate(1, hyperswarmtest.Faults{Delay: 10 * time.Millisecond})}
	for n := range size {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{9, 0, 0, byte(n + 1)}), 49737)
		i.public(at)
		if n == 0 {
			i.bootstrap = []string{at.String()}
		}
	}
	return i
}

func (i *internet) node(o hyperdht.Options, open func(netip.AddrPort) (udx.PacketConn, error)) *hyperdht.Node {
	i.t.Helper()
	o.Bootstrap, o.UDX.Open = i.bootstrap, open
	n, err := hyperdht.Listen(o)
	if err != nil {
		i.t.Fatal(err)
	}
	i.nodes = append(i.nodes, n)
	if err := n.WaitReady(context.Background()); err != nil {
		i.t.Fatal(err)
	}
	return n
}

func (i *internet) public(at netip.AddrPort) *hyperdht.Node {
	return i.node(hyperdht.Options{Listen: at, Public: at}, func(at netip.AddrPort) (udx.PacketConn, error) { return i.net.ListenAt(at), nil })
}

// behind adds a node on a host behind a NAT.
func (i *internet) behind(r *hyperswarmtest.NAT, host string) *hyperdht.Node {
	at := netip.AddrPortFrom(netip.MustParseAddr(host), 0)
	return i.node(hyperdht.Options{Listen: at}, func(at netip.AddrPort) (udx.PacketConn, error) { return r.Listen(at), nil })
}

func (i *internet) close() {
	for n := len(i.nodes) - 1; n >= 0; n-- {
		if err := i.nodes[n].Close(); err != nil {
			i.t.Error(err)
		}
	}
}

// serve listens and sends a greeting on each connection.
func (i *internet) serve(n *hyperdht.Node) *hyperdht.Listener {
	i.t.Helper()
	l, err := n.Listen(hyperdht.ListenOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	if err := l.WaitAnnounced(context.Background()); err != nil {
		i.t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			if err := c.WriteMessage([]byte("welcome")); err != nil {
				i.t.Error(err)
			}
		}
	}()
	return l
}

// Peers behind firewalls connect if both NATs are consistent, or if they share a network. Otherwise the dial
// fails with CodeUnreachable.
func TestFirewalls(t *testing.T) {
	const same, fresh = hyperswarmtest.Same, hyperswarmtest.Fresh
	for name, c := range map[string]struct {
		server, client hyperswarmtest.Mapping
		oneNetwork     bool
		want           hyperdht.Code
	}{
		"consistent and consistent": {server: same, client: same},
		"consistent and random":     {server: same, client: fresh, want: hyperdht.CodeUnreachable},
		"random and consistent":     {server: fresh, client: same, want: hyperdht.CodeUnreachable},
		"random and random":         {server: fresh, client: fresh, want: hyperdht.CodeUnreachable},
		"one network":               {server: fresh, client: fresh, oneNetwork: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := newInternet(t, 8)
				defer i.close()
				left := i.net.NAT("5.5.5.5", c.server)
				right := left
				if !c.oneNetwork {
					right = i.net.NAT("6.6.6.6", c.client)
				}
				server := i.behind(left, "192.168.0.2")
				client := i.behind(right, "192.168.0.3")
				l := i.serve(server)
				began := time.Now()
				conn, err := client.Dial(context.Background(), l.Key(), hyperdht.DialOptions{})
				t.Logf("%v after %v", err, time.Since(began))
				if hyperdht.CodeOf(err) != c.want {
					t.Fatalf("got %v, want %q", err, c.want)
				}
				if err != nil {
					return
				}
				defer conn.Destroy()
				if m, err := conn.ReadMessage(); err != nil || string(m) != "welcome" {
					t.Errorf("%q, %v", m, err)
				}
			})
		})
	}
}

// Peers connect if one end is public, whatever the other's NAT.
func TestOnePublicEndIsEnough(t *testing.T) {
	for name, mapping := range map[string]hyperswarmtest.Mapping{"consistent": hyperswarmtest.Same, "random": hyperswarmtest.Fresh} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := newInternet(t, 8)
				defer i.close()
				hidden := i.behind(i.net.NAT("5.5.5.5", mapping), "192.168.0.2")
				public := i.public(netip.MustParseAddrPort("9.1.1.1:49737"))
				for _, way := range []struct{ server, client *hyperdht.Node }{{hidden, public}, {public, hidden}} {
					l := i.serve(way.server)
					conn, err := way.client.Dial(context.Background(), l.Key(), hyperdht.DialOptions{})
					if err != nil {
						t.Fatal(err)
					}
					if m, err := conn.ReadMessage(); err != nil || string(m) != "welcome" {
						t.Errorf("%q, %v", m, err)
					}
					conn.Destroy()
				}
			})
		})
	}
}

// A listener is still found after the nodes it has announced itself at have died.
func TestListenerReplacesDeadRelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 10)
		defer i.close()
		l := i.serve(i.behind(i.net.NAT("5.5.5.5", hyperswarmtest.Same), "192.168.0.2"))
		gone := make(map[netip.AddrPort]bool)
		for _, a := range l.Relays() {
			gone[a] = true
		}
		for _, n := range i.nodes[1:10] {
			if gone[n.Public()] {
				if err := n.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Minute) // fake time
		for _, a := range l.Relays() {
			if gone[a] && a != i.nodes[0].Public() {
				t.Errorf("%v is still a relay", a)
			}
		}
		client := i.behind(i.net.NAT("6.6.6.6", hyperswarmtest.Same), "192.168.0.3")
		conn, err := client.Dial(context.Background(), l.Key(), hyperdht.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		conn.Destroy()
	})
}

// An announcement that is not renewed expires.
func TestAnnouncementsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 5)
		defer i.close()
		ctx := context.Background()
		n := i.behind(i.net.NAT("5.5.5.5", hyperswarmtest.Same), "192.168.0.2")
		topic := identity.Hash([]byte("topic"))
		if err := n.Announce(ctx, topic, identity.Generate(), nil, nil); err != nil {
			t.Fatal(err)
		}
		count := func() (found int) {
			if err := n.Lookup(ctx, topic, func(hyperdht.Peer) bool { found++; return true }); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			return found
		}
		if count() != 1 {
			t.Error("the new announcement is not found")
		}
		time.Sleep(30 * time.Minute) // fake time
		if count() != 0 {
			t.Error("the announcement has not expired")
		}
	})
}

// WIRE-T11: a dial by the record of a crashed peer fails in time, and the record does not prevent connections
// after the peer has restarted at another address.
func TestRecordOfACrashedPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 6)
		defer i.close()
		pair := identity.Generate()
		listen := func(n *hyperdht.Node) *hyperdht.Listener {
			l, err := n.Listen(hyperdht.ListenOptions{Pair: pair})
			if err != nil {
				t.Fatal(err)
			}
			if err := l.WaitAnnounced(context.Background()); err != nil {
				t.Fatal(err)
			}
			return l
		}
		crashed := i.public(netip.MustParseAddrPort("9.1.1.1:49737"))
		listen(crashed)
		i.net.Tap(func(_ []byte, from, to netip.AddrPort) bool {
			return from != crashed.Public() && to != crashed.Public()
		})
		client := i.behind(i.net.NAT("5.5.5.5", hyperswarmtest.Same), "192.168.0.2")
		began := time.Now()
		if _, err := client.FindPeer(context.Background(), pair.Public()); err != nil {
			t.Errorf("the record has expired already: %v", err)
		}
		if _, err := client.Dial(context.Background(), pair.Public(), hyperdht.DialOptions{}); hyperdht.CodeOf(err) != hyperdht.CodeUnanswered {
			t.Errorf("dial of a crashed peer: %v", err)
		}
		if took := time.Since(began); took > 30*time.Second { // fake time
			t.Errorf("the dial took %v", took)
		}
		l := listen(i.behind(i.net.NAT("6.6.6.6", hyperswarmtest.Same), "192.168.0.3"))
		conn, err := client.Dial(context.Background(), pair.Public(), hyperdht.DialOptions{})
		if err != nil {
			t.Fatalf("after the restart: %v", err)
		}
		conn.Destroy()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = client.FindPeer(context.Background(), pair.Public())
		if hyperdht.CodeOf(err) != hyperdht.CodePeerNotFound {
			t.Errorf("after the record was withdrawn: %v", err)
		}
	})
}

// WIRE-T21: an idle connection stays open.
func TestIdleConnectionsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInternet(t, 4)
		defer i.close()
		l, err := i.behind(i.net.NAT("6.6.6.6", hyperswarmtest.Same), "192.168.0.3").Listen(hyperdht.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.WaitAnnounced(context.Background()); err != nil {
			t.Fatal(err)
		}
		conn, err := i.behind(i.net.NAT("5.5.5.5", hyperswarmtest.Same), "192.168.0.2").Dial(context.Background(), l.Key(), hyperdht.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		there, err := l.Accept(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		before := conn.Stream().(*udx.Stream).Stats()
		time.Sleep(10 * time.Minute) // fake time
		if sent := conn.Stream().(*udx.Stream).Stats().Sent - before.Sent; sent < 60 || sent > 130 {
			t.Errorf("%d keep-alives in ten minutes", sent)
		}
		if err := conn.WriteMessage([]byte("still here")); err != nil {
			t.Fatal(err)
		}
		if m, err := there.ReadMessage(); err != nil || string(m) != "still here" {
			t.Errorf("%q, %v", m, err)
		}
		conn.Destroy()
	})
}
