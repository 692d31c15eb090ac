//go:build unix

package loop_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/loop"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/swarm"
)

// planned is a standIn that keeps the plans.
type planned struct {
	*standIn
	got []swarm.Plan
}

func (h *planned) CreateSwarm(ctx context.Context, p swarm.Plan) (*swarm.Session, error) {
	h.got = append(h.got, p)
	return h.standIn.CreateSwarm(ctx, p)
}

func begins(string) error { return nil }

// Feature: a2a-mcp-protocols (Req 8.1).
func TestAnItemsPointsAreTheSwarmsSubTasks(t *testing.T) {
	h := &planned{standIn: &standIn{}}
	c := &loop.Choice{Agent: loop.Agent(h, "codex", "", false), Swarm: loop.Swarm(h, nil, "", true), Rule: loop.RuleAuto, Record: func(ralph.Step) error { return nil }}
	for _, tt := range []struct {
		text  string
		parts int // 0: the agent's
	}{
		{"do", 0}, {"do\n- one", 0}, {"do\n- one\n* two\n3) three", 3}, {"- a\n- b", 0}, {"do\n-x\n-y", 0},
		{"[SWARM] do", 1}, {"[swarm] do\n- one\n- two", 2}, {"[agent] do\n- one\n- two", 0}, {"[swarm]", 0},
		{"do\n- one\n- two\n" + strings.Repeat("x", 60<<10), 1},
	} {
		h.got, h.keys = nil, nil
		h.states, h.swarms = []dialect.TaskState{dialect.StateCompleted}, []swarm.Session{{Status: swarm.Completed}}
		if _, err := c.Dispatch(t.Context(), ralph.Job{Item: ralph.Item{ID: "i", Text: tt.text}, Attempt: 1}, begins); err != nil {
			t.Fatalf("%.20q: %v", tt.text, err)
		}
		if tt.parts == 0 && len(h.keys) == 1 && len(h.got) == 0 {
			continue
		}
		if len(h.got) != 1 || len(h.got[0].SubTasks) != tt.parts || strings.Contains(h.got[0].TaskDescription, "[") {
			t.Errorf("%.20q: %d tasks, swarms %.300v; want %d sub-tasks", tt.text, len(h.keys), h.got, tt.parts)
		}
	}
}

// Feature: a2a-mcp-protocols (Req 8.5): a swarm that cannot go on is escalated to the loop, with what failed.
func TestASwarmThatCannotGoOnIsEscalatedToTheLoop(t *testing.T) {
	var steps []ralph.Step
	var refused error
	h := &planned{standIn: &standIn{states: []dialect.TaskState{dialect.StateCompleted}}}
	c := &loop.Choice{Agent: loop.Agent(h, "codex", "", false), Swarm: loop.Swarm(h, nil, "", true), Rule: loop.RuleAlways, Record: func(s ralph.Step) error {
		steps = append(steps, s)
		return refused
	}}
	j := ralph.Job{Item: ralph.Item{ID: "i", Text: "do"}, Attempt: 2}
	ref := ""
	h.swarms = []swarm.Session{{Status: swarm.Failed, Error: "point-1: why"}}
	_, err := c.Dispatch(t.Context(), j, func(r string) error { ref = r; return nil })
	if err == nil || ralph.CodeOf(err) != "" || len(steps) != 2 {
		t.Fatalf("%v, %+v", err, steps)
	}
	s := steps[1]
	if s.Kind != ralph.Escalated || !s.Kind.Valid() || !steps[0].Kind.Valid() || s.Ref != ref || s.Item != "i" || s.Attempt != 2 || !strings.Contains(s.Detail, "point-1: why") {
		t.Errorf("%+v, reference %q", s, ref)
	}
	// A swarm that was stopped with the loop is not escalated. The reference alone says that it is a swarm's.
	steps, c.Rule, h.swarms = nil, loop.RuleNever, []swarm.Session{{Status: swarm.Failed, Error: "stopped: with the loop"}}
	if _, err := c.Resume(t.Context(), j, ref); ralph.CodeOf(err) != ralph.CodeLost || len(steps) != 0 || len(h.keys) != 0 {
		t.Errorf("%v, %+v, %d tasks", err, steps, len(h.keys))
	}
	if _, err := c.Resume(t.Context(), j, "a-task"); err != nil || len(h.keys) != 1 || h.keys[0] != "a-task" {
		t.Errorf("%v, %v (%s)", err, h.keys, hub.MetaOnce)
	}
	refused, h.swarms = errors.New("full"), []swarm.Session{{Status: swarm.Failed, Error: "why"}}
	if _, err := c.Resume(t.Context(), j, ref); ralph.CodeOf(err) != ralph.CodeRecord {
		t.Error(err)
	}
	if _, err := c.Dispatch(t.Context(), j, begins); ralph.CodeOf(err) != ralph.CodeRecord {
		t.Error(err)
	}
}
