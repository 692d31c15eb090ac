package websocket_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// One agent listens, the other dials with its token; usually they are separate processes.
func Example() {
	listener, err := websocket.Listen("127.0.0.1:0", websocket.ListenOptions{
		Authenticate: websocket.Tokens(map[string]string{"mars-hub": "a long random token"}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer listener.Close()
	handled := make(chan struct{})
	there := channel.NewManager(channel.Options{
		Authorize: func(_ context.Context, r channel.Request) error {
			fmt.Printf("%s opens a channel from %s to %s\n", r.Peer, r.From, r.To)
			return nil
		},
	}, func(c *channel.Channel) {
		c.OnMessage(func(_ context.Context, e *envelope.Envelope) {
			fmt.Println("venus got", string(e.Payload))
			close(handled)
		})
	})
	defer there.Close()
	go there.Serve(context.Background(), listener)

	host := strings.TrimPrefix(listener.Endpoint().Address, "ws://")
	here := channel.NewManager(channel.Options{Dialers: map[agent.Transport]transport.Dialer{
		agent.TransportWebSocket: &websocket.Dialer{Token: websocket.TokenFor(host, "a long random token")},
	}}, nil)
	defer here.Close()
	ctx := context.Background()
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
	<-handled
	// Output:
	// mars-hub opens a channel from mars to venus
	// venus got "hello"
}
