package hub_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// working is the definition of an agent with files.
func working(id string) runner.Definition { return runner.Definition{ID: id, Driver: "test"} }

func TestASummaryCountsAllTurnsOfATask(t *testing.T) {
	dir, data := t.TempDir(), t.TempDir()
	agent := &fakeAgent{turn: func(_ context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
		out := runner.Outcome{Status: runner.OutcomeInputRequired, Text: "and?", Usage: runner.Usage{InputTokens: 3, CostUSD: 0.25}, Model: "m-1"}
		if prompt(turn) == "that is all" {
			out.Status, out.Model = runner.OutcomeCompleted, "m-2"
		}
		return out, nil
	}}
	cfg := hub.Config{DataDir: data, Agents: []hub.Agent{{Definition: working("a"), Runner: agent}}}
	cfg.Bus = openBus(t, dir, bus.DurabilityFast)
	h := newHub(t, cfg, nil)
	began := time.Now()
	first := send(t, h, request("a", "\n  find the\tbug \nin parser.go"))
	next := request("a", "that is all")
	next.Message.TaskID = first.ID
	send(t, h, next)

	for _, where := range []string{"in memory", "after a restart"} {
		page, err := h.Tasks(t.Context(), hub.TaskQuery{HistoryLength: new(int)})
		if err != nil || len(page.Tasks) != 1 {
			t.Fatal(page, err)
		}
		got := hub.ReadSummary(page.Tasks[0].Metadata)
		if got.CreatedAt.Before(began.Add(-time.Second)) || got.StartedAt.Before(got.CreatedAt) {
			t.Errorf("%s: %+v", where, got)
		}
		want := hub.Summary{Prompt: "find the bug", Model: "m-2", CreatedAt: got.CreatedAt, StartedAt: got.StartedAt,
			Duration: got.Duration, Turns: 2, Usage: runner.Usage{InputTokens: 6, CostUSD: 0.5}}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", where, d)
		}
		if err := h.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		h = newHub(t, cfg, nil)
	}
}

func TestATaskOfAnOlderHubHasASummary(t *testing.T) {
	b := openBus(t, t.TempDir(), bus.DurabilityFast)
	if err := hub.Seed(t.Context(), b, 1, 1); err != nil {
		t.Fatal(err)
	}
	h := newHub(t, hub.Config{Bus: b}, nil)
	page, err := h.Tasks(t.Context(), hub.TaskQuery{HistoryLength: new(int)})
	if err != nil {
		t.Fatal(err)
	}
	if s := hub.ReadSummary(page.Tasks[0].Metadata); s.Prompt != "what is the time?" || s.CreatedAt.IsZero() || s.Turns != 0 {
		t.Errorf("%+v", s)
	}
}

func TestPromptLines(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": echo()})
	file := a2a.NewRawPart([]byte("x"))
	file.Filename = "notes.txt"
	for want, parts := range map[string]a2a.ContentParts{
		"hello": {a2a.NewTextPart("\n\n"), a2a.NewTextPart("hello\nworld")}, "[file notes.txt]": {file},
		strings.Repeat("é", 98) + "…": {a2a.NewTextPart(strings.Repeat("é", 500))},
	} {
		req := request("a", "")
		req.Message.Parts = parts
		if got := hub.ReadSummary(send(t, h, req).Metadata).Prompt; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
