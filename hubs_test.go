package parley_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt/replica"
	hyperswarmcards "github.com/parleyhub/parley/discovery/hyperswarm"
	natscards "github.com/parleyhub/parley/discovery/nats"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm"
	natstransport "github.com/parleyhub/parley/transport/nats"
)

func anybody(identity.PublicKey) bool { return true }

// hub is a node with discovery, as a stranger makes one: its agents have ids such as venus.
type hub struct {
	*parley.Node
	key    identity.PublicKey
	dialer transport.Dialer
}

// network makes hubs that find each other.
type network func(t *testing.T) hub

func newHub(t *testing.T, pair *identity.Pair, over agent.Transport, d transport.Dialer, l transport.Listener, s registry.Source) hub {
	t.Helper()
	n, err := parley.New(parley.Options{Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{over: d}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := n.Registry().EnableDiscovery(string(over), s); err != nil {
		t.Fatal(err)
	}
	if err := n.Listen(l); err != nil { // after the discovery: what is announced follows
		t.Fatal(err)
	}
	return hub{n, pair.Public(), d}
}

func overNATS(t *testing.T) network {
	url := testbed.StartNATS(t, testbed.WithoutJetStream).URL()
	return func(t *testing.T) hub {
		nc, err := nats.Connect(url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		pair := identity.Generate()
		o := natstransport.Options{Conn: nc, Pair: pair}
		l, err := natstransport.Listen(t.Context(), natstransport.ListenOptions{Options: o, Allow: anybody})
		if err != nil {
			t.Fatal(err)
		}
		return newHub(t, pair, agent.TransportNATS, &natstransport.Dialer{Options: o}, l,
			&natscards.Source{Conn: nc, Ledger: &signedcard.Ledger{Author: signedcard.NewAuthor(pair, time.Minute), Trusted: anybody}})
	}
}

func overHyperswarm(t *testing.T) network {
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	var earlier []identity.PublicKey
	return func(t *testing.T) hub {
		pair := identity.Generate()
		stream := secretstream.Options{MaxMessage: new(transport.Codec).MaxMessage()}
		node := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap, Pair: pair, Stream: stream})
		connections := swarm.New(swarm.Options{Node: node, Allow: anybody, Stream: stream})
		t.Cleanup(func() { _ = connections.Close() })
		l, err := hyperswarm.Listen(hyperswarmtest.Context(t), hyperswarm.ListenOptions{Node: node, Pair: pair.Derive("channels"), Allow: anybody})
		if err != nil {
			t.Fatal(err)
		}
		source := &hyperswarmcards.Source{
			Swarm: connections, Ledger: &signedcard.Ledger{Author: signedcard.NewAuthor(pair, time.Minute), Trusted: anybody},
		}
		source.KeepConnected(earlier)
		earlier = append(earlier, pair.Public())
		return newHub(t, pair, agent.TransportHyperswarm, &hyperswarm.Dialer{Node: node}, l, source)
	}
}

// heard is an agent with what it has received.
type heard struct {
	*parley.Agent
	got chan *envelope.Envelope
}

func (h hub) join(t *testing.T, id string) heard {
	t.Helper()
	x := heard{got: make(chan *envelope.Envelope, 100)}
	var err error
	if x.Agent, err = h.Join(card(id), func(_ context.Context, e *envelope.Envelope) { x.got <- e }); err != nil {
		t.Fatal(err)
	}
	return x
}

// next returns the next envelope and compares its ids and payload.
func (x heard) next(t *testing.T, sender, payload string) *envelope.Envelope {
	t.Helper()
	select {
	case e := <-x.got:
		if e.Sender != sender || e.Recipient != x.ID() || string(e.Payload) != payload {
			t.Errorf("%s got %s from %s for %s, want %s from %s", x.ID(), e.Payload, e.Sender, e.Recipient, payload, sender)
		}
		return e
	case <-time.After(time.Minute):
		t.Fatalf("%s from %s did not arrive at %s", payload, sender, x.ID())
		return nil
	}
}

func (x heard) send(t *testing.T, to, text string) {
	t.Helper()
	if res, err := x.Send(t.Context(), to, envelope.Request, text); err != nil || res.TargetAgentID != to {
		t.Fatalf("to %s: %+v, %v", to, res, err)
	}
}

func (x heard) reply(t *testing.T, e *envelope.Envelope, text string) {
	t.Helper()
	if _, err := x.Reply(t.Context(), e, envelope.Response, text); err != nil {
		t.Fatal(err)
	}
}

// knows waits until a hub can address an agent of another one, and returns the agent's id there.
func (h hub) knows(t *testing.T, name string, of hub) string {
	t.Helper()
	id := signedcard.ID(name, of.key)
	wait.Eventually(t, id+" is discovered with an endpoint", func() bool {
		found, err := h.Registry().Get(id)
		return err == nil && len(found.Endpoints) > 0
	})
	return id
}

func overEach(t *testing.T, test func(*testing.T, network)) {
	for name, start := range map[string]func(*testing.T) network{"NATS": overNATS, "Hyperswarm": overHyperswarm} {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

// Req 1.7, 4.1, 4.4: what discovery gives can be addressed, although each program gives its agents ids without a key:
// equal ids of several programs are told apart, an agent's own name stays its own, and answers reach the one that asked.
func TestDiscoveredIdsCanBeAddressed(t *testing.T) {
	overEach(t, func(t *testing.T, start network) {
		a, b, c := start(t), start(t), start(t)
		venusA, venusB, venusC := a.join(t, "venus"), b.join(t, "venus"), c.join(t, "venus")
		atB, atC := a.knows(t, "venus", b), a.knows(t, "venus", c)
		venusA.send(t, atB, "to b")
		venusA.send(t, atC, "to c")
		venusA.send(t, "venus", "to myself")
		venusA.next(t, "venus", `"to myself"`)
		here := signedcard.ID("venus", a.key)
		first, second := venusB.next(t, here, `"to b"`), venusC.next(t, here, `"to c"`)
		venusC.reply(t, second, "from c")
		answer := venusA.next(t, atC, `"from c"`)
		venusB.reply(t, first, "from b")
		venusA.next(t, atB, `"from b"`)
		if answer.CorrelationID != second.Thread() {
			t.Errorf("the answer is in thread %s, not %s", answer.CorrelationID, second.Thread())
		}
		// The other way round, and by the id that others have for an agent.
		venusC.send(t, c.knows(t, "venus", a), "ahoy")
		venusA.reply(t, venusA.next(t, atC, `"ahoy"`), "ahoy yourself")
		venusC.next(t, here, `"ahoy yourself"`)
		if _, err := venusA.Send(t.Context(), here, envelope.Request, "me"); err != nil {
			t.Fatal(err)
		}
		venusA.next(t, "venus", `"me"`)
	})
}

// Req 7.2, 9.1: agents of several programs negotiate and edit one document, with equal ids.
func TestDiscoveredAgentsWorkTogether(t *testing.T) {
	overEach(t, func(t *testing.T, start network) {
		a, b := start(t), start(t)
		venusA, venusB := a.join(t, "venus"), b.join(t, "venus")
		atB := a.knows(t, "venus", b)
		here := b.knows(t, "venus", a)
		asking, err := venusA.Negotiator(negotiation.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer asking.Close()
		asked, err := venusB.Negotiator(negotiation.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer asked.Close()
		asked.OnProposal(func(ctx context.Context, p negotiation.Proposal) {
			if p.Proposer != here {
				t.Errorf("the proposer is %s", p.Proposer)
			}
			if err := asked.Accept(ctx, p.ID, time.Minute); err != nil {
				t.Error(err)
			}
		})
		p, err := asking.Propose(t.Context(), atB, negotiation.Terms{TaskDescription: "dig", EstimatedComplexity: negotiation.Simple, Deadline: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if p, err = asking.Wait(t.Context(), p.ID); err != nil || p.Status != negotiation.Accepted || p.AcceptedBy != atB {
			t.Errorf("got %+v, %v", p, err)
		}

		var theirs *channel.Channel
		wait.Eventually(t, "the channel is there", func() (ok bool) { theirs, ok = b.Channels().Between("venus", here); return ok })
		mineLink, _ := a.Channels().Between("venus", atB)
		mine, other := document(t, venusA.Agent, mineLink), document(t, venusB.Agent, theirs)
		for key, r := range map[string]*replica.Replica{"a": mine, "b": other} {
			if err := r.Edit(t.Context(), write(key)); err != nil {
				t.Fatal(err)
			}
		}
		wait.Eventually(t, "both have both edits", func() bool {
			return has(t, mine, "a") && has(t, mine, "b") && has(t, other, "a") && has(t, other, "b")
		})
	})
}

// Req 1.7: a peer that proves one key speaks for no agent of another, whatever it says of itself.
func TestAKeyCannotBeImpersonated(t *testing.T) {
	overEach(t, func(t *testing.T, start network) {
		a, b, liar := start(t), start(t), start(t)
		a.join(t, "venus")
		b.join(t, "mars")
		atA := liar.knows(t, "venus", a)
		claimed := a.knows(t, "mars", b)
		at, err := liar.Registry().Get(atA)
		if err != nil {
			t.Fatal(err)
		}
		m := channel.NewManager(channel.Options{
			Dialers:   map[agent.Transport]transport.Dialer{at.Endpoints[0].Transport: liar.dialer},
			Introduce: func(string) json.RawMessage { return nil },
		}, nil)
		defer m.Close()
		c, err := m.OpenAt(t.Context(), claimed, atA, at.Endpoints[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Ready(t.Context()); channel.CodeOf(err) != channel.CodeRefused || !strings.Contains(err.Error(), "another key") {
			t.Errorf("the channel: %v", err)
		}
		if events := refusals(a.Node, claimed, "venus"); events[parley.CodePeerRefused] != 1 {
			t.Errorf("security events: %v", events)
		}
	})
}
