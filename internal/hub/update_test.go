package hub_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Running turns continue in their sessions when their agent is updated; a higher limit
// of concurrent turns applies at once.
func TestUpdateKeepsTasksAndSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		worker := &fakeAgent{turn: func(ctx context.Context, turn runner.Turn, _ runner.Handler) (runner.Outcome, error) {
			select {
			case <-proceed:
				return runner.Outcome{Status: runner.OutcomeCompleted, Text: prompt(turn)}, nil
			case <-ctx.Done():
				return runner.Outcome{Status: runner.OutcomeCanceled}, nil
			}
		}}
		h, err := hub.NewInMemory(t.Context(), hub.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close(context.Background())
		d := definition("worker")
		d.Limits.Concurrency = 1
		if err := h.Register(hub.Agent{Definition: d, Runner: worker}); err != nil {
			t.Fatal(err)
		}
		var changes atomic.Int64
		h.OnAgents(func() { changes.Add(1) })
		var tasks []*a2a.Task
		for _, s := range []string{"one", "two"} {
			task, err := h.Send(t.Context(), request("worker", s))
			if err != nil {
				t.Fatal(err)
			}
			tasks = append(tasks, task)
		}
		synctest.Wait()
		if n := len(worker.specs()); n != 1 {
			t.Fatalf("%d turns run", n)
		}
		before := changes.Load()
		d.Name, d.Limits.Concurrency = "the worker", 2
		d.Capabilities = []runner.Capability{{ID: "dig"}}
		if err := h.Update(d); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := len(worker.specs()); n != 2 {
			t.Errorf("%d turns run", n)
		}
		if changes.Load() == before {
			t.Error("no notification of the change")
		}
		info, err := h.Agent("worker")
		if err != nil || info.Definition.Name != "the worker" || len(info.Definition.Capabilities) != 1 || info.Running != 2 {
			t.Errorf("%+v, %v", info, err)
		}
		close(proceed)
		for i, task := range tasks {
			if got := await(t, h, task.ID, a2a.TaskStateCompleted); text(got.Status.Message) != []string{"one", "two"}[i] {
				t.Errorf("answer %q", text(got.Status.Message))
			}
		}
		if worker.left() != 2 {
			t.Errorf("%d sessions are open", worker.left())
		}
		if err := h.Update(definition("nobody")); hub.CodeOf(err) != hub.CodeAgentNotFound {
			t.Errorf("got %v", err)
		}
	})
}
