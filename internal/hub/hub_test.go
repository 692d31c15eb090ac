package hub_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		fmt.Println("error", runChild(dir))
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// HUB-CONTEXT-CREATE, HUB-TASK-HISTORY.
func TestSendAndWaitAnswersAndSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	b, err := bus.Open(t.Context(), bus.Config{DataDir: dir, Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(t.Context(), hub.Config{Bus: b, Agents: []hub.Agent{{Definition: definition("echo"), Runner: echo()}}})
	if err != nil {
		t.Fatal(err)
	}
	done, err := h.SendAndWait(t.Context(), request("echo", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	check := func(task *a2a.Task) {
		t.Helper()
		if task.Status.State != a2a.TaskStateCompleted || text(task.Status.Message) != "hello" || len(task.Artifacts) != 0 || len(task.History) != 2 {
			t.Errorf("task = %+v", task)
		}
		if task.Metadata[hub.MetaAgent] != "echo" {
			t.Errorf("metadata = %v", task.Metadata)
		}
	}
	check(done)
	if err := errors.Join(h.Close(t.Context()), b.Close(t.Context())); err != nil {
		t.Fatal(err)
	}

	h = newHub(t, hub.Config{Bus: openBus(t, dir, bus.DurabilityFast)}, map[string]*fakeAgent{"echo": echo()})
	again, err := h.Task(t.Context(), done.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	check(again)
	page, err := h.Tasks(t.Context(), hub.TaskQuery{})
	if err != nil || page.Total != 1 || len(page.Tasks) != 1 {
		t.Errorf("Tasks = %+v, %v", page, err)
	}
}

// The first text, and text after a pause, is shown at once; what follows shortly after is shown together.
func TestStreamedTextIsShownAtOnceUnlessItFollowsShortly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &fakeAgent{turn: func(_ context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
			for _, text := range []string{"a", "b", "c"} {
				h.Event(runner.TextDelta{Text: text})
				time.Sleep(20 * time.Millisecond)
			}
			time.Sleep(time.Second)
			h.Event(runner.TextDelta{Text: "d"})
			time.Sleep(time.Second)
			return runner.Outcome{Status: runner.OutcomeCompleted}, nil
		}}
		h := newHub(t, hub.Config{}, map[string]*fakeAgent{"slow": agent})
		began := time.Now()
		sub, err := h.SendAndStream(t.Context(), request("slow", "x"))
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		shown := map[string]time.Duration{}
		for {
			ev, err := sub.Next(context.Background())
			if err == io.EOF {
				break
			}
			if up, ok := ev.(*a2a.TaskArtifactUpdateEvent); ok {
				shown[up.Artifact.Parts[0].Text()] = time.Since(began)
			}
		}
		// The agent could have answered at once, for which the first write of the task waits.
		want := map[string]time.Duration{"a": 2 * time.Millisecond, "bc": 100 * time.Millisecond, "d": 1060 * time.Millisecond}
		if !maps.Equal(shown, want) {
			t.Errorf("shown %v, want %v", shown, want)
		}
	})
}

// HUB-AGENT-STREAM.
func TestSendAndStreamStreamsTheAnswer(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"echo": echo()})
	sub, err := h.SendAndStream(t.Context(), request("echo", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if s := sub.Task().Status.State; s != a2a.TaskStateSubmitted {
		t.Errorf("snapshot is %s", s)
	}
	var got string
	var states []a2a.TaskState
	for {
		ev, err := sub.Next(context.Background())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch ev := ev.(type) {
		case *a2a.TaskArtifactUpdateEvent:
			got += ev.Artifact.Parts[0].Text()
		case *a2a.TaskStatusUpdateEvent:
			states = append(states, ev.Status.State)
		}
	}
	if got != "hello" || len(states) != 2 || states[1] != a2a.TaskStateCompleted {
		t.Errorf("text %q, states %v", got, states)
	}
	task, err := h.Task(t.Context(), sub.Task().ID, nil)
	if err != nil || len(task.Artifacts) != 1 || task.Artifacts[0].Parts[0].Text() != "hello" {
		t.Errorf("Task = %+v, %v", task, err)
	}
}
