package parley_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// Two agents of one process: mars asks whichever agent can write React.
func Example() {
	ctx := context.Background()
	node, err := parley.New(parley.Options{})
	if err != nil {
		panic(err)
	}
	defer node.Close(ctx)

	venus := agent.Card{ID: "venus", Name: "VENUS", Version: "1.0.0", Tier: agent.L2, Capabilities: []agent.Capability{{ID: "codegen.react"}}}
	var replies *parley.Agent
	replies, err = node.Join(venus, func(ctx context.Context, e *envelope.Envelope) {
		if _, err := replies.Reply(ctx, e, envelope.Response, "on it"); err != nil {
			fmt.Println(err)
		}
	})
	if err != nil {
		panic(err)
	}

	answers := make(chan string)
	mars, err := node.Join(agent.Card{ID: "mars", Name: "MARS", Version: "1.0.0", Tier: agent.L2, Capabilities: []agent.Capability{}},
		func(_ context.Context, e *envelope.Envelope) { answers <- e.Sender + " says " + string(e.Payload) })
	if err != nil {
		panic(err)
	}
	result, err := mars.SendToCapability(ctx, "codegen.react", envelope.Request, "draw a button")
	if err != nil {
		panic(err)
	}
	fmt.Println(<-answers)
	fmt.Println(result.TargetAgentID, result.Path)
	// Output:
	// venus says "on it"
	// venus local
}

// Two nodes over WebSocket, as two processes would do it: venus listens, mars
// connects and shows its token. Each node learns the other agent's card.
func Example_twoNodes() {
	ctx := context.Background()
	const token = "a long random secret"

	there, err := parley.New(parley.Options{})
	if err != nil {
		panic(err)
	}
	defer there.Close(ctx)
	var venus *parley.Agent
	venus, err = there.Join(agent.Card{ID: "venus", Name: "VENUS", Version: "1.0.0", Tier: agent.L2, Capabilities: []agent.Capability{}},
		func(ctx context.Context, e *envelope.Envelope) {
			var text string
			if err := e.Unmarshal(&text); err != nil {
				fmt.Println(err)
			}
			if _, err := venus.Reply(ctx, e, envelope.Response, strings.ToUpper(text)); err != nil {
				fmt.Println(err)
			}
		})
	if err != nil {
		panic(err)
	}
	listener, err := websocket.Listen("127.0.0.1:0", websocket.ListenOptions{
		Authenticate: websocket.Tokens(map[string]string{"a friend": token}),
	})
	if err != nil {
		panic(err)
	}
	if err := there.Listen(listener); err != nil {
		panic(err)
	}

	at := listener.Endpoint() // agent.Endpoint{Transport: agent.TransportWebSocket, Address: "ws://127.0.0.1:…"}
	here, err := parley.New(parley.Options{Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{
		agent.TransportWebSocket: &websocket.Dialer{Token: websocket.TokenFor(strings.TrimPrefix(at.Address, "ws://"), token)},
	}}})
	if err != nil {
		panic(err)
	}
	defer here.Close(ctx)
	answers := make(chan string)
	mars, err := here.Join(agent.Card{ID: "mars", Name: "MARS", Version: "1.0.0", Tier: agent.L2, Capabilities: []agent.Capability{}},
		func(_ context.Context, e *envelope.Envelope) { answers <- string(e.Payload) })
	if err != nil {
		panic(err)
	}
	if _, err := here.Connect(ctx, "mars", "venus", at); err != nil {
		panic(err)
	}
	result, err := mars.Send(ctx, "venus", envelope.Request, "hello")
	fmt.Println(<-answers, result.Path, err)
	// Output: "HELLO" remote <nil>
}
