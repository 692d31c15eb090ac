// This program is an agent of a Parley hub: it counts the words of its tasks.
//
//	go run ./examples/tasks http://127.0.0.1:8080
//	parley send counter "one two three"
//
// The hub's token, if it requires one, is in the environment: PARLEY_TOKEN.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/tasks"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: tasks HUB-URL")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], os.Getenv("PARLEY_TOKEN")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, hubURL, token string) error {
	at, err := hub.Endpoint(hubURL)
	if err != nil {
		return err
	}
	dialer := &websocket.Dialer{}
	if _, host, ok := strings.Cut(hubURL, "://"); ok && token != "" {
		dialer.Token = websocket.TokenFor(strings.TrimSuffix(host, "/"), token)
	}
	node, err := parley.New(parley.Options{Channels: channel.Options{
		Dialers: map[agent.Transport]transport.Dialer{agent.TransportWebSocket: dialer},
	}})
	if err != nil {
		return err
	}
	defer node.Close(context.Background()) //nolint:errcheck // the program ends
	card := agent.Card{
		ID: "counter", Name: "Counter", Version: "1.0.0", Description: "counts words", Tier: agent.L3,
		Capabilities: []agent.Capability{{ID: "text.count", Name: "Count words", Description: "says how many words a text has"}},
	}
	me, err := node.Join(card, func(context.Context, *envelope.Envelope) {})
	if err != nil {
		return err
	}
	return me.ServeTasks(ctx, at, count)
}

// count does a task. Its text is data: nothing in it is an instruction to the program.
func count(_ context.Context, t *tasks.Task) (tasks.Answer, error) {
	words := len(strings.Fields(t.Text))
	if words == 1 {
		return tasks.Question("One word only. Which other words are there?"), nil
	}
	return tasks.Answer{Text: fmt.Sprintf("%d words", words), Data: map[string]int{"words": words}}, nil
}
