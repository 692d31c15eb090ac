package hub_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
)

// delegated sends a message whose delegation chain is over, the origin first.
func delegated(text string, over ...a2a.TaskID) hub.SendRequest {
	req := request("a", text)
	if len(over) > 0 {
		req.Delegation = &hub.Delegation{By: "a", Task: over[len(over)-1], Tasks: over}
	}
	return req
}

func begin(t *testing.T, h *hub.Hub, req hub.SendRequest) a2a.TaskID {
	t.Helper()
	task, err := h.Send(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return task.ID
}

func state(t *testing.T, h *hub.Hub, id a2a.TaskID) a2a.TaskState {
	t.Helper()
	task, err := h.Task(t.Context(), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	return task.Status.State
}

func roomy(t *testing.T, b *bus.Bus) *hub.Hub {
	t.Helper()
	def := definition("a")
	def.Limits.Concurrency, def.Limits.Queue = 16, 1000
	h := newHub(t, hub.Config{Bus: b, Agents: []hub.Agent{{Definition: def, Runner: actor()}}}, nil)
	return h
}

// A task between the canceled one and the delegated one may have ended already.
func TestCancelAlsoCancelsDelegatedTasks(t *testing.T) {
	h := roomy(t, nil)
	root := begin(t, h, delegated("wait"))
	between, err := h.SendAndWait(t.Context(), delegated("say:ok", root))
	if err != nil {
		t.Fatal(err)
	}
	leaf := begin(t, h, delegated("wait", root, between.ID))
	asks := begin(t, h, delegated("say:which? input", root))
	await(t, h, asks, a2a.TaskStateInputRequired)
	other := begin(t, h, delegated("wait"))
	others := begin(t, h, delegated("wait", other))
	if task, err := h.Cancel(t.Context(), root); err != nil || task.ID != root || task.Status.State != a2a.TaskStateCanceled {
		t.Fatalf("%+v %v", task, err)
	}
	for id, want := range map[a2a.TaskID]a2a.TaskState{
		root: a2a.TaskStateCanceled, leaf: a2a.TaskStateCanceled, asks: a2a.TaskStateCanceled, between.ID: a2a.TaskStateCompleted,
	} {
		if got := state(t, h, id); got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
	if state(t, h, other).Terminal() || state(t, h, others).Terminal() {
		t.Error("tasks of another origin were canceled")
	}
	if _, err := h.CancelAlone(t.Context(), other); err != nil || state(t, h, others).Terminal() {
		t.Errorf("a task that was to be kept was canceled: %v", err)
	}
	if _, err := h.Cancel(t.Context(), others); err != nil {
		t.Errorf("cancel of the kept task: %v", err)
	}
}

// Send and Cancel run concurrently: whatever the order, no delegated task stays active.
func TestACanceledTaskCannotDelegate(t *testing.T) {
	h := roomy(t, nil)
	for range 20 {
		root := begin(t, h, delegated("wait"))
		begun := make([]a2a.TaskID, 8)
		var sending sync.WaitGroup
		for i := range begun {
			sending.Go(func() {
				task, err := h.Send(t.Context(), delegated("wait", root))
				if err == nil {
					begun[i] = task.ID
				} else if e, ok := errors.AsType[*hub.Error](err); !ok || e.Code != hub.CodeUnavailable {
					t.Error(err)
				}
			})
		}
		_, err := h.Cancel(t.Context(), root)
		sending.Wait()
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range slices.DeleteFunc(begun, func(id a2a.TaskID) bool { return id == "" }) {
			if got := state(t, h, id); got != a2a.TaskStateCanceled {
				t.Errorf("%s is %s", id, got)
			}
		}
		if _, err := h.Send(t.Context(), delegated("say:x", root)); err == nil {
			t.Error("a canceled task has delegated")
		}
	}
}

// Tasks that wait for input survive a restart, and so do their delegation chains.
func TestCancelAlsoCancelsTasksDelegatedBeforeARestart(t *testing.T) {
	b := openBus(t, t.TempDir(), bus.DurabilityFast)
	h := roomy(t, b)
	var root, child, other a2a.TaskID
	for i, id := range []*a2a.TaskID{&root, &child, &other} {
		req := delegated(fmt.Sprintf("say:%d input", i))
		if i == 1 {
			req = delegated("say:1 input", root)
		}
		*id = begin(t, h, req)
		await(t, h, *id, a2a.TaskStateInputRequired)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	h = roomy(t, b)
	if _, err := h.Cancel(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	if state(t, h, child) != a2a.TaskStateCanceled || state(t, h, other) != a2a.TaskStateInputRequired {
		t.Errorf("%s %s", state(t, h, child), state(t, h, other))
	}
}
