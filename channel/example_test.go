package channel_test

import (
	"context"
	"fmt"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/memory"
)

func Example() {
	ctx := context.Background()
	var network memory.Network
	listener, err := network.Listen("venus's place")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer listener.Close()

	// Venus accepts channels and prints the envelopes she receives.
	there := channel.NewManager(channel.Options{}, func(c *channel.Channel) {
		c.OnMessage(func(_ context.Context, e *envelope.Envelope) {
			fmt.Println(e.Sender, "says", string(e.Payload))
		})
	})
	defer there.Close()
	go there.Serve(ctx, listener)

	// Mars opens a channel.
	here := channel.NewManager(channel.Options{
		Dialers: map[agent.Transport]transport.Dialer{agent.TransportLocal: &network},
	}, nil)
	defer here.Close()
	c, err := here.OpenAt(ctx, "mars", "venus", listener.Endpoint())
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := envelope.New("mars", "venus", envelope.Notification, "hello")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Send(ctx, e); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("flushed:", c.Flush(ctx))
	// Output:
	// mars says "hello"
	// flushed: <nil>
}
