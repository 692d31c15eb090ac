// Package hyperswarmtest has private DHTs on loopback, and networks in memory, for
// tests.
package hyperswarmtest

import (
	"cmp"
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
)

// Loopback is any port of the loopback interface.
var Loopback = netip.MustParseAddrPort("127.0.0.1:0")

// patience bounds what a test waits for.
const patience = time.Minute

// Context returns a context that ends with the test, or when it hangs.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Node returns a node with an option's value, closed at the test's end.
func Node(t testing.TB, o hyperdht.Options) *hyperdht.Node {
	t.Helper()
	if !o.Listen.IsValid() {
		o.Listen = Loopback
	}
	o.HandshakeRate = cmp.Or(o.HandshakeRate, 1000) // all peers share one host
	o.RequestRate = cmp.Or(o.RequestRate, 10_000)
	n, err := hyperdht.Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close the node: %v", err)
		}
	})
	return n
}

// Network starts size nodes that make a DHT and returns the addresses of the
// first ones, to bootstrap from.
func Network(t testing.TB, size int) (bootstrap []string, nodes []*hyperdht.Node) {
	t.Helper()
	for i := range size {
		n := Node(t, hyperdht.Options{Public: Loopback, Bootstrap: bootstrap})
		if i < 3 {
			bootstrap = append(bootstrap, n.Addr().String())
		}
		if err := n.WaitReady(Context(t)); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	return bootstrap, nodes
}

// Listen listens at a node, and returns when others can find it.
func Listen(ctx context.Context, t testing.TB, n *hyperdht.Node) *hyperdht.Listener {
	t.Helper()
	l, err := n.Listen(hyperdht.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.WaitAnnounced(ctx); err != nil {
		t.Fatal(err)
	}
	return l
}
