package hub_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// HUB-CONTEXT-EXPIRY.
func TestContextExpiryFailsTasksAndRemovesDirectories(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		def := definition("a")
		def.Driver = runner.DriverExec
		a := actor()
		h, err := hub.New(t.Context(), hub.Config{ContextTTL: time.Hour, TaskTTL: 2 * time.Hour, DataDir: dir, Agents: []hub.Agent{{Definition: def, Runner: a}}})
		if err != nil {
			t.Fatal(err)
		}
		in := func(id, text string) hub.SendRequest {
			m := message(text)
			m.ContextID = id
			return hub.SendRequest{AgentID: "a", Message: m}
		}
		asks := send(t, h, in("old", "say:which? input"))
		running, err := h.Send(t.Context(), in("busy", "wait"))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		work := a.specs()[0].WorkDir
		if err := os.WriteFile(filepath.Join(work, "made.txt"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Minute)
		send(t, h, in("young", "say:x"))
		time.Sleep(20 * time.Minute)
		synctest.Wait()

		if _, err := h.Send(t.Context(), in("old", "say:x")); hub.CodeOf(err) != hub.CodeContextNotFound {
			t.Errorf("send to an expired context: %v", err)
		}
		got, err := h.Task(t.Context(), asks.ID, nil)
		if err != nil || got.Status.State != a2a.TaskStateFailed || errorCode(t, got) != string(hub.CodeContextNotFound) {
			t.Errorf("waiting task of the expired context: %+v, %v", got, err)
		}
		if _, err := os.Stat(work); !os.IsNotExist(err) {
			t.Errorf("the directory of the expired context still exists: %v", err)
		}
		infos, err := h.Contexts(t.Context(), 0)
		if err != nil || len(infos) != 2 {
			t.Errorf("contexts %+v, %v", infos, err)
		}
		send(t, h, in("young", "say:x"))
		if got, err := h.Task(t.Context(), running.ID, nil); err != nil || got.Status.State.Terminal() && errorCode(t, got) != "timeout" {
			t.Errorf("the running task: %+v, %v", got, err)
		}
		// A context is forgotten once its tasks are removed; its id may then be reused.
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		send(t, h, in("old", "say:x"))
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := a.left(); n != 0 {
			t.Errorf("%d sessions are still open", n)
		}
	})
}

func TestOldTasksAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := hub.New(t.Context(), hub.Config{TaskTTL: time.Hour, MaxTasks: 5, Agents: []hub.Agent{{Definition: definition("a"), Runner: actor()}}})
		if err != nil {
			t.Fatal(err)
		}
		asks := send(t, h, request("a", "input"))
		var all []*a2a.Task
		for range 8 {
			all = append(all, send(t, h, request("a", "say:x")))
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		total := func(want int) {
			t.Helper()
			if page, err := h.Tasks(t.Context(), hub.TaskQuery{}); err != nil || page.Total != want {
				t.Errorf("%d tasks, want %d, %v", page.Total, want, err)
			}
		}
		total(5)
		if _, err := h.Task(t.Context(), all[3].ID, nil); hub.CodeOf(err) != hub.CodeTaskNotFound {
			t.Errorf("an old task: %v", err)
		}
		if _, err := h.Task(t.Context(), all[4].ID, nil); err != nil {
			t.Errorf("a recent task: %v", err)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		total(1)
		if _, err := h.Task(t.Context(), asks.ID, nil); err != nil {
			t.Errorf("the waiting task: %v", err)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestContextExpirySurvivesARestart(t *testing.T) {
	b := openBus(t, t.TempDir(), bus.DurabilityFast)
	h, err := hub.New(t.Context(), hub.Config{Bus: b, Agents: []hub.Agent{{Definition: definition("a"), Runner: actor()}}})
	if err != nil {
		t.Fatal(err)
	}
	task := send(t, h, request("a", "session:s1 input"))
	if err := hub.ExpireNow(h, task.ContextID); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := actor()
	h = newHub(t, hub.Config{Bus: b}, map[string]*fakeAgent{"a": a})
	m := message("say:x")
	m.ContextID = task.ContextID
	if _, err := h.Send(t.Context(), hub.SendRequest{AgentID: "a", Message: m}); hub.CodeOf(err) != hub.CodeContextNotFound {
		t.Errorf("Send: %v", err)
	}
	if got, err := h.Task(t.Context(), task.ID, nil); err != nil || got.Status.State != a2a.TaskStateFailed {
		t.Errorf("task %+v, %v", got, err)
	}
}

func TestHistoryAndArtifactsAreBounded(t *testing.T) {
	agent := &fakeAgent{turn: func(_ context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
		h.Event(runner.Artifact{ID: prompt(turn), Parts: []*a2a.Part{a2a.NewTextPart(string(make([]byte, 600)))}})
		return runner.Outcome{Status: runner.OutcomeInputRequired, Text: "go on"}, nil
	}}
	h := newHub(t, hub.Config{MaxHistory: 6, MaxTaskBytes: 1000}, map[string]*fakeAgent{"a": agent})
	task := send(t, h, request("a", "first"))
	for _, p := range []string{"2", "3", "4", "last"} {
		task = send(t, h, follow(task, p))
	}
	if len(task.History) != 6 || text(task.History[0]) != "first" || text(task.History[4]) != "last" {
		t.Errorf("history %+v", task.History)
	}
	if len(task.Artifacts) != 1 {
		t.Errorf("%d artifacts", len(task.Artifacts))
	}
	notices, _ := task.Metadata[hub.MetaNotices].([]any)
	if len(notices) < 2 {
		t.Errorf("notices %v", notices)
	}
}
