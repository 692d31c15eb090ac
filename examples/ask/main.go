// Ask is a program that asks an agent of a running hub, whichever has a
// capability, and prints the answer as it comes:
//
//	parley start
//	go run ./examples/ask explain-code "what is a monad?"
//
// ASK_TOKEN is the hub's token, if it has one; ASK_HUB its URL, if it is not
// http://127.0.0.1:8080.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	hubcards "github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: ask CAPABILITY QUESTION")
		os.Exit(2)
	}
	hub := cmp.Or(os.Getenv("ASK_HUB"), "http://127.0.0.1:8080")
	if err := ask(ctx, os.Stdout, hub, os.Getenv("ASK_TOKEN"), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "ask:", err)
		os.Exit(1)
	}
}

func ask(ctx context.Context, out io.Writer, hub, token, capability, question string) (err error) {
	u, err := url.Parse(hub)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	events := telemetry.New(telemetry.Options{Sinks: []telemetry.Sink{telemetry.SinkFunc(func(e telemetry.Event) {
		if e.Type == telemetry.DeliveryFailure { // the hub does not want us, say
			select {
			case failed <- errors.New(e.Detail):
			default: // one is enough
			}
		}
	})}})
	node, err := parley.New(parley.Options{
		Router: router.Options{Telemetry: events},
		Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{
			agent.TransportWebSocket: &websocket.Dialer{Token: websocket.TokenFor(u.Host, token)},
		}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close(context.WithoutCancel(ctx))) }()
	if err := node.Registry().EnableDiscovery("hub", &hubcards.Source{URL: hub, Token: token}); err != nil {
		return err
	}
	answers := make(chan *envelope.Envelope, 64)
	// Each run is an agent of its own: of two with one id the hub takes the first.
	card := agent.Card{ID: "asker-" + rand.Text(), Name: "Asker", Version: "1.0.0", Tier: agent.L3, Capabilities: []agent.Capability{}}
	me, err := node.Join(card, func(ctx context.Context, e *envelope.Envelope) {
		select {
		case answers <- e: // one that is printed slowly slows the agent's channel down
		case <-ctx.Done():
		}
	})
	if err != nil {
		return err
	}
	if _, err := me.SendToCapability(ctx, capability, envelope.Request, map[string]any{"text": question, "stream": true}); err != nil {
		return err
	}
	for {
		select {
		case e := <-answers:
			if done, err := show(out, e); done || err != nil {
				return err
			}
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// show prints a piece of the answer and reports whether it was the last.
func show(out io.Writer, e *envelope.Envelope) (done bool, err error) {
	type failure struct{ Message, Remedy string }
	var p struct {
		Text  string
		Error *failure
		failure
	}
	if err := e.Unmarshal(&p); err != nil {
		return true, err
	}
	switch {
	case e.Type == envelope.ErrorMessage:
		return true, fmt.Errorf("%s: %s %s", e.Sender, p.Message, p.Remedy)
	case p.Error != nil:
		return true, fmt.Errorf("%s: %s %s", e.Sender, p.Error.Message, p.Error.Remedy)
	}
	if _, err := fmt.Fprint(out, p.Text); err != nil {
		return true, err
	}
	if e.Type == envelope.StreamEnd {
		fmt.Fprintln(out)
	}
	return e.Type == envelope.StreamEnd, nil
}
