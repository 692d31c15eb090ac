package agentnet_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// With the link, every call of an agent or a person uses the network's bus; without it, the hub's
// bus.
func TestCallsUseTheReachableBus(t *testing.T) {
	t.Parallel()
	n, hub := nettest.StartServer(t), nettest.StartServer(t)
	clock := new(nettest.Clock)
	cfg := nettest.Linked(n, hub, "shop")
	cfg.Now = clock.Now
	network := nettest.OpenLinked(t, cfg)
	boss, hand := nettest.Register(t, network, nettest.Dispatcher()), nettest.Register(t, network, nettest.Worker("go"))
	person, err := network.RegisterPerson(t.Context(), "ann")
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string) {
		t.Helper()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		clock.Forward(11 * time.Second) // past the rate limit of updates
		must(network.Usable(t.Context()))
		d, err := network.Agents(t.Context(), registry.Filter{})
		must(err)
		if found := nettest.GUIDs(d); len(found) != 2 || !slices.Contains(found, hand.GUID()) {
			t.Errorf("%s: found %q", what, found)
		}
		if e, live, err := boss.Info(t.Context(), hand.GUID()); err != nil || live != registry.Live || e.GUID != hand.GUID() {
			t.Errorf("%s: %+v, %s, %v", what, e, live, err)
		}
		count := 1
		e, err := hand.UpdatePresence(t.Context(), registry.Changes{CurrentTaskCount: &count})
		must(err)
		if e.CurrentTaskCount != 1 {
			t.Errorf("%s: %+v", what, e)
		}
		clock.Forward(11 * time.Second)
		described := nettest.Worker("go", what)
		e, err = hand.Describe(t.Context(), described)
		must(err)
		if !slices.Equal(e.Capabilities, described.Capabilities) {
			t.Errorf("%s: %+v", what, e)
		}
		must(hand.SetHandle("worker-2"))

		offered, err := boss.BroadcastOffer(t.Context(), mail.Broadcast{Offer: mail.Offer{TaskID: "T", Description: "d", RequiredCapabilities: []string{"go"}}})
		must(err)
		if len(offered.SentTo) != 1 || offered.SentTo[0].GUID != hand.GUID() {
			t.Errorf("%s: %+v", what, offered)
		}
		sent := nettest.SendText(t, person, hand, what)
		if unread, err := hand.Unread(t.Context()); err != nil || unread != 2 {
			t.Errorf("%s: %d unread, %v", what, unread, err)
		}
		if got := nettest.ReadTexts(t, hand, mail.Selection{}); !slices.Equal(got, []string{"d", what}) {
			t.Errorf("%s: read %q", what, got)
		}
		_, err = hand.MarkHandled(t.Context(), sent.ID, "done")
		must(err)
		if s, err := person.MessageStatus(t.Context(), sent.ID); err != nil || s.Status != mail.Handled || s.Note != "done" {
			t.Errorf("%s: %+v, %v", what, s, err)
		}

		task := "task-" + what
		nettest.Submit(t, boss, task, "go")
		c := nettest.ClaimTask(t, hand, task)
		if items, err := network.Items(t.Context(), work.Claimed); err != nil || len(items) != 1 || items[0].TaskID != task {
			t.Errorf("%s: %+v, %v", what, items, err)
		}
		_, err = hand.Extend(t.Context(), task, c.Token)
		must(err)
		if dead, err := hand.Reject(t.Context(), task, c.Token, "no", true); err != nil || !dead {
			t.Errorf("%s: %v, %v", what, dead, err)
		}
		if list, more, err := boss.DeadLetters(t.Context(), 0, ""); err != nil || more || len(list) != 1 || list[0].TaskID != task {
			t.Errorf("%s: %+v, %v, %v", what, list, more, err)
		}
		_, err = boss.RetryDeadLetter(t.Context(), task, true)
		must(err)
		c = nettest.ClaimTask(t, hand, task)
		_, err = hand.Reject(t.Context(), task, c.Token, "no", true)
		must(err)
		_, err = boss.DiscardDeadLetter(t.Context(), task)
		must(err)
	}
	check("with-the-link")
	if c, err := network.Collect(t.Context(), true); err != nil || c.Skipped {
		t.Errorf("%+v, %v", c, err)
	}
	if list, err := network.Removals(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	n.Stop()
	nettest.AwaitLoss(t, network)
	check("without-the-link")
	if _, err := network.Leave(t.Context(), hand); err != nil {
		t.Error(err)
	}
	_, err = hand.Unread(t.Context())
	nettest.Wants(t, err, store.NotRegisteredError, "register_agent")
}

// Inspect returns agents, dead letters and the queue lengths, and changes nothing.
func TestInspect(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	b, err := nettest.Dialer(n)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background()) //nolint:errcheck // the test is over
	inspect := func() agentnet.Inspection {
		t.Helper()
		i, err := agentnet.Inspect(t.Context(), b, "")
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	if i := inspect(); i != (agentnet.Inspection{}) {
		t.Errorf("an unused bus: %+v", i)
	}
	cfg := n.Host("host-a", "ann", "shop")
	cfg.DialLocal = cfg.Dial // the hub's bus; the network cannot be reached
	cfg.Dial = func(context.Context) (*bus.Bus, error) { return nil, context.DeadlineExceeded }
	network := agentnet.Open(cfg)
	t.Cleanup(func() { nettest.Shut(t, network) })
	if err := network.Usable(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := nettest.Register(t, network, nettest.Worker("go"))
	nettest.Submit(t, a, "dead", "go")
	c := nettest.ClaimTask(t, a, "dead")
	if _, err := a.Reject(t.Context(), "dead", c.Token, "no", true); err != nil {
		t.Fatal(err)
	}
	nettest.Submit(t, a, "waits", "go")
	if sent, err := a.Send(t.Context(), mail.Message{Recipient: "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11", Text: "x"}); err != nil || !sent.Queued {
		t.Errorf("%+v, %v", sent, err)
	}
	if i := inspect(); i != (agentnet.Inspection{Used: true, Live: 1, Dead: 1, Mail: 1, Work: 1}) {
		t.Errorf("%+v", i)
	}
	if _, err := network.Leave(t.Context(), a); err != nil {
		t.Error(err)
	}
	if i := inspect(); i.Live != 0 || i.Offline != 1 {
		t.Errorf("%+v", i)
	}
}

// A confined agent's GUID and capabilities become parts of subjects.
func TestWhatCannotBePartOfASubjectIsRefused(t *testing.T) {
	t.Parallel()
	checked, err := agentnet.Confined{GUID: "7F3C1A52-8a0e-4f5b-9d55-0d7c9f1f2b11", Capabilities: []string{"TypeScript"}}.Check()
	if err != nil || checked.GUID != ann.GUID || !slices.Equal(checked.Capabilities, ann.Capabilities) {
		t.Errorf("%+v, %v", checked, err)
	}
	for _, c := range []agentnet.Confined{{GUID: "*"}, {GUID: ann.GUID, Bucket: "a.b"}, {GUID: ann.GUID, Capabilities: []string{">"}}} {
		_, err := c.Check()
		nettest.Wants(t, err, store.ValidationError, "")
	}
}
