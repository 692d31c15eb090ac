//go:build unix

package loop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/app/loop"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/swarm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAChecksExitCodeDecidesAndItsOutputIsBounded(t *testing.T) {
	for _, tt := range []struct {
		script string
		ok     bool
		report string
	}{
		{"exit 0", true, ""},
		{"echo red; echo why >&2; exit 3", false, "red\n\nwhy"},
		{"kill -9 $$", false, "ended by"},
		{"head -c 1000000 /dev/zero | tr '\\0' x; echo end; exit 1", false, "end\n"},
		{"sleep 600", false, "took longer"},
	} {
		c := loop.Check{Argv: []string{"/bin/sh", "-c", tt.script}, Limit: 2 * time.Second, Output: 100}
		v, err := c.Validate(t.Context(), ralph.Job{}, ralph.Outcome{})
		if err != nil || v.OK != tt.ok || !strings.Contains(v.Report, tt.report) || len(v.Report) > 200 {
			t.Errorf("%q: %+v, %v", tt.script, v, err)
		}
	}
	c := loop.Check{Argv: []string{"parley-no-such-program"}}
	if _, err := c.Validate(t.Context(), ralph.Job{}, ralph.Outcome{}); ralph.CodeOf(err) != ralph.CodeValidator {
		t.Error(err)
	}
}

// standIn is a hub whose answers are set by the test.
type standIn struct {
	loop.Hub
	states   []dialect.TaskState // of the task, one for each call; the last one repeats
	keys     []any               // of the received messages
	canceled []string            // tasks
	plans    []string            // ids of the created swarms
	swarms   []swarm.Session
	meta     map[string]any // of the task's message
	err      error
}

func (h *standIn) Send(_ context.Context, p dialect.SendParams) (*dialect.Task, error) {
	h.keys = append(h.keys, p.Message.Metadata[hub.MetaOnce])
	return h.Task(context.Background(), "t1")
}

func (h *standIn) Task(context.Context, string) (*dialect.Task, error) {
	if h.err != nil {
		return nil, h.err
	}
	state := h.states[0]
	if len(h.states) > 1 {
		h.states = h.states[1:]
	}
	text := "said"
	return &dialect.Task{ID: "t1", Status: dialect.TaskStatus{State: state, Message: &dialect.Message{Metadata: h.meta, Parts: []dialect.Part{{Text: &text}}}}}, nil
}

func (h *standIn) Cancel(_ context.Context, id string) (*dialect.Task, error) {
	h.canceled = append(h.canceled, id)
	return &dialect.Task{ID: id, Status: dialect.TaskStatus{State: dialect.StateCanceled}}, nil
}

func (h *standIn) CreateSwarm(_ context.Context, p swarm.Plan) (*swarm.Session, error) {
	h.plans = append(h.plans, p.ID)
	return &swarm.Session{ID: p.ID}, h.err
}

func (h *standIn) AwaitSwarm(context.Context, string, uint64) (*swarm.Session, error) {
	s := h.swarms[0]
	h.swarms = h.swarms[1:]
	return &s, nil
}

func TestAnAgentsTaskIsAwaited(t *testing.T) {
	for state, part := range map[dialect.TaskState]string{dialect.StateCompleted: "", dialect.StateFailed: "failed: said", dialect.StateInputRequired: "nobody answered: said"} {
		h := &standIn{states: []dialect.TaskState{dialect.StateWorking, state}}
		a := loop.Agent(h, "codex", "", false)
		ref := ""
		out, err := a.Dispatch(t.Context(), ralph.Job{}, func(r string) error {
			if ref = r; len(h.keys) > 0 {
				t.Error("the task was sent before its reference was stored")
			}
			return nil
		})
		if ref == "" || !slices.Equal(h.keys, []any{ref}) || (part == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), part) || err == nil && out.Text != "said" {
			t.Errorf("%s: %q, %+v, %v", state, ref, out, err)
		}
		if asked := state == dialect.StateInputRequired; asked != slices.Equal(h.canceled, []string{"t1"}) {
			t.Errorf("%s: canceled %q", state, h.canceled)
		}
	}
	for err, code := range map[error]ralph.Code{
		client.ErrNotRunning: ralph.CodeUnavailable,
		jsonrpc.NewError(dialect.CodeTaskNotFound, "gone", jsonrpc.Details{}):     ralph.CodeLost,
		jsonrpc.NewError(dialect.CodeAgentUnavailable, "away", jsonrpc.Details{}): ralph.CodeUnavailable,
	} {
		a := loop.Agent(&standIn{err: err}, "", "", false)
		if _, got := a.Resume(t.Context(), ralph.Job{}, "t1"); ralph.CodeOf(got) != code {
			t.Errorf("%v: %v", err, got)
		}
	}
}

func TestASwarmIsAwaited(t *testing.T) {
	h := &standIn{swarms: []swarm.Session{{Status: swarm.Active}, {Status: swarm.Completed, Outcome: []byte(`{"item":1}`)}, {Status: swarm.Failed, Error: "why"}}}
	s := loop.Swarm(h, nil, "", false)
	ref := ""
	out, err := s.Dispatch(t.Context(), ralph.Job{}, func(r string) error { ref = r; return nil })
	if err != nil || out.Text != `{"item":1}` {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := s.Resume(t.Context(), ralph.Job{}, ref); err == nil || !strings.Contains(err.Error(), "why") {
		t.Error(err)
	}
	if ref == "" || !slices.Equal(h.plans, []string{ref, ref}) {
		t.Errorf("the reference is %q, the swarms %q", ref, h.plans)
	}
	refused := errors.New("no space left")
	if _, err := s.Dispatch(t.Context(), ralph.Job{}, func(string) error { return refused }); !errors.Is(err, refused) || len(h.plans) != 2 {
		t.Errorf("%v; continued without a stored reference: %q", err, h.plans)
	}
}

// An error of the agent's configuration ends the loop without counting as an attempt; the next loop starts the item
// again.
func TestAnAgentThatCannotWorkCostsNoAttempt(t *testing.T) {
	for name, h := range map[string]*standIn{
		"not installed":                   {states: []dialect.TaskState{dialect.StateFailed}, meta: map[string]any{hub.MetaError: map[string]any{"code": "not-installed"}}},
		"a directory that is not allowed": {states: []dialect.TaskState{dialect.StateFailed}, meta: map[string]any{hub.MetaError: map[string]any{"code": "config"}}},
		"credentials":                     {states: []dialect.TaskState{dialect.StateAuthRequired}},
	} {
		t.Run(name, func(t *testing.T) {
			a := loop.Agent(h, "codex", "", false)
			if _, err := a.Dispatch(t.Context(), ralph.Job{}, func(string) error { return nil }); ralph.CodeOf(err) != ralph.CodeUnavailable {
				t.Errorf("dispatched: %v", err)
			}
			if _, err := a.Resume(t.Context(), ralph.Job{}, "key"); ralph.CodeOf(err) != ralph.CodeLost {
				t.Errorf("resumed: %v", err)
			}
		})
	}
	nobody := swarm.Session{Status: swarm.Failed, Error: string(swarm.CodeNoAgents) + ": nobody has accepted"}
	s := loop.Swarm(&standIn{swarms: []swarm.Session{nobody, nobody, nobody}}, nil, "", false)
	if _, err := s.Dispatch(t.Context(), ralph.Job{}, func(string) error { return nil }); ralph.CodeOf(err) != ralph.CodeUnavailable {
		t.Errorf("a swarm without agents: %v", err)
	}
	if _, err := s.Resume(t.Context(), ralph.Job{}, "id"); ralph.CodeOf(err) != ralph.CodeLost {
		t.Errorf("a swarm without agents, resumed: %v", err)
	}
	// An error that the item causes counts as an attempt.
	if _, err := s.Dispatch(t.Context(), ralph.Job{Item: ralph.Item{Capabilities: []string{"fly"}}}, func(string) error { return nil }); err == nil || ralph.CodeOf(err) != "" {
		t.Errorf("an item whose capability no agent has: %v", err)
	}
}

// A task that ended because its hub stopped or was killed does not count as an attempt.
func TestATaskThatTheHubsEndInterruptedIsLost(t *testing.T) {
	for code, want := range map[string]ralph.Code{hub.CodeStopped: ralph.CodeLost, "other": ""} {
		h := &standIn{states: []dialect.TaskState{dialect.StateFailed}, meta: map[string]any{hub.MetaError: map[string]any{"code": code}}}
		a := loop.Agent(h, "codex", "", false)
		if _, err := a.Resume(t.Context(), ralph.Job{}, "key"); err == nil || ralph.CodeOf(err) != want {
			t.Errorf("%s: %v", code, err)
		}
	}
}
