package hub_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// held says that bob holds all files whose names begin with "held".
func held(_ context.Context, agentID, contextID string, files []string) (all []hub.HeldFile, err error) {
	if agentID == "" || contextID == "" {
		return nil, errors.New("nobody asks")
	}
	for _, path := range files {
		if strings.Contains(path, "/held") {
			all = append(all, hub.HeldFile{Path: path, Holder: "bob", Until: "2026-01-31T12:00:00Z", Held: "bob holds it: \"his words\".", Ask: "Ask bob."})
		}
	}
	return all, nil
}

func notices(task *a2a.Task) string {
	list, _ := task.Metadata[hub.MetaNotices].([]any)
	return fmt.Sprint(list...)
}

func TestAToolThatChangesAClaimedFileIsRefused(t *testing.T) {
	var refusals []runner.Refusal
	agent := &fakeAgent{turn: func(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		for _, call := range []runner.ToolCall{
			{ID: "1", Name: "Edit", Input: json.RawMessage(`{"file_path":"/held.go"}`)},
			{ID: "2", Name: "Edit", Input: json.RawMessage(`{"file_path":"/free.go"}`)},
			{ID: "3", Name: "Read", Input: json.RawMessage(`{"file_path":"/held.go"}`)},
			{ID: "4", Name: "edit", Files: []string{"/held1", "/held2", "/held3", "/held4", "/held1"}},
		} {
			refusals = append(refusals, h.(runner.Guard).Claimed(ctx, call))
		}
		h.Event(runner.ToolCall{ID: "5", Name: "Edit", Status: runner.ToolPending, Input: json.RawMessage(`{"file_path":"/held.go"}`)})
		refusals = append(refusals, h.(runner.Guard).Claimed(ctx, runner.ToolCall{ID: "5"})) // the input is known
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done"}, nil
	}}
	h := newHub(t, hub.Config{HeldFiles: held}, map[string]*fakeAgent{"a": agent})
	task := send(t, h, request("a", "go"))
	var refused []bool
	for _, r := range refusals {
		refused = append(refused, r.Text != "")
		if strings.Contains(r.Plain, "his words") {
			t.Errorf("the holder's words stand among the hub's: %s", r.Plain)
		}
	}
	if !slices.Equal(refused, []bool{true, false, false, true, true}) {
		t.Errorf("refused: %v", refused)
	}
	if r := refusals[0]; !strings.Contains(r.Text, "his words") || !strings.Contains(r.Text, "Ask bob.") || !strings.Contains(r.Plain, "bob holds until 2026-01-31T12:00:00Z") {
		t.Errorf("refusal %+v", r)
	}
	if n := strings.Count(refusals[3].Text, "Ask bob."); n != 3 {
		t.Errorf("a refusal names %d files", n)
	}
	if said := notices(task); !strings.Contains(said, `refused: the agent bob has claimed it`) || strings.Contains(said, "his words") {
		t.Errorf("notices %s", said)
	}
}

func TestATaskSaysThatAClaimedFileWasChanged(t *testing.T) {
	agent := &fakeAgent{turn: func(_ context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		h.Event(runner.ToolCall{ID: "1", Name: "Write", Status: runner.ToolRunning, Input: json.RawMessage(`{"file_path":"/held.go"}`)})
		h.Event(runner.ToolCall{ID: "1", Status: runner.ToolCompleted})
		h.Event(runner.ToolCall{ID: "1", Status: runner.ToolCompleted})
		h.Event(runner.ToolCall{ID: "2", Name: "Write", Status: runner.ToolFailed, Input: json.RawMessage(`{"file_path":"/held-failed.go"}`)})
		h.Event(runner.ToolCall{ID: "3", Name: "file_change", Status: runner.ToolCompleted, Files: []string{"/held3.go", "/free.go"}})
		h.Event(runner.ToolCall{ID: "4", Name: "Write", Status: runner.ToolDenied, Input: json.RawMessage(`{"file_path":"/held-denied.go"}`)})
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done"}, nil
	}}
	h := newHub(t, hub.Config{HeldFiles: held}, map[string]*fakeAgent{"a": agent})
	task := send(t, h, request("a", "go"))
	said := notices(task)
	if strings.Count(said, "held.go") != 1 || strings.Count(said, "held3.go") != 1 || strings.Contains(said, "free") || strings.Contains(said, "failed") || strings.Contains(said, "denied") {
		t.Errorf("notices %s", said)
	}
	if !strings.Contains(said, "although the agent bob has claimed it until 2026-01-31T12:00:00Z") {
		t.Errorf("notices %s", said)
	}
}

func TestAnyDoubtAboutClaimsLetsAToolRun(t *testing.T) {
	doubt := func(context.Context, string, string, []string) ([]hub.HeldFile, error) {
		return nil, errors.New("unknown")
	}
	for _, check := range []func(context.Context, string, string, []string) ([]hub.HeldFile, error){nil, doubt} {
		var refusal runner.Refusal
		agent := &fakeAgent{turn: func(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
			refusal = h.(runner.Guard).Claimed(ctx, runner.ToolCall{ID: "1", Files: []string{"/held"}})
			h.Event(runner.ToolCall{ID: "1", Files: []string{"/held"}, Status: runner.ToolCompleted})
			return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done"}, nil
		}}
		h := newHub(t, hub.Config{HeldFiles: check}, map[string]*fakeAgent{"a": agent})
		if task := send(t, h, request("a", "go")); refusal != (runner.Refusal{}) || task.Metadata[hub.MetaNotices] != nil {
			t.Errorf("%+v, %v", refusal, task.Metadata)
		}
	}
}
