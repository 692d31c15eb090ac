package agentnet_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// Two agents of a kind are gone. Each conversation gets its agent back, in any order, with what the agent had registered itself as.
func TestAConversationGetsItsAgentBack(t *testing.T) {
	t.Parallel()
	hub, dir := nettest.NewHub(t), t.TempDir()
	begin := func(conversation string) (*agentnet.Memberships, *agentnet.Agent, registry.Registration) {
		t.Helper()
		m := agentnet.NewMemberships(agentnet.Config{
			BusConfig: store.Config{ProjectPath: "/shop", StateDir: dir, Logger: slog.New(slog.DiscardHandler)},
			Hub:       func(context.Context) (string, error) { return "hub", nil },
		}, hub.Admit)
		r := nettest.Worker("go")
		r.Conversation, r.Vendor = conversation, "codex"
		a, err := m.Register(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return m, a, r
	}
	end := func(m *agentnet.Memberships) {
		t.Helper()
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	one, first, r := begin("t1")
	r.Visibility, r.Capabilities = store.Public, []string{"review"}
	one.Say(t.Context(), r)
	two, second, _ := begin("")
	if one.Notice() != "" || one.Status().Agents != 1 {
		t.Errorf("notice %q, status %+v", one.Notice(), one.Status())
	}
	r.Conversation = "t2"
	if two.Converse(t.Context(), second, r) {
		t.Error("a new conversation is another's")
	}
	end(one)
	end(two)

	two, again, _ := begin("t2")
	if again.GUID() != second.GUID() {
		t.Errorf("t2 is %s, was %s", again.GUID(), second.GUID())
	}
	r.Conversation = "t1"
	if !two.Converse(t.Context(), again, r) {
		t.Error("the agent of t1 is not known to be another")
	}
	one, again, r = begin("t1")
	if again.GUID() != first.GUID() {
		t.Errorf("t1 is %s, was %s", again.GUID(), first.GUID())
	}
	if said, ok := one.Said(t.Context(), r); !ok || said.Visibility != store.Public || len(said.Capabilities) != 1 || said.AgentType != r.AgentType {
		t.Errorf("said is %+v, %v", said, ok)
	}
	one.Unsay(t.Context(), r)
	if _, ok := one.Said(t.Context(), r); ok {
		t.Error("what is forgotten is said")
	}
	end(one)
	end(two)
}

// An agent of a network without a hub has no conversations and no tasks.
func TestWithoutAHubThereAreNoConversations(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	network := nettest.Open(t, n.Host("host-a", "ann", "shop"))
	a := nettest.Register(t, network, nettest.Worker("go"))
	r := nettest.Worker("go")
	network.Say(t.Context(), r)
	if _, ok := network.Said(t.Context(), r); ok || network.Converse(t.Context(), a, r) {
		t.Error("a network remembers conversations")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	const none = "01a2264d-6419-78bd-b360-90c55c33dea9"
	if err := a.AnswerTask(ctx, assignment.Answer{TaskID: none, Text: "done", Outcome: assignment.Completed}); err == nil {
		t.Error("a task that does not exist is answered")
	}
	if err := a.AnswerTask(ctx, assignment.Answer{}); err == nil {
		t.Error("an answer to no task is sent")
	}
	if err := a.ReportProgress(ctx, assignment.Progress{}); err == nil {
		t.Error("progress of no task is sent")
	}
}
