package hub_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// A program that asks an agent of a running hub, usually http://127.0.0.1:8080.
func Example() {
	hubURL, stop := startHub(nil)
	defer stop()
	if err := ask(context.Background(), os.Stdout, hubURL, "", "echo", "is anybody there?"); err != nil {
		fmt.Println(err)
	}
	// Output: is anybody there?
}

// ask sends a question to an agent of the hub with the capability, and prints the answer as it arrives.
func ask(ctx context.Context, out io.Writer, hubURL, token, capability, question string) (err error) {
	u, err := url.Parse(hubURL)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	events := telemetry.New(telemetry.Options{Sinks: []telemetry.Sink{telemetry.SinkFunc(func(e telemetry.Event) {
		if e.Type == telemetry.DeliveryFailure { // a refusal by the hub, for instance
			select {
			case failed <- errors.New(e.Detail):
			default: // only the first one matters
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
	if err := node.Registry().EnableDiscovery("hub", &hub.Source{URL: hubURL, Token: token}); err != nil {
		return err
	}
	answers := make(chan *envelope.Envelope, 64)
	// Each run has its own agent id: the hub refuses a second agent with the same id.
	card := agent.Card{ID: "asker-" + rand.Text(), Name: "Asker", Version: "1.0.0", Tier: agent.L3, Capabilities: []agent.Capability{}}
	me, err := node.Join(card, func(ctx context.Context, e *envelope.Envelope) {
		select {
		case answers <- e: // blocks the agent while printing is slow
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
