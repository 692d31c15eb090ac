package simlink_test

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// execution is an agent's work on one turn of a task.
type execution struct {
	prompt  string
	task    string // at the agent's hub
	turn    int
	by      any             // the process that does it
	life    context.Context // of the process
	said    string          // the answer; "" before the end
	allowed string          // what was answered to its question
}

// records are what the agents have done. They are safe for concurrent use.
type records struct {
	mu    sync.Mutex
	done  []*execution
	asked []*asked
}

// begin notes an execution, and returns nil if the process was killed.
func (r *records) begin(p *hubProcess, t runner.Turn) *execution {
	prompt, err := runner.PromptText(t.Parts, 1<<20)
	if err != nil {
		panic(err)
	}
	return r.note(&execution{prompt: prompt, task: t.TaskID, turn: t.Number, by: p, life: p.life})
}

// note notes an execution, and returns nil if its process was killed.
func (r *records) note(x *execution) *execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.life.Err() != nil {
		return nil
	}
	r.done = append(r.done, x)
	return x
}

// change changes an execution unless its process was killed.
func (r *records) change(x *execution, f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.life.Err() != nil {
		return false
	}
	f()
	return true
}

// of returns the executions of a prompt.
func (r *records) of(prompt string) (all []execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.done {
		if x.prompt == prompt {
			all = append(all, *x)
		}
	}
	return all
}

var canceled = runner.Outcome{Status: runner.OutcomeCanceled}

// lengthOf returns how long the work on a prompt takes, by its second word. An answer to a question takes none.
func lengthOf(prompt string) time.Duration {
	words := strings.Fields(prompt)
	if len(words) < 2 {
		return 0
	}
	d, err := time.ParseDuration(words[1])
	if err != nil {
		panic(err)
	}
	return d
}

func asks(prompt string) bool { return strings.Contains(prompt, "ask") }

// worker is a program of a hub.
type worker struct{ p *hubProcess }

// Probe implements [runner.Agent].
func (worker) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageAuthenticated, AuthKnown: true}
}

// Open implements [runner.Agent].
func (w worker) Open(runner.SessionSpec) (runner.Session, error) { return w, nil }

// Close implements [runner.Session].
func (worker) Close(context.Context) error { return nil }

// Turn implements [runner.Session]: it says some words, asks if it is told to, and answers.
func (w worker) Turn(ctx context.Context, t runner.Turn, h runner.Handler) (runner.Outcome, error) {
	records := w.p.of.f.records
	x := records.begin(w.p, t)
	if x == nil {
		return canceled, nil
	}
	text := ""
	for range 3 {
		text += "word "
		h.Event(runner.TextDelta{Text: "word "})
		if !wait.Pause(ctx, lengthOf(x.prompt)/3) {
			return canceled, nil
		}
	}
	if asks(x.prompt) {
		a, err := h.Permission(ctx, runner.PermissionRequest{ID: "q", Title: "May I?", Options: []runner.PermissionOption{
			{ID: "allow", Kind: runner.AllowOnce}, {ID: "deny", Kind: runner.RejectOnce}}})
		if err != nil {
			return canceled, nil
		}
		records.change(x, func() { x.allowed = a.OptionID })
	}
	said := "did " + x.prompt
	h.Event(runner.TextDelta{Text: said})
	text += said
	if ctx.Err() != nil || !records.change(x, func() { x.said = text }) {
		return canceled, nil
	}
	return runner.Outcome{Status: runner.OutcomeCompleted, Text: text}, nil
}

// opened is an open session at a hub, which goes on when the hub is killed.
type opened struct{ p *hubProcess }

// Probe implements [runner.Agent].
func (opened) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageAuthenticated, AuthKnown: true}
}

// Open implements [runner.Agent].
func (s opened) Open(runner.SessionSpec) (runner.Session, error) { return s, nil }

// Close implements [runner.Session].
func (opened) Close(context.Context) error { return nil }

// Turn implements [runner.Session]. A turn that is repeated with its number gets the same answer.
func (s opened) Turn(ctx context.Context, t runner.Turn, h runner.Handler) (runner.Outcome, error) {
	records := s.p.of.f.records
	x := records.begin(s.p, t)
	if x == nil {
		return canceled, nil
	}
	if strings.Contains(x.prompt, "gate") && t.Number == 1 {
		a, err := h.Permission(ctx, runner.PermissionRequest{ID: "sender", Title: "May they?", Sender: true, Options: []runner.PermissionOption{
			{ID: "allow", Kind: runner.AllowOnce}, {ID: "deny", Kind: runner.RejectOnce}}})
		switch {
		case err != nil:
			return canceled, nil
		case a.OptionID != "allow":
			return runner.Outcome{Status: runner.OutcomeRejected, Text: "no"}, nil
		}
	}
	h.Event(runner.Shown{})
	if !wait.Pause(ctx, lengthOf(x.prompt)/2) {
		return canceled, nil
	}
	half := 50.0
	h.Event(runner.Progress{Text: "half of it", Percent: &half})
	if !wait.Pause(ctx, lengthOf(x.prompt)/2) || !records.change(x, func() { x.said = "did " + x.prompt }) {
		return canceled, nil
	}
	if asks(x.prompt) && t.Number == 1 {
		return runner.Outcome{Status: runner.OutcomeInputRequired, Text: "which one?", MessageID: "question-to-" + x.prompt}, nil
	}
	return runner.Outcome{Status: runner.OutcomeCompleted, Text: x.said, MessageID: "answer-to-" + x.prompt}, nil
}
