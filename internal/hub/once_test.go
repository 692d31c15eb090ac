package hub_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func onceRequest(agent, text string, key any) hub.SendRequest {
	req := request(agent, text)
	if req.Message.Metadata == nil {
		req.Message.Metadata = make(map[string]any)
	}
	req.Message.Metadata[hub.MetaOnce] = key
	return req
}

func TestAMessageWithAnIdempotencyKeyStartsOneTask(t *testing.T) {
	dir := t.TempDir()
	b, err := bus.Open(t.Context(), bus.Config{DataDir: dir, Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	agents := func() []hub.Agent {
		return []hub.Agent{{Definition: definition("echo"), Runner: echo()}, {Definition: definition("other"), Runner: echo()}}
	}
	h, err := hub.New(t.Context(), hub.Config{Bus: b, Agents: agents()})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			task, err := h.SendAndWait(t.Context(), onceRequest("echo", "hello", "k1"))
			if err != nil || task.ID != hub.OnceID("echo", "k1") || text(task.Status.Message) != "hello" {
				t.Errorf("%+v, %v", task, err)
			}
		})
	}
	all.Wait()
	sub, err := h.SendAndStream(t.Context(), onceRequest("echo", "hello", "k1"))
	if err != nil || sub.Task().Status.State != a2a.TaskStateCompleted {
		t.Fatalf("%v", err)
	}
	sub.Close()
	if err := errors.Join(h.Close(t.Context()), b.Close(t.Context())); err != nil {
		t.Fatal(err)
	}

	h = newHub(t, hub.Config{Bus: openBus(t, dir, bus.DurabilityFast)}, map[string]*fakeAgent{"echo": echo(), "other": echo()})
	for _, req := range []hub.SendRequest{onceRequest("echo", "what", "k1"), onceRequest("echo", "hello", "k2"), onceRequest("other", "hello", "k1")} {
		if task, err := h.SendAndWait(t.Context(), req); err != nil || text(task.Status.Message) != "hello" {
			t.Errorf("%+v, %v", task, err)
		}
	}
	page, err := h.Tasks(t.Context(), hub.TaskQuery{})
	if err != nil || page.Total != 3 {
		t.Errorf("%d tasks, want 3 (%v)", page.Total, err)
	}
	for _, key := range []any{"", 7, strings.Repeat("x", 1000), "a\x00b"} {
		_, err := h.Send(t.Context(), onceRequest("echo", "hello", key))
		if he, ok := errors.AsType[*hub.Error](err); !ok || he.Code != hub.CodeInvalid || !strings.Contains(he.Subject, hub.MetaOnce) {
			t.Errorf("key %v: %v", key, err)
		}
	}
}

// A package of the hub may choose a task's id: the task is created once, and no other agent's task is taken for it.
func TestATaskWithAGivenID(t *testing.T) {
	h := newHub(t, hub.Config{Agents: []hub.Agent{
		{Definition: definition("a"), Runner: &fakeAgent{}}, {Definition: definition("b"), Runner: &fakeAgent{}},
	}}, nil)
	req := request("a", "hello")
	req.Once = "5b1c3a52-7a0e-4c5e-9d1a-0a4a35b0e001"
	for range 2 {
		task, err := h.Send(t.Context(), req)
		if err != nil || task.ID != req.Once || len(task.History) > 2 {
			t.Fatalf("%+v, %v", task, err)
		}
	}
	req.AgentID = "b"
	if _, err := h.Send(t.Context(), req); hub.CodeOf(err) != hub.CodeInvalid {
		t.Errorf("another agent's id: %v", err)
	}
}

// A message with a key that comes again after a kill of the hub begins nothing, also if the hub was killed as soon as the agent had begun.
func TestATaskWithAKeyIsStoredBeforeItsAgentBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stored hub.Memory
		var known error
		agent := &fakeAgent{turn: func(ctx context.Context, turn runner.Turn, _ runner.Handler) (runner.Outcome, error) {
			next, err := hub.New(ctx, hub.Config{Memory: stored.Clone()})
			if err == nil {
				_, known = next.Task(ctx, a2a.TaskID(turn.TaskID), nil)
				err = next.Close(context.WithoutCancel(ctx))
			}
			return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done"}, err
		}}
		h, err := hub.New(t.Context(), hub.Config{Memory: &stored, Agents: []hub.Agent{{Definition: definition("ann"), Runner: agent}}})
		if err != nil {
			t.Fatal(err)
		}
		task, err := h.SendAndWait(t.Context(), onceRequest("ann", "look", "1"))
		if err != nil || task.Status.State != a2a.TaskStateCompleted || known != nil {
			t.Errorf("%+v, %v; after a kill: %v", task, err, known)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
