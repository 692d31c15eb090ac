package hub_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// replica is a client's copy of a task that it follows.
type replica struct {
	state     a2a.TaskState
	artifacts map[a2a.ArtifactID]string
	resyncs   int
}

func newReplica(task *a2a.Task) *replica {
	r := &replica{state: task.Status.State, artifacts: map[a2a.ArtifactID]string{}}
	for _, a := range task.Artifacts {
		for _, p := range a.Parts {
			r.artifacts[a.ID] += p.Text()
		}
	}
	return r
}

func (r *replica) apply(t testing.TB, ev a2a.Event) {
	switch ev := ev.(type) {
	case *a2a.Task:
		n := r.resyncs + 1
		*r = *newReplica(ev)
		r.resyncs = n
	case *a2a.TaskStatusUpdateEvent:
		r.state = ev.Status.State
	case *a2a.TaskArtifactUpdateEvent:
		if _, known := r.artifacts[ev.Artifact.ID]; known != ev.Append {
			t.Errorf("artifact %s: append is %v, known is %v", ev.Artifact.ID, ev.Append, known)
		}
		for _, p := range ev.Artifact.Parts {
			r.artifacts[ev.Artifact.ID] += p.Text()
		}
	}
}

func (r *replica) follow(t testing.TB, sub *hub.Subscription) {
	for {
		ev, err := sub.Next(context.Background())
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		r.apply(t, ev)
	}
}

// Clients subscribe at random moments of a stream. The snapshot and the events of each
// give the complete task.
func TestSubscribersSeeAllWithoutGapOrDuplicate(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		// The texts contain characters of several bytes and are cut at any byte.
		whole := strings.Repeat(rapid.StringN(1, 20, -1).Draw(rt, "text"), rapid.IntRange(1, 200).Draw(rt, "times"))
		step := rapid.IntRange(1, 50).Draw(rt, "step")
		pause := rapid.IntRange(0, len(whole)).Draw(rt, "pause")
		paused, resume := make(chan struct{}), make(chan struct{})
		agent := &fakeAgent{turn: func(_ context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
			for s := whole; s != ""; {
				if d := len(whole) - len(s); d <= pause && pause < d+step {
					close(paused)
					<-resume
				}
				n := min(step, len(s))
				h.Event(runner.TextDelta{Text: s[:n]})
				h.Event(runner.Artifact{ID: "log", Append: true, Parts: []*a2a.Part{a2a.NewTextPart("x")}})
				s = s[n:]
			}
			if pause == len(whole) && len(whole)%step == 0 {
				close(paused)
				<-resume
			}
			return runner.Outcome{Status: runner.OutcomeCompleted, Text: whole}, nil
		}}
		h, err := hub.New(context.Background(), hub.Config{Agents: []hub.Agent{{Definition: definition("a"), Runner: agent}}})
		if err != nil {
			rt.Fatal(err)
		}
		defer func() {
			if err := h.Close(context.Background()); err != nil {
				rt.Error(err)
			}
		}()
		first, err := h.SendAndStream(context.Background(), request("a", "go"))
		if err != nil {
			rt.Fatal(err)
		}
		var wg sync.WaitGroup
		watch := func(sub *hub.Subscription) {
			defer sub.Close()
			r := newReplica(sub.Task())
			r.follow(t, sub)
			if want := strings.ToValidUTF8(whole, "\uFFFD"); r.artifacts["answer"] != want {
				t.Errorf("answer %q, want %q", r.artifacts["answer"], want)
			}
			if n := (len(whole) + step - 1) / step; len(r.artifacts["log"]) != n {
				t.Errorf("%d of %d artifact parts", len(r.artifacts["log"]), n)
			}
			if r.state != a2a.TaskStateCompleted {
				t.Errorf("state %s", r.state)
			}
		}
		wg.Go(func() { watch(first) })
		more := func() {
			for range 4 {
				sub, err := h.Subscribe(context.Background(), first.Task().ID)
				if err != nil {
					rt.Fatal(err)
				}
				wg.Go(func() { watch(sub) })
			}
		}
		more() // at a random moment
		<-paused
		more() // during the stream
		close(resume)
		more() // at another random moment
		wg.Wait()
	})
}

// Ready says whether Next would block: from the first event on until there is none, and at the end.
func TestASubscriptionSaysWhetherAnEventIsThere(t *testing.T) {
	resume := make(chan struct{})
	agent := &fakeAgent{turn: func(_ context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		<-resume
		h.Event(runner.TextDelta{Text: "x"})
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "x"}, nil
	}}
	h, err := hub.New(context.Background(), hub.Config{Agents: []hub.Agent{{Definition: definition("a"), Runner: agent}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	sub, err := h.SendAndStream(context.Background(), request("a", "go"))
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if sub.Ready() {
		t.Error("an event is there before the agent has begun")
	}
	close(resume)
	wait.Eventually(t, "the task has ended", func() bool { return h.Status().ActiveTasks == 0 })
	for {
		if !sub.Ready() {
			t.Fatal("the next event, or the end, is not there")
		}
		if _, err := sub.Next(context.Background()); err != nil {
			return
		}
	}
}

func TestASlowSubscriberIsResyncedAndDelaysNobody(t *testing.T) {
	const chunks = 5000
	agent := &fakeAgent{turn: func(_ context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		for range chunks {
			h.Event(runner.ToolCall{ID: "1", Title: "tool"})
			h.Event(runner.Artifact{ID: "log", Append: true, Parts: []*a2a.Part{a2a.NewTextPart("x")}})
		}
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done"}, nil
	}}
	h := newHub(t, hub.Config{MaxTaskBytes: 1 << 30}, map[string]*fakeAgent{"a": agent})
	slow, err := h.SendAndStream(t.Context(), request("a", "go"))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	await(t, h, slow.Task().ID, a2a.TaskStateCompleted) // although the subscriber reads nothing
	r := newReplica(slow.Task())
	r.follow(t, slow)
	if r.resyncs != 1 || r.state != a2a.TaskStateCompleted || len(r.artifacts["log"]) != chunks {
		t.Errorf("%d resyncs, state %s, %d of %d parts", r.resyncs, r.state, len(r.artifacts["log"]), chunks)
	}
}

func TestSubscriptionEnds(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor()})
	t.Run("at once for an ended task", func(t *testing.T) {
		task := send(t, h, request("a", "say:x"))
		sub, err := h.Subscribe(t.Context(), task.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		if text(sub.Task().Status.Message) != "x" {
			t.Errorf("snapshot %+v", sub.Task())
		}
		if _, err := sub.Next(t.Context()); err != io.EOF {
			t.Errorf("Next: %v", err)
		}
	})
	t.Run("at an interruption, if requested", func(t *testing.T) {
		sub, err := h.SendAndStream(t.Context(), request("a", "input"))
		if err != nil {
			t.Fatal(err)
		}
		r := newReplica(sub.Task())
		r.follow(t, sub)
		sub.Close()
		if r.state != a2a.TaskStateInputRequired {
			t.Fatalf("state %s", r.state)
		}
		again, err := h.Subscribe(t.Context(), sub.Task().ID)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		r = newReplica(again.Task())
		var wg sync.WaitGroup
		wg.Go(func() { r.follow(t, again) })
		send(t, h, follow(again.Task(), "say:y"))
		wg.Wait()
		if r.state != a2a.TaskStateCompleted {
			t.Errorf("state %s", r.state)
		}
	})
	t.Run("by Close and by ctx", func(t *testing.T) {
		sub, err := h.SendAndStream(t.Context(), request("a", "wait"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for err == nil {
			_, err = sub.Next(ctx)
		}
		if err != context.Canceled {
			t.Errorf("Next: %v", err)
		}
		go sub.Close()
		for err = error(nil); err == nil; _, err = sub.Next(t.Context()) {
		}
		if err != io.EOF {
			t.Errorf("Next after Close: %v", err)
		}
		sub.Close()
	})
	if _, err := h.Subscribe(t.Context(), "nothing"); hub.CodeOf(err) != hub.CodeTaskNotFound {
		t.Errorf("unknown task: %v", err)
	}
}

func TestOnTurnReportsEveryTurn(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor()})
	var mu sync.Mutex
	var got []a2a.TaskID
	h.OnTurn(func(id a2a.TaskID) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, id)
	})
	task := send(t, h, request("a", "input"))
	send(t, h, follow(task, "say:x"))
	if len(got) != 2 || got[0] != task.ID || got[1] != task.ID {
		t.Errorf("reported %v", got)
	}
}
