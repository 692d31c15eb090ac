// Talk is an agent in a process of its own that talks with one in another
// process over WebSocket. In one terminal:
//
//	TALK_TOKEN=secret go run ./examples/talk -as venus -listen 127.0.0.1:7001
//
// and in another:
//
//	TALK_TOKEN=secret go run ./examples/talk -as mars -to venus -at ws://127.0.0.1:7001 hello "how are you?"
//
// Venus answers each message in capitals; mars prints the answers and ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "talk:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	as := flag.String("as", "", "the agent's `id`, a planetary one")
	listen := flag.String("listen", "", "the `address` to take channels at")
	to := flag.String("to", "", "the `id` of the agent to talk with")
	at := flag.String("at", "", "the `url` where it listens")
	flag.Parse()
	token := os.Getenv("TALK_TOKEN") // not a flag: other users see those
	if token == "" {
		return errors.New("set TALK_TOKEN to the same secret in both processes")
	}

	node, err := parley.New(parley.Options{Channels: channel.Options{
		Dialers: map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{
			Token: func(context.Context, *url.URL) (string, error) { return token, nil },
		}},
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close(context.WithoutCancel(ctx))) }()

	if *listen != "" {
		return answer(ctx, node, *as, *listen, token)
	}
	return ask(ctx, node, *as, *to, *at, flag.Args())
}

func card(id string) agent.Card {
	return agent.Card{ID: id, Name: strings.ToUpper(id), Version: "1.0.0", Tier: agent.PlanetaryTier(id), Capabilities: []agent.Capability{}}
}

// answer serves until it is interrupted.
func answer(ctx context.Context, node *parley.Node, as, address, token string) error {
	var me *parley.Agent
	ready := make(chan struct{})
	me, err := node.Join(card(as), func(ctx context.Context, e *envelope.Envelope) {
		<-ready
		var text string
		if err := e.Unmarshal(&text); err != nil {
			fmt.Fprintln(os.Stderr, "talk:", err)
			return
		}
		fmt.Printf("%s says: %s\n", e.Sender, text)
		if _, err := me.Reply(ctx, e, envelope.Response, strings.ToUpper(text)); err != nil {
			fmt.Fprintln(os.Stderr, "talk:", err)
		}
	})
	if err != nil {
		return err
	}
	close(ready)
	l, err := websocket.Listen(address, websocket.ListenOptions{Authenticate: websocket.Tokens(map[string]string{"friend": token})})
	if err != nil {
		return err
	}
	if err := node.Listen(l); err != nil {
		return err
	}
	fmt.Println("listening at", l.Endpoint().Address)
	<-ctx.Done()
	return nil
}

// ask sends the texts and prints the answers.
func ask(ctx context.Context, node *parley.Node, as, to, at string, texts []string) error {
	answers := make(chan string, len(texts))
	me, err := node.Join(card(as), func(_ context.Context, e *envelope.Envelope) {
		var text string
		if err := e.Unmarshal(&text); err != nil {
			text = err.Error()
		}
		answers <- fmt.Sprintf("%s answers: %s", e.Sender, text)
	})
	if err != nil {
		return err
	}
	if _, err := node.Connect(ctx, as, to, agent.Endpoint{Transport: agent.TransportWebSocket, Address: at}); err != nil {
		return err
	}
	for _, text := range texts {
		if _, err := me.Send(ctx, to, envelope.Request, text); err != nil {
			return err
		}
	}
	for range texts {
		select {
		case s := <-answers:
			fmt.Println(s)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
