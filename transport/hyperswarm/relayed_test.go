package hyperswarm_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm"
	"github.com/parleyhub/parley/transport/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/transport/hyperswarm/internal/simnet"
	"github.com/parleyhub/parley/transport/hyperswarm/keys"
	"github.com/parleyhub/parley/transport/hyperswarm/relay"
	"github.com/parleyhub/parley/transport/hyperswarm/udx"
)

// Req 3.6: two agents behind NATs that cannot be passed talk through a hub.
func TestAgentsBehindHardNATsGoThroughARelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		sim := simnet.New(1, simnet.Faults{Delay: 10 * time.Millisecond})
		var bootstrap []string
		var nodes []*hyperdht.Node
		defer func() {
			for i := len(nodes) - 1; i >= 0; i-- {
				if err := nodes[i].Close(); err != nil {
					t.Error(err)
				}
			}
		}()
		node := func(at string, public bool, open func(netip.AddrPort) (udx.PacketConn, error)) *hyperdht.Node {
			o := options(bootstrap)
			o.Listen, o.UDX.Open = netip.MustParseAddrPort(at), open
			if public {
				o.Public = o.Listen
			}
			n, err := hyperdht.Listen(o)
			if err != nil {
				t.Fatal(err)
			}
			if len(nodes) == 0 {
				bootstrap = []string{at}
			}
			nodes = append(nodes, n)
			return n
		}
		onNet := func(at netip.AddrPort) (udx.PacketConn, error) { return sim.ListenAt(at), nil }
		for _, at := range []string{"9.0.0.1:49737", "9.0.0.2:49737", "9.0.0.3:49737", "9.0.0.4:49737"} {
			if err := node(at, true, onNet).WaitReady(ctx); err != nil {
				t.Fatal(err)
			}
		}
		behind := func(host string) *hyperdht.Node {
			r := sim.NAT(host, simnet.Fresh)
			return node("192.168.0.2:0", false, func(at netip.AddrPort) (udx.PacketConn, error) { return r.Listen(at), nil })
		}
		inner, err := nodes[3].Listen(hyperdht.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := inner.WaitAnnounced(ctx); err != nil {
			t.Fatal(err)
		}
		hub := relay.Serve(inner, relay.ServerOptions{})
		defer hub.Close()

		relays := []keys.PublicKey{hub.Key()}
		l, err := hyperswarm.Listen(ctx, hyperswarm.ListenOptions{Node: behind("5.5.5.5"), Allow: anybody, Relays: relays})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		client := behind("6.6.6.6")
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
