//go:build interop && linux

package interop_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	library "github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/stubmodel"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// proposer is a Go program that proposes tasks to the agents of a hub.
type proposer struct {
	node    *library.Node
	terms   *negotiation.Negotiator
	answers chan *envelope.Envelope
}

func (o *office) newProposer(t *testing.T) *proposer {
	t.Helper()
	status, err := o.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(status.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	p := &proposer{answers: make(chan *envelope.Envelope, 64)}
	p.node, err = library.New(library.Options{Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{
		agent.TransportWebSocket: &websocket.Dialer{Token: websocket.TokenFor(u.Host, "")},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.node.Close(context.Background()) })
	if err := p.node.Registry().EnableDiscovery("hub", &hub.Source{URL: status.HTTP}); err != nil {
		t.Fatal(err)
	}
	card := agent.Card{ID: "proposer", Name: "Proposer", Version: "1", Tier: agent.L3, Capabilities: []agent.Capability{}}
	if _, err := p.node.Join(card, func(_ context.Context, e *envelope.Envelope) { p.answers <- e }); err != nil {
		t.Fatal(err)
	}
	if p.terms, err = negotiation.New(p.node.Router(), "proposer", negotiation.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.terms.Close() })
	return p
}

// propose proposes a task, and returns how it was taken. answer waits for the agent's answer to what it has accepted.
func (p *proposer) propose(t *testing.T, to, task string, capabilities ...string) (settled negotiation.Proposal, answer func() *envelope.Envelope) {
	t.Helper()
	asked, err := p.terms.Propose(t.Context(), to, negotiation.Terms{
		TaskDescription: task, RequiredCapabilities: capabilities, EstimatedComplexity: negotiation.Simple, Deadline: time.Minute})
	if err == nil {
		settled, err = p.terms.Wait(t.Context(), asked.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	return settled, func() *envelope.Envelope {
		for {
			select {
			case e := <-p.answers:
				if e.CorrelationID == settled.CorrelationID && (e.Type == envelope.Response || e.Type == envelope.ErrorMessage) {
					return e
				}
			case <-time.After(2 * time.Minute):
				t.Fatalf("%s has not answered", to)
			}
		}
	}
}

// A Go program proposes tasks to an open conversation that others may see: its user is asked about the program once, and it is woken, does
// what it is asked, or refuses it.
func TestASessionAnswersAProposal(t *testing.T) {
	t.Parallel()
	programs, model := openPrograms(t, &stubmodel.Handler{Script: func(said, result string, used int) string {
		next := answersTasks(said, result, used)
		if strings.Contains(result, "refuse this") {
			return strings.Replace(next, `"text"`, `"outcome":"rejected","text"`, 1)
		}
		return next
	}})
	d := newPlainDesktop(t, programs, model, "")
	d.ask(t, "install", "claude", "--yes")(t)
	claude := &session{d, "claude-shop", d.shop, []string{"claude", "--allowedTools", "mcp__parley"}}
	claude.begin(t)
	d.dial(t)
	claude.logFailure(t)
	claude.ready(t)
	claude.say(t, `USE:register_agent {"agentType":"claude","capabilities":["review"],"scope":"user","visibility":"public"}`, func() bool {
		return d.agent(t, "claude-shop").Visibility == "public"
	})
	p := d.newProposer(t)
	id := d.agent(t, "claude-shop").ID
	until(t, "the session has a card", func() bool { _, err := p.node.Registry().Get(id); return err == nil })

	accepted, answer := p.propose(t, id, "review the change", "review")
	until(t, "its user is asked", func() bool {
		n := claude.tasks(t)
		return len(n) == 1 && n[0].Status.State == dialect.StateAuthRequired
	})
	d.ask(t, "send", "--task", claude.tasks(t)[0].ID, "always")(t)
	done := answer()
	if n := claude.tasks(t); accepted.AcceptedBy != id || done.Type != envelope.Response || n[0].Status.State != dialect.StateCompleted || !strings.Contains(string(done.Payload), "VERDICT-"+n[0].ID) {
		t.Errorf("%+v was answered with %s %s: %+v", accepted, done.Type, done.Payload, n)
	}
	accepted, answer = p.propose(t, id, "refuse this")
	if no := answer(); accepted.Status != negotiation.Accepted || no.Type != envelope.ErrorMessage || !strings.Contains(string(no.Payload), `"cause":"rejected"`) {
		t.Errorf("%+v was refused with %s %s", accepted, no.Type, no.Payload)
	}
	if refused, _ := p.propose(t, id, "cook", "cooking"); refused.RejectionReason != negotiation.MissingCapability {
		t.Errorf("%+v", refused)
	}
}
