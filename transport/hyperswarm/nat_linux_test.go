package hyperswarm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/relay"
	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm"
)

// realWorld is a DHT of public hosts in network namespaces; the last of them is
// a relay, too.
type realWorld struct {
	lab       *testbed.Lab
	bootstrap []string
	relays    []identity.PublicKey
}

const dhtPort = 49737

func newRealWorld(t *testing.T, size int) *realWorld {
	t.Helper()
	w := &realWorld{lab: testbed.NewLab(t)}
	var hub *hyperdht.Node
	for range size {
		h := w.lab.Host()
		at := netip.AddrPortFrom(h.Addr(), dhtPort)
		hub = w.node(t, h, at)
		if len(w.bootstrap) < 3 {
			w.bootstrap = append(w.bootstrap, at.String())
		}
		if err := hub.WaitReady(hyperswarmtest.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	l := hyperswarmtest.Listen(hyperswarmtest.Context(t), t, hub)
	server := relay.Serve(l, relay.ServerOptions{})
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	w.relays = []identity.PublicKey{server.Key()}
	return w
}

// node starts a node on a host; public is invalid for one that is behind a NAT.
func (w *realWorld) node(t *testing.T, h *testbed.Host, public netip.AddrPort) *hyperdht.Node {
	t.Helper()
	o := options(w.bootstrap)
	o.Listen, o.Public = netip.AddrPortFrom(h.Addr(), public.Port()), public
	o.UDX.Open = func(at netip.AddrPort) (udx.PacketConn, error) { return h.ListenUDP(at) }
	return hyperswarmtest.Node(t, o)
}

// pair is two nodes that are to meet. Only if they have no direct path may they
// need the relay.
type pair struct {
	name           string
	server, client *hyperdht.Node
	direct         bool
}

// behind makes a pair of hosts behind a NAT each.
func (w *realWorld) behind(t *testing.T, server, client testbed.NAT) pair {
	t.Helper()
	return pair{
		fmt.Sprintf("%v dialled from %v", server, client),
		w.node(t, w.lab.Network(server).Host(), netip.AddrPort{}), w.node(t, w.lab.Network(client).Host(), netip.AddrPort{}),
		punchable(server, client),
	}
}

// all has pairs meet at once: most of the time they wait.
func (w *realWorld) all(t *testing.T, pairs []pair) {
	t.Helper()
	var wg sync.WaitGroup
	for _, p := range pairs {
		wg.Go(func() {
			if err := w.meet(t, p); err != nil {
				t.Errorf("%s: %v", p.name, err)
			}
		})
	}
	wg.Wait()
}

// patience is for pairs that meet all at once: a machine that is busy loses packets.
const patience = 5 * time.Minute

// listen has a pair's server listen, again as long as packets are lost.
func (w *realWorld) listen(ctx context.Context, p pair) (transport.Listener, error) {
	for {
		l, err := hyperswarm.Listen(ctx, hyperswarm.ListenOptions{Node: p.server, Allow: anybody, Relays: w.relays})
		if transport.CodeOf(err) != transport.CodeUnreachable || ctx.Err() != nil {
			return l, err
		}
	}
}

func (w *realWorld) meet(t *testing.T, p pair) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l, err := w.listen(ctx, p)
	if err != nil {
		return err
	}
	defer l.Close()
	var here transport.Conn
	for again := true; again; again = p.direct && err != nil && ctx.Err() == nil {
		began := time.Now()
		here, err = (&hyperswarm.Dialer{Node: p.client}).Dial(ctx, l.Endpoint())
		t.Logf("%s, after %v: %v", p.name, time.Since(began).Round(time.Millisecond), err)
	}
	switch {
	case p.direct && err != nil:
		return err
	case !p.direct && err == nil:
		here.Close()
		return errors.New("there is a direct path")
	case !p.direct && transport.CodeOf(err) != transport.CodeUnreachable:
		return fmt.Errorf("another error than CodeUnreachable: %w", err)
	}
	for !p.direct && err != nil { // until the server has registered with the relay
		if ctx.Err() != nil {
			return fmt.Errorf("through the relay: %w", err)
		}
		began := time.Now()
		here, err = (&hyperswarm.Dialer{Node: p.client, Relays: w.relays}).Dial(ctx, l.Endpoint())
		t.Logf("%s, through the relay after %v: %v", p.name, time.Since(began).Round(time.Millisecond), err)
	}
	defer here.Close()
	there, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	defer there.Close()
	if there.Peer() != p.client.Key().String() || here.Peer() != p.server.Key().String() {
		return fmt.Errorf("the peers are %s and %s", there.Peer(), here.Peer())
	}
	for _, way := range [][2]transport.Conn{{here, there}, {there, here}} {
		if err := way[0].Send(ctx, []transport.Frame{{Kind: transport.Ready}}); err != nil {
			return err
		}
		if frames, err := way[1].Receive(ctx); err != nil || frames[0].Kind != transport.Ready {
			return fmt.Errorf("%v came, %w", frames, err)
		}
	}
	return nil
}

// kinds are all that a NAT can be.
var kinds = []testbed.NAT{testbed.FullCone, testbed.AddressRestricted, testbed.PortRestricted, testbed.Careless, testbed.Symmetric}

// Req 3.6: between hosts behind Linux's own NATs, of each kind, a hole is
// punched wherever that is claimed; elsewhere a dial says so, and a relay takes
// over. docs/hyperswarm.md has this table.
//
// WIRE-T28.
func TestHolePunchingThroughRealNATs(t *testing.T) {
	if !testbed.Inside(t) {
		return
	}
	w := newRealWorld(t, 6)
	var pairs []pair
	for _, server := range kinds {
		for _, client := range kinds {
			pairs = append(pairs, w.behind(t, server, client))
		}
	}
	w.all(t, pairs)
}

// punchable reports whether two ends can punch a hole: both show everybody one
// address, or one does and lets in the other's host, whatever its port.
func punchable(a, b testbed.NAT) bool {
	open := func(k testbed.NAT) bool { return k == testbed.FullCone || k == testbed.AddressRestricted }
	return a != testbed.Symmetric && b != testbed.Symmetric || open(a) || open(b)
}

// One public hub is enough, though it alone cannot tell what kind a NAT is of.
func TestHolePunchingWithOneHub(t *testing.T) {
	if !testbed.Inside(t) {
		return
	}
	w := newRealWorld(t, 1)
	w.all(t, []pair{
		w.behind(t, testbed.PortRestricted, testbed.PortRestricted),
		w.behind(t, testbed.Symmetric, testbed.FullCone),
		w.behind(t, testbed.Symmetric, testbed.PortRestricted),
		w.behind(t, testbed.PortRestricted, testbed.Symmetric),
		w.behind(t, testbed.Symmetric, testbed.Symmetric),
	})
}

// Whatever the NATs, a host that everybody reaches is reached, and hosts of one
// network reach each other inside, without the router sending anything back in.
func TestPathsThatNeedNoHole(t *testing.T) {
	if !testbed.Inside(t) {
		return
	}
	w := newRealWorld(t, 4)
	public := w.lab.Host()
	open := w.node(t, public, netip.AddrPortFrom(public.Addr(), dhtPort))
	var pairs []pair
	for _, kind := range kinds {
		network := w.lab.Network(kind)
		a, b := w.node(t, network.Host(), netip.AddrPort{}), w.node(t, network.Host(), netip.AddrPort{})
		pairs = append(pairs,
			pair{"both behind one " + kind.String(), a, b, true},
			pair{kind.String() + " dials public", open, a, true},
			pair{kind.String() + " dialled from public", b, open, true},
		)
	}
	for _, p := range pairs { // one after the other: a node listens on its key once
		w.all(t, []pair{p})
	}
}
