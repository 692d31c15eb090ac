package runner_test

import (
	"context"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub/runner"
)

func echo(t testing.TB, change func(*runner.Definition)) runner.Session {
	t.Helper()
	def := runner.Builtin()["echo"]
	if change != nil {
		change(&def)
	}
	agent, err := runner.Open(def, runner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if p := agent.Probe(t.Context()); p.Stage != runner.StageAuthenticated || p.Err != nil {
		t.Errorf("probe %+v", p)
	}
	s, err := agent.Open(runner.SessionSpec{ContextID: "c"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEchoAnswersWithTheMessage(t *testing.T) {
	var h record
	out, err := echo(t, nil).Turn(t.Context(), prompt("one two"), &h)
	if err != nil || out.Status != runner.OutcomeCompleted || out.Text != "one two" || h.text() != "one two" || len(h.events) != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	out, err = echo(t, nil).Turn(t.Context(), runner.Turn{Parts: []*a2a.Part{a2a.NewTextPart("a"), a2a.NewDataPart(1)}}, &h)
	if err != nil || out.Text != "a\n\n```json\n1\n```" {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestEchoStreamsWordsWhenAsked(t *testing.T) {
	s := echo(t, func(d *runner.Definition) { d.Args = []string{"words"} })
	var h record
	out, err := s.Turn(t.Context(), prompt("one two three"), &h)
	if err != nil || out.Text != "one two three" || h.text() != out.Text || len(h.events) != 3 {
		t.Errorf("%+v, %v, %v", out, err, h.events)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out, err = s.Turn(ctx, prompt("one two three"), &record{seen: func(runner.Event) { cancel() }})
	if err != nil || out.Status != runner.OutcomeCanceled {
		t.Errorf("%+v, %v", out, err)
	}
	out, err = echo(t, nil).Turn(ctx, prompt("x"), &h)
	if err != nil || out.Status != runner.OutcomeCanceled {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestEchoIsBoundedAndRunsOneTurnAtATime(t *testing.T) {
	s := echo(t, func(d *runner.Definition) { d.Limits.MaxPrompt, d.Limits.MaxOutput = 10, 5 })
	out, err := s.Turn(t.Context(), prompt("12345678"), &record{})
	if err != nil || out.Text != "12345" || !out.Truncated {
		t.Errorf("%+v, %v", out, err)
	}
	_, err = s.Turn(t.Context(), prompt(strings.Repeat("x", 11)), &record{})
	checkError(t, err, runner.CodeLimit, "")
	_, err = s.Turn(t.Context(), prompt("x"), &record{seen: func(runner.Event) {
		_, err := s.Turn(t.Context(), prompt("y"), &record{})
		checkError(t, err, runner.CodeBusy, "")
	}})
	if err != nil {
		t.Error(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func BenchmarkEcho(b *testing.B) {
	s := echo(b, nil)
	turn, h := prompt("hello"), &discard{}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Turn(b.Context(), turn, h); err != nil {
			b.Fatal(err)
		}
	}
}

// The agent starts no process, so that the default limits of those that do would only refuse clients.
func TestEchoServesManyClients(t *testing.T) {
	def, err := runner.Definition{ID: "echo"}.Complete()
	if err != nil || def.Limits.Concurrency < 64 || def.Limits.Queue < 1000 {
		t.Errorf("%+v, %v", def.Limits, err)
	}
}
