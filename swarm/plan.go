package swarm

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/text"
)

// Limits of a plan.
const (
	MaxSubTasks        = 100_000
	MaxText            = 64 << 10 // bytes of a description
	MaxCapabilities    = 64
	MaxDependencies    = 1000
	DefaultMaxAttempts = 3
)

// Plan is a task for a swarm.
type Plan struct {
	// ID is the swarm's: 1 to 64 letters, digits, - and _; "" lets the coordinator choose.
	// Creating a swarm with an existing id does nothing, so a creation can be repeated.
	ID                   string        `json:"id,omitempty"`
	TaskDescription      string        `json:"taskDescription"`
	RequiredCapabilities []string      `json:"requiredCapabilities"`  // of every participant
	Agents               []string      `json:"agents,omitempty"`      // agents that may take part; empty: all
	SubTasks             []SubTaskPlan `json:"subTasks,omitempty"`    // empty: each participant gets the whole task
	MaxAttempts          int           `json:"maxAttempts,omitempty"` // at a sub-task before it is escalated; 0 means DefaultMaxAttempts
	// EscalationJustification is required from a coordinator of L2 or L3 to agents of L0 and L1.
	EscalationJustification string `json:"escalationJustification,omitempty"`
	// Directory is where the participants on its host work; nil leaves the choice to them.
	Directory *Directory `json:"directory,omitempty"`
	// Unattended says that nobody can be asked what to do about a sub-task that no agent could do. See [Reporter].
	Unattended bool `json:"unattended,omitempty"`
}

// Directory is a directory on one computer. Coordinators store it and never send it to participants, which may be on
// other computers: those on its host read it from the session.
type Directory struct {
	Host string `json:"host,omitempty"` // identifies the program that has stored it
	Path string `json:"path"`           // absolute
}

// maxPath bounds a directory's host and path, in bytes.
const maxPath = 4096

// SubTaskPlan is one part of a task.
type SubTaskPlan struct {
	ID                   string          `json:"id"` // unique in the swarm
	Description          string          `json:"description"`
	RequiredCapabilities []string        `json:"requiredCapabilities,omitempty"` // besides the plan's
	DependsOn            []string        `json:"dependsOn,omitempty"`            // sub-tasks whose results it gets
	Input                json.RawMessage `json:"input,omitempty"`
}

var idPattern = text.Pattern(`^[A-Za-z0-9_-]{1,64}$`)

// check returns nil for a valid plan.
func (p *Plan) check() error {
	bad := func(format string, args ...any) error { return errorf(CodeInvalid, "", format, args...) }
	switch {
	case p.ID != "" && !idPattern().MatchString(p.ID):
		return bad("a swarm's id must have 1 to 64 messages, digits, - and _")
	case !isText(p.TaskDescription):
		return bad("the task needs a description of at most %d bytes", MaxText)
	case len(p.SubTasks) > MaxSubTasks:
		return bad("there are %d sub-tasks, at most %d are allowed", len(p.SubTasks), MaxSubTasks)
	case !areCapabilities(p.RequiredCapabilities):
		return bad("the required capabilities must be at most %d ids", MaxCapabilities)
	case len(p.Agents) > DefaultMaxParticipants || slices.ContainsFunc(p.Agents, func(id string) bool { return agent.CheckID(id) != nil }):
		return bad("the agents must be at most %d ids", DefaultMaxParticipants)
	case p.Directory != nil && (p.Directory.Path == "" || len(p.Directory.Path)+len(p.Directory.Host) > maxPath):
		return bad("the directory needs a path of at most %d bytes", maxPath)
	case p.MaxAttempts < 0:
		return bad("maxAttempts must not be negative")
	}
	known := make(map[string]bool, len(p.SubTasks))
	for i, t := range p.SubTasks {
		switch {
		case agent.CheckID(t.ID) != nil:
			return bad("sub-task %d needs an id without spaces", i+1)
		case known[t.ID]:
			return bad("two sub-tasks have the id %q", t.ID)
		case !isText(t.Description):
			return bad("sub-task %q needs a description of at most %d bytes", t.ID, MaxText)
		case !areCapabilities(t.RequiredCapabilities):
			return bad("the required capabilities of sub-task %q must be at most %d ids", t.ID, MaxCapabilities)
		case len(t.DependsOn) > MaxDependencies:
			return bad("sub-task %q depends on %d others, at most %d are allowed", t.ID, len(t.DependsOn), MaxDependencies)
		case len(t.Input) > 0 && !json.Valid(t.Input):
			return bad("the input of sub-task %q is not JSON", t.ID)
		}
		known[t.ID] = true
	}
	return p.checkDependencies()
}

// parts returns the sub-tasks as they begin.
func (p *Plan) parts() []SubTask {
	parts := make([]SubTask, len(p.SubTasks))
	for i, t := range p.SubTasks {
		parts[i] = SubTask{
			ID: t.ID, Description: t.Description, RequiredCapabilities: union(p.RequiredCapabilities, t.RequiredCapabilities),
			DependsOn: t.DependsOn, Input: t.Input, Status: TaskPending,
		}
	}
	return parts
}

// checkDependencies returns an error for sub-tasks that can never begin.
func (p *Plan) checkDependencies() error {
	var x state
	x.setParts(p.parts())
	var ready, circle []string
	for _, t := range p.SubTasks {
		for _, on := range t.DependsOn {
			if x.find(on) == nil {
				return errorf(CodeInvalid, "", "sub-task %q depends on %q, which does not exist", t.ID, on)
			}
		}
		if x.ready(t.ID) {
			ready = append(ready, t.ID)
		}
	}
	for len(ready) > 0 {
		id := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		for _, next := range x.needed[id] {
			if x.waits[next]--; x.ready(next) {
				ready = append(ready, next)
			}
		}
	}
	for id, n := range x.waits {
		if n > 0 {
			circle = append(circle, strconv.Quote(id))
		}
	}
	if len(circle) == 0 {
		return nil
	}
	slices.Sort(circle)
	if len(circle) > 5 {
		circle = append(circle[:5], "…")
	}
	return errorf(CodeInvalid, "", "these sub-tasks wait for each other: %s", strings.Join(circle, ", "))
}

func isText(s string) bool {
	return strings.TrimSpace(s) != "" && len(s) <= MaxText && utf8.ValidString(s)
}

func areCapabilities(ids []string) bool {
	return len(ids) <= MaxCapabilities && !slices.ContainsFunc(ids, func(id string) bool { return agent.CheckID(id) != nil })
}
