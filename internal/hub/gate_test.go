package hub_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// gatekeeper asks about the sender of each task, and answers with the option.
func gatekeeper() *fakeAgent {
	return &fakeAgent{turn: func(ctx context.Context, t runner.Turn, h runner.Handler) (runner.Outcome, error) {
		a, err := h.Permission(ctx, runner.PermissionRequest{ID: "gate", Title: "May they?", Sender: true, Options: []runner.PermissionOption{
			{ID: "allow", Kind: runner.AllowOnce}, {ID: "deny", Kind: runner.RejectOnce},
		}})
		switch {
		case err != nil:
			return runner.Outcome{Status: runner.OutcomeCanceled}, nil
		case a.OptionID != "allow":
			return runner.Outcome{Status: runner.OutcomeRejected}, &runner.Error{Code: "rejected", Message: "denied"}
		}
		h.Event(runner.Shown{})
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: prompt(t)}, nil
	}}
}

func gateHub(t *testing.T) *hub.Hub {
	t.Helper()
	h := newHub(t, hub.Config{}, nil)
	def := definition("ann")
	def.Limits = runner.Limits{Run: time.Hour, Concurrency: 2, Queue: 2}
	if err := h.Register(hub.Agent{Definition: def, Runner: gatekeeper(), Durable: true}); err != nil {
		t.Fatal(err)
	}
	return h
}

// states returns the states of a task that a subscriber sees until it waits or has ended.
func states(t *testing.T, sub *hub.Subscription) (all []a2a.TaskState) {
	t.Helper()
	defer sub.Close()
	for {
		event, err := sub.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if up, ok := event.(*a2a.TaskStatusUpdateEvent); ok {
			all = append(all, up.Status.State)
		}
	}
}

func TestAGatedTaskHasNotBegun(t *testing.T) {
	h := gateHub(t)
	for words, want := range map[string][]a2a.TaskState{
		"allow": {a2a.TaskStateWorking, a2a.TaskStateCompleted},
		"deny":  {a2a.TaskStateRejected},
	} {
		sub, err := h.SendAndStream(t.Context(), hub.SendRequest{AgentID: "ann", Message: message("x"), Sender: outsider})
		if err != nil {
			t.Fatal(err)
		}
		task := sub.Task()
		if got := states(t, sub); !slices.Equal(got, []a2a.TaskState{a2a.TaskStateAuthRequired}) {
			t.Errorf("it went through %v", got)
		}
		m := message(words)
		m.TaskID = task.ID
		if sub, err = h.SendAndStream(t.Context(), hub.SendRequest{Message: m}); err != nil {
			t.Fatal(err)
		}
		got := states(t, sub)
		if len(got) > 0 && len(want) > 1 && got[0] == a2a.TaskStateCompleted {
			want = want[1:] // the answer was stored before the subscription began
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: it went through %v, not %v", words, got, want)
		}
		end, err := h.Task(t.Context(), task.ID, nil)
		if err != nil || end.Status.State != want[len(want)-1] || hub.Permitted(end.Metadata) != (words == "allow") {
			t.Errorf("%s: %+v, %v", words, end, err)
		}
	}
}

func TestAGatedTaskEnds(t *testing.T) {
	h := gateHub(t)
	gated := func(timeout time.Duration) a2a.TaskID {
		t.Helper()
		task, err := h.SendAndWait(t.Context(), hub.SendRequest{AgentID: "ann", Message: message("x"), Sender: outsider, Timeout: timeout})
		if err != nil || !hub.Interrupted(task.Status.State) && !task.Status.State.Terminal() {
			t.Fatalf("%+v, %v", task, err)
		}
		return task.ID
	}
	canceled := gated(0)
	task, err := h.Cancel(t.Context(), canceled)
	if err != nil || task.Status.State != a2a.TaskStateCanceled {
		t.Errorf("%+v, %v", task, err)
	}
	m := message("allow")
	m.TaskID = canceled
	if _, err := h.Send(t.Context(), hub.SendRequest{Message: m}); hub.CodeOf(err) != hub.CodeUnsupported {
		t.Errorf("an answer after the end: %v", err)
	}
	late := gated(time.Millisecond) // its deadline holds although nobody has answered
	wait.Eventually(t, "it has failed", taskIs(h, late, a2a.TaskStateFailed))
	removed := gated(0)
	if err := h.Deregister(t.Context(), "ann"); err != nil {
		t.Fatal(err)
	}
	if task, err := h.Task(t.Context(), removed, nil); err != nil || task.Status.State != a2a.TaskStateFailed {
		t.Errorf("%+v, %v", task, err)
	}
}
