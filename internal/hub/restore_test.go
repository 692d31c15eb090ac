package hub_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

const childDir = "PARLEY_HUB_TEST_DIR"

// runChild is the child process of TestAKilledHubLosesNoFinishedTask: it runs a hub with
// its data in dir, and prints a line for each answer, until it is killed.
func runChild(dir string) error {
	b, err := bus.Open(context.Background(), bus.Config{DataDir: dir, Durability: bus.DurabilityFast})
	if err != nil {
		return err
	}
	def := definition("a")
	def.Limits = runner.Limits{Concurrency: 16, Queue: 1000}
	h, err := hub.New(context.Background(), hub.Config{Bus: b, Agents: []hub.Agent{{Definition: def, Runner: actor()}}})
	if err != nil {
		return err
	}
	if os.Getenv(childTool) != "" {
		return toolChild(b, dir)
	}
	// These tasks never end; their output is stored while they run.
	for range 3 {
		task, err := h.Send(context.Background(), request("a", "session:s1 say:half artifact:log wait"))
		if err != nil {
			return err
		}
		fmt.Println("running", task.ID)
	}
	asks, err := h.SendAndWait(context.Background(), request("a", "say:half ask"))
	if err != nil {
		return err
	}
	fmt.Println("asking", asks.ID)
	input, err := h.SendAndWait(context.Background(), request("a", "say:which? input"))
	if err != nil {
		return err
	}
	fmt.Println("input", input.ID)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				task, err := h.SendAndWait(context.Background(), request("a", fmt.Sprintf("say:%d-%d", w, i)))
				if err != nil {
					fmt.Println("error", err)
					return
				}
				fmt.Println("done", task.ID, text(task.Status.Message))
			}
		})
	}
	wg.Wait()
	return nil
}

// The test kills a hub at random moments. After a restart every task that was answered
// is complete; tasks that were running have failed, with the reason and their output
// until then.
func TestAKilledHubLosesNoFinishedTask(t *testing.T) {
	runs := 6
	if testing.Short() {
		runs = 2
	}
	for run := range runs {
		t.Run(fmt.Sprint(run), func(t *testing.T) {
			dir := t.TempDir()
			answered := killAt(t, dir, 1+rand.IntN(400))
			h := newHub(t, hub.Config{Bus: openBus(t, dir, bus.DurabilityFast)}, map[string]*fakeAgent{"a": actor()})
			kinds := map[string]int{}
			for _, line := range answered {
				f := strings.Fields(line)
				if len(f) < 2 {
					continue
				}
				kinds[f[0]]++
				task, err := h.Task(t.Context(), a2a.TaskID(f[1]), nil)
				if err != nil {
					t.Errorf("%s: %v", line, err)
					continue
				}
				checkAfterKill(t, f, task)
			}
			if kinds["running"] != 3 || kinds["input"] != 1 || kinds["done"] == 0 || kinds["error"] != 0 {
				t.Errorf("the child printed %v", kinds)
			}
			for _, s := range []a2a.TaskState{a2a.TaskStateSubmitted, a2a.TaskStateWorking} {
				if page, err := h.Tasks(t.Context(), hub.TaskQuery{State: s}); err != nil || page.Total != 0 {
					t.Errorf("%d tasks are %s, %v", page.Total, s, err)
				}
			}
			for _, line := range answered {
				if f := strings.Fields(line); f[0] == "input" {
					m := message("say:thanks")
					m.TaskID = a2a.TaskID(f[1])
					if end := send(t, h, hub.SendRequest{Message: m}); end.Status.State != a2a.TaskStateCompleted {
						t.Errorf("task that was waiting for input: %+v", end)
					}
				}
			}
		})
	}
}

func checkAfterKill(t *testing.T, f []string, task *a2a.Task) {
	t.Helper()
	state := map[string]a2a.TaskState{
		"done": a2a.TaskStateCompleted, "input": a2a.TaskStateInputRequired, "running": a2a.TaskStateFailed, "asking": a2a.TaskStateFailed,
	}[f[0]]
	if task.Status.State != state {
		t.Errorf("%v is %s", f, task.Status.State)
	}
	switch f[0] {
	case "done":
		if text(task.Status.Message) != f[2] {
			t.Errorf("%v has the answer %q", f, text(task.Status.Message))
		}
	case "running":
		if errorCode(t, task) != "hub-stopped" || !strings.Contains(text(task.Status.Message), "the hub stopped while") {
			t.Errorf("%v has the reason %q", f, text(task.Status.Message))
		}
	}
}

// killAt runs a hub in a child process, kills it after a number of lines and returns
// the lines.
func killAt(t *testing.T, dir string, lines int) []string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var notified []string
	scan := bufio.NewScanner(out)
	for scan.Scan() {
		notified = append(notified, scan.Text())
		if len(notified) == lines+5 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the child ended before it was killed")
	}
	return notified
}

// The test opens the store in the state that a kill would leave. It contains the output
// of a running task, and the task was not stored as a whole for each piece of output.
func TestPartialOutputSurvivesAKill(t *testing.T) {
	dir := t.TempDir()
	b := openBus(t, dir, bus.DurabilityFast)
	sent := make(chan struct{})
	t.Cleanup(func() { <-sent }) // after the hub is closed
	agent := &fakeAgent{turn: func(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
		if prompt(turn) == "first" {
			h.Event(runner.TextDelta{Text: "the first turn"})
			return runner.Outcome{Status: runner.OutcomeInputRequired, Text: "the first turn"}, nil
		}
		h.Event(runner.TextDelta{Text: "half an ans"})
		h.Event(runner.Artifact{ID: "log", Name: "log", Parts: []*a2a.Part{a2a.NewTextPart("a")}})
		h.Event(runner.Artifact{ID: "log", Append: true, Parts: []*a2a.Part{a2a.NewTextPart("b")}})
		<-ctx.Done()
		return runner.Outcome{Status: runner.OutcomeCanceled}, nil
	}}
	h := newHub(t, hub.Config{Bus: b}, map[string]*fakeAgent{"a": agent})
	task := send(t, h, request("a", "first"))
	if _, err := h.Send(t.Context(), follow(task, "second")); err != nil {
		t.Fatal(err)
	}
	// The head of the second task is first stored during its turn.
	go func() {
		defer close(sent)
		if _, err := h.SendAndWait(context.Background(), in("c", "a", "unstored")); err != nil {
			t.Error(err)
		}
	}()
	page := hub.TaskPage{}
	for len(page.Tasks) == 0 {
		var err error
		if page, err = h.Tasks(t.Context(), hub.TaskQuery{ContextID: "c"}); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	other := page.Tasks[0].ID
	for _, id := range []a2a.TaskID{task.ID, other} {
		if err := hub.AwaitOutput(t.Context(), b, id); err != nil {
			t.Fatal(err)
		}
	}
	// A second hub on the same store sees what a kill would have left.
	h2 := newHub(t, hub.Config{Bus: b}, map[string]*fakeAgent{"a": actor()})
	cut, err := h2.Task(t.Context(), task.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := newReplica(cut)
	if got.state != a2a.TaskStateFailed || got.artifacts["answer-2"] != "half an ans" || got.artifacts["log"] != "ab" || len(got.artifacts) != 2 {
		t.Errorf("first task after the kill: %+v", got)
	}
	if cut, err = h2.Task(t.Context(), other, nil); err != nil {
		t.Fatal(err)
	}
	if got := newReplica(cut); got.artifacts["answer"] != "half an ans" || got.artifacts["log"] != "ab" {
		t.Errorf("second task after the kill: %+v", got)
	}
	if cut, err = h2.Task(t.Context(), task.ID, nil); err != nil {
		t.Fatal(err)
	}
	if n := len(cut.History); n != 4 || text(cut.History[2]) != "second" {
		t.Errorf("history of %d messages", n)
	}
}

func TestALargeTaskIsStoredInPieces(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 5<<16) // 5 MiB, stored in several pieces
	dir := t.TempDir()
	agent := &fakeAgent{turn: func(_ context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
		if prompt(turn) == "small" {
			return runner.Outcome{Status: runner.OutcomeCompleted, Text: "small"}, nil
		}
		h.Event(runner.Artifact{ID: "big", Parts: []*a2a.Part{a2a.NewTextPart(big)}})
		return runner.Outcome{Status: runner.OutcomeInputRequired, Text: "which?"}, nil
	}}
	b, err := bus.Open(t.Context(), bus.Config{DataDir: dir, Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(t.Context(), hub.Config{Bus: b, Agents: []hub.Agent{{Definition: definition("a"), Runner: agent}}})
	if err != nil {
		t.Fatal(err)
	}
	task := send(t, h, request("a", "big"))
	if err := errors.Join(h.Close(t.Context()), b.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	h = newHub(t, hub.Config{Bus: openBus(t, dir, bus.DurabilityFast)}, map[string]*fakeAgent{"a": agent})
	for _, next := range []string{"big", "small"} {
		got, err := h.Task(t.Context(), task.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Artifacts) != 1 || got.Artifacts[0].Parts[0].Text() != big {
			t.Fatal("the large artifact has changed")
		}
		send(t, h, follow(task, next))
	}
}

func TestUnreadableRecordsAreReportedAndSkipped(t *testing.T) {
	b := openBus(t, t.TempDir(), bus.DurabilityFast)
	for what, store := range map[string]func() error{
		"header": func() error { return hub.StoreRaw(b, "task.x", "2 what is this", "{}") },
		"state":  func() error { return hub.StoreRaw(b, "task.x", "1 DREAMING 1 1 false 0 0 a YQ", "{}") },
		"record": func() error { return hub.StoreRaw(b, "record.session.!", "", "{}") },
	} {
		if err := errors.Join(hub.Clear(b), store()); err != nil {
			t.Fatal(err)
		}
		var notified strings.Builder
		h := newHub(t, hub.Config{Bus: b, Logger: slog.New(slog.NewTextHandler(&notified, nil))}, nil)
		if page, err := h.Tasks(t.Context(), hub.TaskQuery{}); err != nil || page.Total != 0 || !strings.Contains(notified.String(), "cannot be read") {
			t.Errorf("%s: %d tasks, %v, log %s", what, page.Total, err, notified.String())
		}
	}
	cut := hub.StoreRaw(b, "task.y", "1 TASK_STATE_WORKING 1 1 true 0 0 a YQ", "no JSON")
	if err := errors.Join(cut, hub.StoreRaw(b, "task.x", "1 TASK_STATE_COMPLETED 1 1 false 0 0 a YQ", "no JSON")); err != nil {
		t.Fatal(err)
	}
	if err := hub.StoreRaw(b, "task.z", "1 TASK_STATE_WORKING 1 2 true 5 2 a YQ", ""); err != nil { // its pieces are missing
		t.Fatal(err)
	}
	h := newHub(t, hub.Config{Bus: b}, nil)
	for _, id := range []a2a.TaskID{"x", "y", "z"} {
		if _, err := h.Task(t.Context(), id, nil); hub.CodeOf(err) != hub.CodeInternal {
			t.Errorf("Task %s: %v", id, err)
		}
	}
	if page, err := h.Tasks(t.Context(), hub.TaskQuery{}); err != nil || len(page.Tasks) != 3 || page.Tasks[1].ContextID != "a" {
		t.Errorf("Tasks = %+v, %v", page, err)
	}
	if s := h.Status(); s.ActiveTasks != 0 || s.TotalTasks != 3 {
		t.Errorf("status %+v", s)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := hub.New(t.Context(), hub.Config{Name: "a.b"}); hub.CodeOf(err) != hub.CodeInvalid {
		t.Errorf("invalid name: %v", err)
	}
	bad := []hub.Agent{{Definition: definition("a"), Runner: actor()}, {Definition: definition("b")}}
	if _, err := hub.New(t.Context(), hub.Config{Agents: bad}); hub.CodeOf(err) != hub.CodeInvalid {
		t.Errorf("agent without a runner: %v", err)
	}
	off := definition("a")
	off.Disabled = true
	h := newHub(t, hub.Config{Agents: []hub.Agent{{Definition: off}}}, nil)
	if n := len(h.Agents()); n != 0 {
		t.Errorf("%d agents, want none: the only one is disabled", n)
	}
}
