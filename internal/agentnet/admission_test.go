package agentnet_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// REQ-SEC-CROSS-003, REQ-TOOL-REGISTER-009: agents that a hub admits one by one find each other.
// Each keeps its identity while it is registered.
func TestAHubAdmitsAgentsOneByOne(t *testing.T) {
	t.Parallel()
	r := nettest.NewHub(t)
	shop := r.Memberships("/shop")
	if err := shop.Usable(t.Context()); err != nil || shop.Notice() != "" {
		t.Error(err, shop.Notice())
	}
	a, twin, other := nettest.Enter(t, shop, nettest.Worker("go")), nettest.Enter(t, shop, nettest.Worker("go")), nettest.Enter(t, r.Memberships("/blog"), nettest.Worker("go"))
	if a.GUID() == twin.GUID() || a.GUID() == other.GUID() {
		t.Error("two agents have the same GUID")
	}
	if d := nettest.Discover(t, other, registry.Filter{}); d.Total != 3 {
		t.Errorf("%+v", d)
	}
	nettest.SendText(t, a, other, "hello")
	if got := nettest.ReadTexts(t, other, mail.Selection{}); len(got) != 1 || got[0] != "hello" {
		t.Errorf("%q", got)
	}
	nettest.Submit(t, a, "T", "go") // the hub makes the queue
	c := nettest.Claim(t, other)
	if err := other.Complete(t.Context(), "T", c.Token, work.Outcome{Success: true, Summary: "done"}); err != nil {
		t.Error(err)
	}
	withoutWorkers(t, r.Bus, "GLOBAL_WORKQUEUE_go")
	nettest.Submit(t, a, "T2", "go")
	withoutWorkers(t, r.Bus, "GLOBAL_WORKQUEUE_go") // a power cut has taken them, and nobody submits
	wait.Eventually(t, "the item", func() bool {
		c, err := other.Claim(t.Context(), []string{"go"})
		return err == nil && c != nil && c.TaskID == "T2"
	})
	if s := shop.Status(); s.Agents != 2 || !s.Connected {
		t.Errorf("%+v", s)
	}
	if _, err := shop.Leave(t.Context(), a); err != nil {
		t.Error(err)
	}
	if again := nettest.Enter(t, shop, nettest.Worker("go")); again.GUID() != a.GUID() || !again.Reused() {
		t.Errorf("the GUID changed from %s to %s", a.GUID(), again.GUID())
	}
	_, err := shop.Register(t.Context(), registry.Registration{AgentType: "No Type"})
	nettest.Wants(t, err, store.ValidationError, "agent type")
}

// withoutWorkers deletes the consumer of a queue's workers.
func withoutWorkers(t *testing.T, hub *bus.Bus, queue string) {
	t.Helper()
	b, err := bus.Join(t.Context(), bus.Config{}, func(ctx context.Context) (bus.Grant, error) {
		return hub.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
	})
	if err == nil {
		err = errors.Join(b.JetStream().DeleteConsumer(t.Context(), queue, "workers"), b.Close(context.Background()))
	}
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		t.Fatal(err)
	}
}

// REQ-SEC-CROSS-003: on its hub's bus an agent may see how many messages another's inbox has, and reach nothing else of it.
func TestAnAdmittedAgentSeesOnlyTheSizeOfOthersInboxes(t *testing.T) {
	t.Parallel()
	r := nettest.NewHub(t)
	ann, bob := nettest.Enter(t, r.Memberships("/shop"), nettest.Worker("go")), nettest.Enter(t, r.Memberships("/blog"), nettest.Worker("go"))
	nettest.SendText(t, ann, bob, "secret")
	inbox := "GLOBAL_AGENT_INBOX_" + bob.GUID()
	b := joinAs(t, r, "/evil")
	s, err := b.JetStream().Stream(t.Context(), inbox)
	if err != nil || s.CachedInfo().State.Msgs != 1 {
		t.Fatalf("the description of the inbox: %v", err)
	}
	for what, read := range map[string]func(context.Context) error{
		"a message by its number": func(ctx context.Context) error { _, err := s.GetMsg(ctx, 1); return err },
		"the last message": func(ctx context.Context) error {
			_, err := s.GetLastMsgForSubject(ctx, "global.agent."+bob.GUID())
			return err
		},
		"a consumer": func(ctx context.Context) error {
			_, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
			return err
		},
		"a purge":                  func(ctx context.Context) error { return s.Purge(ctx) },
		"the deletion of messages": func(ctx context.Context) error { return s.DeleteMsg(ctx, 1) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if err := read(ctx); err == nil {
			t.Errorf("%s is allowed", what)
		}
		cancel()
	}
	if got := nettest.ReadTexts(t, bob, mail.Selection{}); len(got) != 1 || got[0] != "secret" {
		t.Errorf("%q", got)
	}
}

// joinAs joins a hub's bus with the rights of a new agent.
func joinAs(t *testing.T, r *nettest.Hub, project string) *bus.Bus {
	t.Helper()
	_, b, err := r.Admit(t.Context(), registry.AdmissionRequest{AgentType: "worker", ProjectPath: project})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	return b
}
