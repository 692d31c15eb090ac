// Package hyperswarmtest provides private DHTs on loopback, and simulated networks in memory, for tests.
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

// patience bounds how long a test waits.
const patience = time.Minute

// Context returns a context that ends with the test, or after a minute.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Node starts a node on loopback unless o.Listen is set, and closes it at the test's end.
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

// Network starts a DHT of size nodes, and returns them with the addresses of up to three bootstrap nodes.
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

// Listen starts a listener on a node's own key and blocks until it is announced.
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
