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

// realWorld is a DHT of public hosts in network namespaces; the last host is also a relay.
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

// node starts a node on a host; public is invalid behind a NAT.
func (w *realWorld) node(t *testing.T, h *testbed.Host, public netip.AddrPort) *hyperdht.Node {
	t.Helper()
	o := options(w.bootstrap)
	o.Listen, o.Public = netip.AddrPortFrom(h.Addr(), public.Port()), public
	o.UDX.Open = func(at netip.AddrPort) (udx.PacketConn, error) { return h.ListenUDP(at) }
	return hyperswarmtest.Node(t, o)
}

// pair is two nodes that are to connect, through the relay only if direct is false.
type pair struct {
	name           string
	server, client *hyperdht.Node
	direct         bool
}

// behind returns a pair whose hosts are each behind a NAT.
func (w *realWorld) behind(t *testing.T, server, client testbed.NAT) pair {
	t.Helper()
	return pair{
		fmt.Sprintf("%v dialled from %v", server, client),
		w.node(t, w.lab.Network(server).Host(), netip.AddrPort{}), w.node(t, w.lab.Network(client).Host(), netip.AddrPort{}),
		punchable(server, client),
	}
}

// all connects all pairs concurrently, because they mostly wait.
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

// patience is long because many pairs connect at once, and a busy machine loses packets.
const patience = 5 * time.Minute

// listen starts a pair's listener, and retries while packets are lost.
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
		return fmt.Errorf("the error is not CodeUnreachable: %w", err)
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
			return fmt.Errorf("received %v, %w", frames, err)
		}
	}
	return nil
}

// kinds are all kinds of NAT.
var kinds = []testbed.NAT{testbed.FullCone, testbed.AddressRestricted, testbed.PortRestricted, testbed.Careless, testbed.Symmetric}

// Req 3.6: hosts behind Linux's NATs of each kind connect by hole punching where docs/hyperswarm.md says so.
// Elsewhere the dial fails with CodeUnreachable, and the relay works.
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

// punchable reports whether hole punching works: both NATs use one address for all peers, or one does and
// accepts packets from any port of the other's host.
func punchable(a, b testbed.NAT) bool {
	open := func(k testbed.NAT) bool { return k == testbed.FullCone || k == testbed.AddressRestricted }
	return a != testbed.Symmetric && b != testbed.Symmetric || open(a) || open(b)
}

// One public hub is enough, although it cannot determine the kind of a NAT alone.
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

// Behind any NAT, a public host is reachable, and hosts of one network connect directly, without hairpinning.
func TestPathsWithoutHolePunching(t *testing.T) {
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
	for _, p := range pairs { // sequentially: a node can listen on its key only once
		w.all(t, []pair{p})
	}
}
