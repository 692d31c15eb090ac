package parley_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/toolbox"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/memory"
)

func boxed(id string) agent.Card {
	c := card(id)
	c.SandboxID = "box"
	return c
}

// refusals returns the security events of a node between two agents, by code.
func refusals(n *parley.Node, from, to string) map[string]int {
	codes := make(map[string]int)
	for _, e := range n.Telemetry().Recent(0) {
		if e.Type == telemetry.Security && e.Sender == from && (e.Target == to || e.Recipient == to) {
			codes[e.Code]++
		}
	}
	return codes
}

func write(key string) func(*crdt.Doc) error {
	return func(d *crdt.Doc) error { return d.Map("m").Set(key, 1) }
}

func has(t *testing.T, r *replica.Replica, key string) (found bool) {
	t.Helper()
	if err := r.View(context.Background(), func(d *crdt.Doc) { _, found = d.Map("m").Get(key) }); err != nil {
		t.Fatal(err)
	}
	return found
}

// document returns an agent's replica of the document "plan" that is closed at the end of the test.
func document(t *testing.T, a *parley.Agent, ends ...replica.Link) *replica.Replica {
	t.Helper()
	r, err := a.Document(replica.Options{State: "plan", Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	for _, l := range ends {
		if _, err := r.Attach(l); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func between(t *testing.T, n *parley.Node, local, remote string) *channel.Channel {
	t.Helper()
	c, ok := n.Channels().Between(local, remote)
	if !ok {
		t.Fatalf("there is no channel from %s to %s", local, remote)
	}
	return c
}

// Req 4.5, Req 10.1, Req 10.2: for any two agents, at two nodes or at one, a channel opens exactly if the rules permit
// the opener to address the other, and what either sends over it arrives exactly if the rules permit that direction.
func TestChannelsObeyTheRules(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(id string) agent.Card {
			c := card(id)
			c.Tier = rapid.SampledFrom([]agent.Tier{agent.L0, agent.L1, agent.L2, agent.L3}).Draw(rt, "tier")
			c.SandboxID = rapid.SampledFrom([]string{"", "", "box", "other"}).Draw(rt, "sandbox")
			return c
		}
		opener, other := draw("opener"), draw("other")
		listed := rapid.SliceOfN(rapid.SampledFrom([]string{"opener", "other"}), 0, 2).Draw(rt, "listed")
		together := rapid.Bool().Draw(rt, "together")
		synctest.Test(t, func(t *testing.T) {
			var net memory.Network
			rules := func(o *parley.Options) {
				o.Router.Sandbox = &router.SandboxConfig{Enforced: true, CrossSandboxAllowList: listed}
			}
			here := newSite(t, &net, "here", rules)
			there := here
			if !together {
				there = newSite(t, &net, "there", rules)
			}
			from, atOpener := here.join(t, opener)
			to, atOther := there.join(t, other)
			may := func(a, b agent.Card) bool {
				x, y := a.Tier.Level(), b.Tier.Level()
				tiers := x == 0 || x == 3 || y <= x
				box := a.SandboxID == "" || a.SandboxID == b.SandboxID || slices.Contains(listed, b.ID)
				return tiers && box
			}
			c, err := here.Connect(t.Context(), "opener", "other", there.at)
			if opens := may(opener, other); (err == nil) != opens {
				t.Fatalf("%+v to %+v, listed %v: %v", opener, other, listed, err)
			} else if !opens {
				if channel.CodeOf(err) != channel.CodeRefused || len(refusals(there.Node, "opener", "other")) != 1 || len(there.Channels().Channels()) != 0 {
					t.Fatalf("%v; %v", err, refusals(there.Node, "opener", "other"))
				}
				return
			}
			synctest.Wait()
			back := between(t, there.Node, "other", "opener")
			mine, theirs := document(t, from, c), document(t, to, back)
			synctest.Wait()
			for _, way := range []struct {
				n        *parley.Node
				a, b     agent.Card
				c        *channel.Channel
				got      chan string
				from, to *replica.Replica
			}{{here.Node, opener, other, c, atOther, mine, theirs}, {there.Node, other, opener, back, atOpener, theirs, mine}} {
				want := may(way.a, way.b)
				e, err := envelope.New(way.a.ID, way.b.ID, envelope.Notification, 1)
				if err != nil {
					t.Fatal(err)
				}
				if err := way.c.Send(t.Context(), e); (err == nil) != want || !want && (router.CodeOf(err) == "" || string(channel.CodeOf(err)) != string(router.CodeOf(err))) {
					t.Fatalf("%s to %s: %v, want %v", way.a.ID, way.b.ID, err, want)
				}
				if err := way.from.Edit(t.Context(), write(way.a.ID)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if n := len(way.got); (n == 1) != want {
					t.Fatalf("%s to %s: %d envelopes arrived", way.a.ID, way.b.ID, n)
				}
				if got := has(t, way.to, way.a.ID); got != want {
					t.Fatalf("%s to %s: the edit was applied: %v", way.a.ID, way.b.ID, got)
				}
				if !want && len(refusals(way.n, way.a.ID, way.b.ID)) == 0 {
					t.Fatal("no security event names both agents")
				}
			}
			mine.Close()
			theirs.Close()
		})
	})
}

// Req 10.1, Req 10.2: a peer whose node enforces nothing gets nothing past the rules of the other end: neither a
// channel nor, after the rules have changed, a message or an edit.
func TestTheReceivingEndEnforcesTheRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memory.Network
		there := newSite(t, &net, "there", nil)
		_, atVenus := there.join(t, card("venus"))
		prisoner := `{"id":"io","name":"X","version":"1","tier":3,"capabilities":[],"sandboxId":"box"}`
		refused := intruder(t, &net, "io", prisoner)
		if err := refused.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), `there is no local agent "venus"`) {
			t.Errorf("a channel out of the sandbox: %v", err)
		}
		if got := refusals(there.Node, "io", "venus"); got["SANDBOX_VIOLATION"] != 1 {
			t.Errorf("security events: %v", got)
		}

		there.Router().SetSandboxConfig(router.SandboxConfig{Enforced: false})
		c := intruder(t, &net, "io", prisoner)
		if err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		// Replicas that grant everybody all rights: the channel alone must keep them apart.
		copies := make(map[string]*replica.Replica)
		for id, end := range map[string]*channel.Channel{"venus": between(t, there.Node, "venus", "io"), "io": c} {
			r, err := replica.New(replica.Options{Agent: id, State: "plan", Interval: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if _, err := r.Attach(end); err != nil {
				t.Fatal(err)
			}
			copies[id] = r
		}
		copied, free := copies["venus"], copies["io"]
		try := func(key string, want bool) {
			t.Helper()
			before := len(atVenus)
			e, err := envelope.New("io", "venus", envelope.Notification, 1)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Send(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			if err := free.Edit(t.Context(), write(key)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if arrived := len(atVenus) > before; arrived != want || has(t, copied, key) != want {
				t.Errorf("%s: arrived %v, applied %v; want %v", key, arrived, has(t, copied, key), want)
			}
		}
		try("free", true)
		there.Router().SetSandboxConfig(router.SandboxConfig{Enforced: true})
		try("boxed", false)
	})
}

// gated delays the first envelope that is put on a connection until the gate opens.
type gated struct {
	transport.Conn
	gate chan struct{}
}

func (c gated) Send(ctx context.Context, frames []transport.Frame) error {
	if frames[0].Kind == transport.Data {
		<-c.gate
	}
	return c.Conn.Send(ctx, frames)
}

// The rules may change while a message waits to be put on the connection.
func TestQueuedMessagesObeyTheRulesOfTheirSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memory.Network
		var failed []error
		gate := make(chan struct{})
		free := func(o *parley.Options) { o.Router.Sandbox = &router.SandboxConfig{Enforced: false} }
		here := newSite(t, &net, "here", func(o *parley.Options) {
			free(o)
			o.Channels.OnDeliveryFailure = func(_ *channel.Channel, _ *envelope.Envelope, err error) { failed = append(failed, err) }
			o.Channels.Dialers[agent.TransportLocal] = dialer{&net, func(c transport.Conn) transport.Conn { return gated{c, gate} }}
		})
		there := newSite(t, &net, "there", free)
		here.join(t, boxed("io"))
		_, atVenus := there.join(t, card("venus"))
		c, err := here.Connect(t.Context(), "io", "venus", there.at)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			e, err := envelope.New("io", "venus", envelope.Notification, i)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Send(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the first is being sent
		}
		here.Router().SetSandboxConfig(router.SandboxConfig{Enforced: true})
		close(gate)
		time.Sleep(time.Second)
		synctest.Wait()
		expect(t, atVenus, "io0")
		if len(atVenus) != 0 || len(failed) != 2 || router.CodeOf(failed[0]) != router.CodeSandboxViolation || c.Status() != channel.Open {
			t.Errorf("%d more arrived; failed: %v; the channel is %s", len(atVenus), failed, c.Status())
		}
		// The numbers of the refused ones are not missing at the other end.
		here.Router().SetSandboxConfig(router.SandboxConfig{Enforced: false})
		e, err := envelope.New("io", "venus", envelope.Notification, 3)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Send(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		expect(t, atVenus, "io3")
	})
}

// Two agents of one node have a channel, with and without an endpoint (Req 3.1 to 3.4, 3.6).
func TestTwoAgentsOfOneNodeHaveAChannel(t *testing.T) {
	for name, at := range map[string]agent.Endpoint{"at the node's endpoint": {Transport: agent.TransportLocal, Address: "here"}, "without an endpoint": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var net memory.Network
				here := newSite(t, &net, "here", nil)
				mars, atMars := here.join(t, card("mars"))
				venus, atVenus := here.join(t, card("venus"))
				c, err := here.Connect(t.Context(), "mars", "venus", at)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				back := between(t, here.Node, "venus", "mars")
				if c.ID() != back.ID() || c.Status() != channel.Open || back.Status() != channel.Open || len(here.Channels().Channels()) != 2 {
					t.Errorf("%s is %s, %s is %s, of %d", c.ID(), c.Status(), back.ID(), back.Status(), len(here.Channels().Channels()))
				}
				for i := range 3 {
					for _, way := range []struct {
						c        *channel.Channel
						from, to string
					}{{c, "mars", "venus"}, {back, "venus", "mars"}} {
						e, err := envelope.New(way.from, way.to, envelope.Notification, i)
						if err == nil {
							err = way.c.Send(t.Context(), e)
						}
						if err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, payload := range []string{"0", "1", "2"} {
					expect(t, atVenus, "mars"+payload)
					expect(t, atMars, "venus"+payload)
				}
				plan, copied := document(t, mars, c), document(t, venus, back)
				synctest.Wait()
				before := here.Telemetry().Metrics() // a message for a replica that was not attached yet counts as sent only
				if err := plan.Edit(t.Context(), write("k")); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if !has(t, copied, "k") {
					t.Error("the edit did not arrive")
				}
				m := here.Telemetry().Metrics()
				sent := m.SentByType[envelope.StreamData] - before.SentByType[envelope.StreamData]
				received := m.ReceivedByType[envelope.StreamData] - before.ReceivedByType[envelope.StreamData]
				if m.SentByType[envelope.Notification] != 6 || m.ReceivedByType[envelope.Notification] != 6 || sent == 0 || sent != received {
					t.Errorf("sent %v, received %v, for the edit %d and %d", m.SentByType, m.ReceivedByType, sent, received)
				}
				plan.Close()
				copied.Close()
				venus.Leave()
				synctest.Wait()
				if n := len(here.Channels().Channels()); n != 0 || c.Status() != channel.Closed {
					t.Errorf("%d ends are open after one agent has left", n)
				}
			})
		})
	}
	n, err := parley.New(parley.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(context.Background())
	if _, err := n.Join(card("mars"), func(context.Context, *envelope.Envelope) {}); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"mars", "ghost"} {
		if _, err := n.Connect(t.Context(), from, "mars", agent.Endpoint{}); err == nil {
			t.Errorf("%s has a channel to mars", from)
		}
	}
}

// A replica's messages go to the replica and to no handler of the agents, also while it is not attached.
func TestStreamDataGoesToItsReplicaOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memory.Network
		here, there := newSite(t, &net, "here", nil), newSite(t, &net, "there", nil)
		mars, atMars := here.join(t, card("mars"))
		venus, atVenus := there.join(t, card("venus"))
		c, err := here.Connect(t.Context(), "mars", "venus", there.at)
		if err != nil {
			t.Fatal(err)
		}
		plan := document(t, mars, c)
		synctest.Wait() // its question has arrived, and nobody has asked for it
		copied := document(t, venus, between(t, there.Node, "venus", "mars"))
		if err := plan.Edit(t.Context(), write("k")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !has(t, copied, "k") || len(atMars)+len(atVenus) != 0 {
			t.Errorf("applied: %v; the agents got %d and %d messages", has(t, copied, "k"), len(atMars), len(atVenus))
		}
		// Other streams are the agents'.
		if _, err := mars.Send(t.Context(), "venus", envelope.StreamData, map[string]string{"state": "plan"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		plan.Close()
		copied.Close()
		synctest.Wait()
		if _, err := mars.Send(t.Context(), "venus", envelope.StreamData, map[string]string{"state": "of mind"}); err != nil {
			t.Fatal(err)
		}
		expect(t, atVenus, `mars{"state":"of mind"}`)
	})
}

// Req 10.4: an agent in a sandbox cannot tell an agent outside from one that does not exist: the results, the errors
// and their texts are the same with and without it.
func TestABoxedAgentLearnsNothingOfOutsiders(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tier := rapid.SampledFrom([]agent.Tier{agent.L0, agent.L1, agent.L2, agent.L3})
		kind := rapid.SampledFrom(envelope.Types()).Draw(rt, "type")
		outsider := card("outsider")
		outsider.Tier, outsider.SandboxID = tier.Draw(rt, "outsider's tier"), rapid.SampledFrom([]string{"", "another"}).Draw(rt, "outsider's box")
		outsider.Capabilities = []agent.Capability{{ID: "work"}, {ID: "rare"}}
		outsider.Origin = rapid.SampledFrom([]agent.Origin{agent.Local, agent.Remote}).Draw(rt, "origin")
		attached := rapid.Bool().Draw(rt, "attached")
		me, mate := boxed("me"), boxed("mate")
		me.Tier, mate.Tier = tier.Draw(rt, "my tier"), tier.Draw(rt, "the mate's tier")
		mate.Capabilities = []agent.Capability{{ID: "work"}}
		withMate := rapid.Bool().Draw(rt, "with a mate")

		learn := func(exists bool) (learned []any) {
			n, err := parley.New(parley.Options{})
			if err != nil {
				rt.Fatal(err)
			}
			defer n.Close(context.Background())
			nothing := func(context.Context, *envelope.Envelope) {}
			a, err := n.Join(me, nothing)
			if err != nil {
				rt.Fatal(err)
			}
			if withMate {
				if _, err := n.Join(mate, nothing); err != nil {
					rt.Fatal(err)
				}
			}
			box := n.Toolbox(toolbox.Options{})
			switch {
			case exists && outsider.Origin == agent.Remote:
				_, err = n.Registry().Merge(outsider, "elsewhere")
			case exists && attached:
				_, err = n.Join(outsider, nothing)
			case exists:
				_, err = n.Registry().Register(outsider)
			}
			if err != nil {
				rt.Fatal(err)
			}
			if exists {
				p, err := box.Provider("outsider")
				if err == nil {
					err = p.AddTool(&mcp.Tool{Name: "dig"}, func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) { return nil, nil })
				}
				if err != nil {
					rt.Fatal(err)
				}
			}
			note := func(values ...any) {
				for i, v := range values {
					if err, ok := v.(error); ok {
						values[i] = err.Error()
					}
				}
				data, err := json.Marshal(values)
				if err != nil {
					rt.Fatal(err)
				}
				learned = append(learned, string(data))
			}
			ctx := context.Background()
			for _, capability := range []string{"work", "rare"} {
				res, err := a.SendToCapability(ctx, capability, kind, 1)
				res.LatencyMs = 0
				note(res, err)
			}
			for _, to := range []string{"outsider", "*"} {
				res, err := a.Send(ctx, to, kind, 1)
				res.LatencyMs = 0
				note(res, err)
			}
			_, err = box.Call(ctx, "me", "outsider.dig", nil, nil)
			note(err, len(box.Tools("me")))
			_, err = toolbox.Over(n.Router(), "me", "outsider").Connect(ctx)
			note(err)
			view, err := a.Discover()
			if err != nil {
				rt.Fatal(err)
			}
			_, err = view.Get("outsider")
			note(err, len(view.All()), len(view.FindByCapability("work")))
			if exists && len(refusals(n, "me", "outsider")) == 0 {
				rt.Fatal("the operator learns nothing")
			}
			return learned
		}
		without, with := learn(false), learn(true)
		for i := range without {
			if without[i] != with[i] {
				rt.Fatalf("question %d:\nwithout the outsider %v\nwith it %v", i, without[i], with[i])
			}
		}
	})
}

// Req 10.1: the toolbox, documents, negotiations and swarms of a node with zero options obey its rules.
func TestZeroOptionsEnforceTheRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, err := parley.New(parley.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close(context.Background())
		join := func(c agent.Card) *parley.Agent {
			a, err := n.Join(c, func(context.Context, *envelope.Envelope) {})
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		venus, io := join(card("venus")), join(boxed("io"))
		box := n.Toolbox(toolbox.Options{})
		p, err := box.Provider("venus")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.AddTool(&mcp.Tool{Name: "lint"}, func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := box.Call(t.Context(), "io", "venus.lint", nil, nil); toolbox.CodeOf(err) != toolbox.CodeToolNotFound {
			t.Errorf("io called venus's tool: %v", err)
		}
		if got := refusals(n, "io", "venus"); got["SANDBOX_VIOLATION"] != 1 {
			t.Errorf("security events: %v", got)
		}
		// A served box follows the cards.
		server := mcp.NewServer(&mcp.Implementation{Name: "box", Version: "1"}, nil)
		defer box.Serve(server, "late")()
		client, serving := mcp.NewInMemoryTransports()
		if _, err := server.Connect(t.Context(), serving, nil); err != nil {
			t.Fatal(err)
		}
		session, err := mcp.NewClient(&mcp.Implementation{Name: "late", Version: "1"}, nil).Connect(t.Context(), client, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		tools := func() int {
			list, err := session.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return len(list.Tools)
		}
		if n := tools(); n != 0 {
			t.Errorf("an agent without a card sees %d tools", n)
		}
		join(card("late"))
		synctest.Wait()
		if n := tools(); n != 1 {
			t.Errorf("the agent sees %d tools, want 1", n)
		}

		mine, err := io.Negotiator(negotiation.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer mine.Close()
		_, err = mine.Propose(t.Context(), "venus", negotiation.Terms{TaskDescription: "x", EstimatedComplexity: negotiation.Simple, Deadline: time.Minute})
		if router.CodeOf(err) != router.CodeSandboxViolation {
			t.Errorf("io proposed to venus: %v", err)
		}
		c := n.Coordinator(mine, swarm.CoordinatorOptions{})
		defer c.Close()
		member, err := venus.Negotiator(negotiation.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer member.Close()
		worker := n.Participant(member, func(context.Context, swarm.Job) (json.RawMessage, error) { return nil, errors.New("no") }, swarm.ParticipantOptions{})
		defer worker.Close()
		s, err := c.Create(t.Context(), swarm.Plan{TaskDescription: "x", RequiredCapabilities: []string{"work.venus"}})
		if err == nil {
			s, err = c.Wait(t.Context(), s.ID)
		}
		if err == nil && s.Status != swarm.Failed || len(worker.Swarms()) != 0 {
			t.Errorf("the swarm of io reached venus: %+v, %v", s, err)
		}
	})
}

// Nil handlers are errors.
func TestNilHandlersAreErrors(t *testing.T) {
	n, err := parley.New(parley.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(context.Background())
	if _, err := n.Join(card("mars"), nil); router.CodeOf(err) != router.CodeInvalid {
		t.Errorf("joined without a handler: %v", err)
	}
	if _, err := n.Registry().Get("mars"); err == nil {
		t.Error("the card is registered")
	}
	mars, err := n.Join(card("mars"), func(context.Context, *envelope.Envelope) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mars.SendEnvelope(t.Context(), nil); router.CodeOf(err) != router.CodeInvalidEnvelope {
		t.Errorf("sent nothing: %v", err)
	}
	if _, err := mars.Reply(t.Context(), nil, envelope.Response, 1); router.CodeOf(err) != router.CodeInvalidEnvelope {
		t.Errorf("replied to nothing: %v", err)
	}
	if err := n.Listen(nil); channel.CodeOf(err) != channel.CodeInvalid {
		t.Errorf("listened at nothing: %v", err)
	}
	if err := n.Channels().Serve(t.Context(), nil); channel.CodeOf(err) != channel.CodeInvalid {
		t.Errorf("served nothing: %v", err)
	}
	doc := document(t, mars)
	invalid := func(what string, err error) {
		if e, ok := errors.AsType[*replica.Error](err); !ok || e.Code != replica.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, l := range []replica.Link{nil, (*channel.Channel)(nil)} {
		_, err := doc.Attach(l)
		invalid("attached nothing", err)
	}
	_, err = doc.Receive(t.Context(), nil)
	invalid("received nothing", err)
	invalid("dialled with nothing", doc.KeepConnected(t.Context(), nil))
}

// A panic of the function that decides about tiers is one error event and a refusal, for a discovered card, too.
func TestAPanicOfTheRosterIsAnEvent(t *testing.T) {
	n, err := parley.New(parley.Options{Registry: registry.Options{Tiers: func(string) agent.Tier { panic("tiers") }}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(context.Background())
	if _, err := n.Registry().Merge(card("venus"), "found"); registry.CodeOf(err) != registry.CodeWrongTier {
		t.Errorf("merged: %v", err)
	}
	events := slices.DeleteFunc(n.Telemetry().Recent(0), func(e telemetry.Event) bool { return e.Code != telemetry.CodePanic })
	if len(events) != 1 || !strings.Contains(events[0].Detail, "Options.Tiers of the registry panicked: tiers") {
		t.Errorf("events: %+v", events)
	}
}

// Req 4.5, Req 7.3, Req 11.2: an agent of L1 answers a justified proposal of L3, in its thread and with an answer only;
// nobody else may, and everything else stays refused. It holds within a node and between two.
func TestAHigherTierAnswersJustifiedProposals(t *testing.T) {
	for _, together := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var net memory.Network
			here := newSite(t, &net, "here", nil)
			there := here
			if !together {
				there = newSite(t, &net, "there", nil)
			}
			tiered := func(id string, tier agent.Tier) agent.Card {
				c := card(id)
				c.Tier = tier
				return c
			}
			io, atIo := here.join(t, tiered("io", agent.L3))
			earth, _ := there.join(t, tiered("earth", agent.L1))
			jupiter, _ := there.join(t, tiered("jupiter", agent.L1))
			if !together {
				for _, to := range []string{"earth", "jupiter"} {
					if _, err := here.Connect(t.Context(), "io", to, there.at); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
			}
			asker, err := io.Negotiator(negotiation.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer asker.Close()
			answerer, err := earth.Negotiator(negotiation.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer answerer.Close()
			if _, err := earth.Negotiator(negotiation.Options{}); negotiation.CodeOf(err) != negotiation.CodeTaken {
				t.Errorf("a second negotiator: %v", err)
			}
			refused := func(from *parley.Agent, typ envelope.Type, thread string) {
				t.Helper()
				e, err := envelope.New(from.ID(), "io", typ, negotiation.Answer{ProposalID: thread, AgentID: from.ID(), EstimatedCompletionMs: 1})
				if err != nil {
					t.Fatal(err)
				}
				e.CorrelationID = thread
				if _, err = from.SendEnvelope(t.Context(), e); router.CodeOf(err) != router.CodeTierViolation {
					t.Errorf("%s sent a %s in thread %q: %v", from.ID(), typ, thread, err)
				}
			}
			refused(earth, envelope.TaskAccept, "p")
			terms := negotiation.Terms{TaskDescription: "x", EstimatedComplexity: negotiation.Simple, Deadline: time.Minute, EscalationJustification: "it is urgent"}
			for _, accept := range []bool{true, false} {
				p, err := asker.Propose(t.Context(), "earth", terms)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				refused(jupiter, envelope.TaskAccept, p.CorrelationID)
				refused(earth, envelope.TaskAccept, "another")
				refused(earth, envelope.TaskAccept, "")
				refused(earth, envelope.Notification, p.CorrelationID)
				refused(earth, envelope.Request, p.CorrelationID)
				if accept {
					err = answerer.Accept(t.Context(), p.ID, time.Minute)
				} else {
					err = answerer.Reject(t.Context(), p.ID, negotiation.Rejection{Reason: negotiation.Busy, Message: "after the eclipse"})
				}
				if err != nil {
					t.Fatal(err)
				}
				p, err = asker.Wait(t.Context(), p.ID)
				if err != nil || accept && p.AcceptedBy != "earth" || !accept && p.RejectionMessage != "after the eclipse" {
					t.Errorf("%+v, %v", p, err)
				}
				<-atIo
			}
		})
	}
}

// A proposal that nobody could answer is refused at once.
func TestUnanswerableProposalsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memory.Network
		here := newSite(t, &net, "here", func(o *parley.Options) {
			o.Router.Tiers = &router.TierConfig{Rules: []router.TierRule{{SourceTier: agent.L2, AllowedTargetTiers: []agent.Tier{agent.L1, agent.L2}}}}
		})
		mars, _ := here.join(t, card("mars"))
		above := card("earth")
		above.Tier = agent.L1
		here.join(t, above)
		here.join(t, boxed("venus"))
		asker, err := mars.Negotiator(negotiation.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer asker.Close()
		terms := negotiation.Terms{TaskDescription: "x", EstimatedComplexity: negotiation.Simple, Deadline: time.Minute}
		for to, want := range map[string]router.Code{"earth": router.CodeTierViolation, "venus": router.CodeSandboxViolation} {
			if _, err := asker.Propose(t.Context(), to, terms); negotiation.CodeOf(err) != negotiation.CodeSend || router.CodeOf(err) != want {
				t.Errorf("to %s: %v", to, err)
			}
		}
		terms.EscalationJustification = "it is urgent"
		if _, err := asker.Propose(t.Context(), "earth", terms); err != nil {
			t.Errorf("justified: %v", err)
		}
	})
}

// An id belongs to the agent that has joined with it until it leaves.
func TestAnIdJoinsOnce(t *testing.T) {
	n, err := parley.New(parley.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(context.Background())
	ignore := func(context.Context, *envelope.Envelope) {}
	mars, err := n.Join(card("mars"), ignore)
	if err != nil {
		t.Fatal(err)
	}
	other := card("mars")
	other.Description = "another one"
	if _, err := n.Join(other, ignore); registry.CodeOf(err) != registry.CodeConflict {
		t.Errorf("joined twice: %v", err)
	}
	if c, err := n.Registry().Get("mars"); err != nil || c.Description != card("mars").Description {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := n.Join(agent.Card{ID: "bad"}, ignore); registry.CodeOf(err) != registry.CodeInvalidCard {
		t.Errorf("an invalid card: %v", err)
	}
	mars.Leave()
	again, err := n.Join(other, ignore)
	if err != nil {
		t.Fatal(err)
	}
	mars.Leave()
	if _, err := again.Send(t.Context(), "mars", envelope.Notification, 1); err != nil {
		t.Errorf("the former agent's Leave removed its successor: %v", err)
	}
}

// A panic of a discovery source, or of OnError, is one error event and never the end of the process.
func TestPanicsOfDiscoveryAreEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, err := parley.New(parley.Options{Registry: registry.Options{OnError: func(string, error) { panic("report") }}})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close(context.Background())
		if _, err := n.Join(card("mars"), func(context.Context, *envelope.Envelope) {}); err != nil {
			t.Fatal(err)
		}
		if err := n.Registry().EnableDiscovery("bad", crashing{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := n.Registry().Resolve(t.Context(), registry.Query{ID: "venus"}); err == nil {
			t.Error("an agent was found")
		}
		for _, want := range []string{"discover", "announce", "find", "report"} {
			var events int
			for _, e := range n.Telemetry().Recent(0) {
				if e.Code == telemetry.CodePanic && strings.Contains(e.Detail, "panicked: "+want) {
					events++
				}
			}
			if events != 1 && want != "report" || events == 0 {
				t.Errorf("%d events of the panic in %s", events, want)
			}
		}
	})
}

// crashing is a discovery source whose every method panics.
type crashing struct{}

func (crashing) Discover(context.Context, registry.Sink) error              { panic("discover") }
func (crashing) Announce(context.Context, agent.Card) error                 { panic("announce") }
func (crashing) Withdraw(context.Context, string) error                     { panic("withdraw") }
func (crashing) Find(context.Context, registry.Query) ([]agent.Card, error) { panic("find") }
