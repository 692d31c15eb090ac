package hyperswarm_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm"
)

// Two agents find each other by their public keys in a private DHT, whose only public node is the
// first one.
func Example() {
	ctx := context.Background()
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	hub, err := hyperdht.Listen(hyperdht.Options{Listen: loopback, Public: loopback})
	if err != nil {
		log.Fatal(err)
	}
	defer hub.Close()
	open := func() *hyperdht.Node {
		n, err := hyperdht.Listen(hyperdht.Options{Listen: loopback, Bootstrap: []string{hub.Addr().String()}})
		if err != nil {
			log.Fatal(err)
		}
		return n
	}
	marsNode, venusNode := open(), open()
	defer marsNode.Close()
	defer venusNode.Close()

	listener, err := hyperswarm.Listen(ctx, hyperswarm.ListenOptions{
		Node:  venusNode,
		Allow: func(k identity.PublicKey) bool { return k == marsNode.Key() },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer listener.Close()

	handled := make(chan struct{})
	venus := channel.NewManager(channel.Options{}, func(c *channel.Channel) {
		c.OnMessage(func(_ context.Context, e *envelope.Envelope) {
			fmt.Println("venus got", string(e.Payload))
			close(handled)
		})
	})
	defer venus.Close()
	go venus.Serve(ctx, listener)

	mars := channel.NewManager(channel.Options{Dialers: map[agent.Transport]transport.Dialer{
		agent.TransportHyperswarm: &hyperswarm.Dialer{Node: marsNode},
	}}, nil)
	defer mars.Close()
	c, err := mars.OpenAt(ctx, "mars", "venus", listener.Endpoint())
	if err != nil {
		log.Fatal(err)
	}
	e, err := envelope.New("mars", "venus", envelope.Notification, "hello")
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Send(ctx, e); err != nil {
		log.Fatal(err)
	}
	<-handled
	// Output: venus got "hello"
}
