//go:build interop

package hyperswarmjs_test

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/testbed"
)

// lab is a DHT of Go nodes on public hosts in network namespaces.
type lab struct {
	*testbed.Lab
	bootstrap []string
}

func newLab(t *testing.T, size int) *lab {
	t.Helper()
	l := &lab{Lab: testbed.NewLab(t)}
	for range size {
		h := l.Host()
		at := netip.AddrPortFrom(h.Addr(), 49737)
		n := l.node(t, h, at)
		if len(l.bootstrap) < 3 {
			l.bootstrap = append(l.bootstrap, at.String())
		}
		if err := n.WaitReady(hyperswarmtest.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// node starts a Go node on a host; public is invalid behind a NAT.
func (l *lab) node(t *testing.T, h *testbed.Host, public netip.AddrPort) *hyperdht.Node {
	t.Helper()
	return hyperswarmtest.Node(t, hyperdht.Options{
		Listen: netip.AddrPortFrom(h.Addr(), public.Port()), Public: public, Bootstrap: l.bootstrap,
		UDX: udx.Options{Open: func(at netip.AddrPort) (udx.PacketConn, error) { return h.ListenUDP(at) }},
	})
}

// program starts a Node.js program on a host.
func program(t *testing.T, h *testbed.Host) *driver {
	t.Helper()
	return javascriptBy(t, func(c *exec.Cmd) error { return h.Start(c) })
}

// npm's hyperdht and this one punch holes through the kernel's NATs, whichever dials, on a DHT of Go nodes. No
// JavaScript end is behind an address-restricted NAT: npm's programs may then consider themselves public, because
// they ask only nodes that they have contacted, and are unreachable.
//
// WIRE-T28.
func TestHolePunchingWithJavaScript(t *testing.T) {
	if !testbed.Inside(t) {
		return
	}
	l := newLab(t, 6)
	const full, address, port = testbed.FullCone, testbed.AddressRestricted, testbed.PortRestricted
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, nat := range []struct{ ours, theirs testbed.NAT }{{full, port}, {port, full}, {address, port}, {port, port}} {
		node, js := l.node(t, l.Network(nat.ours).Host(), netip.AddrPort{}), program(t, l.Network(nat.theirs).Host())
		wg.Go(func() {
			if err := l.bothWays(t, node, js); err != nil {
				t.Errorf("Go behind %v, JavaScript behind %v: %v", nat.ours, nat.theirs, err)
			}
		})
	}
}

// bothWays makes each end dial the other and exchange an echo.
func (l *lab) bothWays(t *testing.T, n *hyperdht.Node, js *driver) error {
	ctx := hyperswarmtest.Context(t)
	dht, err := js.call("dht", args{"bootstrap": l.bootstrap, "host": "0.0.0.0"})
	if err != nil {
		return err
	}
	server, err := js.call("listen", args{"id": dht.ID, "mode": "echo"})
	if err != nil {
		return err
	}
	key, err := identity.ParsePublicKey(server.Key)
	if err != nil {
		return err
	}
	began := time.Now()
	conn, err := n.Dial(ctx, key, hyperdht.DialOptions{})
	if err != nil {
		return fmt.Errorf("Go dials: %w", err)
	}
	defer conn.Destroy()
	t.Logf("Go has dialled after %v", time.Since(began))
	if err := echoed(conn); err != nil {
		return fmt.Errorf("Go dials: %w", err)
	}
	ours, err := n.Listen(hyperdht.ListenOptions{})
	if err != nil {
		return err
	}
	if err := ours.WaitAnnounced(ctx); err != nil {
		return err
	}
	began = time.Now()
	dialled := js.start("dial", args{"id": dht.ID, "key": ours.Key().String(), "mode": "echo"})
	back, err := ours.Accept(ctx)
	if err != nil {
		return fmt.Errorf("JavaScript dials: %w, %+v", err, <-dialled)
	}
	defer back.Destroy()
	t.Logf("JavaScript has dialled after %v", time.Since(began))
	if err := echoed(back); err != nil {
		return fmt.Errorf("JavaScript dials: %w", err)
	}
	return nil
}

// echoed sends a message to a peer and checks the echo.
func echoed(c *secretstream.Conn) error {
	if err := c.WriteMessage([]byte("through the NATs")); err != nil {
		return err
	}
	m, err := c.ReadMessage()
	if err != nil {
		return err
	}
	if string(m) != "through the NATs" {
		return fmt.Errorf("the echo is %q", m)
	}
	return nil
}

// A Node.js program with npm's hyperswarm behind a NAT finds an agent's node behind another NAT by a topic, and
// again after that node's restart. They know only the user's hubs, which are the whole DHT. There are three hubs,
// because npm's programs need three to determine the kind of their NAT.
func TestNodeJSFindsAnAgentThroughHubs(t *testing.T) {
	if !testbed.Inside(t) {
		return
	}
	l := newLab(t, 3)
	js := program(t, l.Network(testbed.PortRestricted).Host())
	home := l.Network(testbed.PortRestricted).Host()
	topic := identity.Hash([]byte("agents"))
	theirs := js.do("swarm", args{"bootstrap": l.bootstrap, "mode": "echo"})
	js.do("join", args{"id": theirs.ID, "topic": hex.EncodeToString(topic[:]), "server": true, "client": true})
	for range 2 {
		meet(t, l.node(t, home, netip.AddrPort{}), topic, theirs.Key)
	}
}

// One hub is enough for a Node.js program behind a NAT that connects to the hub itself.
func TestNodeJSFindsAHub(t *testing.T) {
	if !testbed.Inside(t) {
		return
	}
	l := newLab(t, 0)
	h := l.Host()
	at := netip.AddrPortFrom(h.Addr(), 49737)
	hub := l.node(t, h, at)
	js := program(t, l.Network(testbed.Symmetric).Host())
	topic := identity.Hash([]byte("agents"))
	theirs := js.do("swarm", args{"bootstrap": []string{at.String()}, "mode": "echo"})
	joined := js.start("join", args{"id": theirs.ID, "topic": hex.EncodeToString(topic[:]), "server": false, "client": true})
	defer func() { <-joined }()
	meet(t, hub, topic, theirs.Key)
}

// meet makes a node join a topic and exchange an echo with a peer.
func meet(t *testing.T, n *hyperdht.Node, topic [32]byte, key string) {
	t.Helper()
	s := swarm.New(swarm.Options{Node: n})
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := s.Join(topic, swarm.Server|swarm.Client); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c, err := s.Accept(hyperswarmtest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("connected after %v", time.Since(began))
	if c.RemoteKey().String() != key {
		t.Error("the connection has the wrong key")
	}
	exchange(t, c.Conn, noise(mebibyte))
}
