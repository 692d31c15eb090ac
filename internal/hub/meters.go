package hub

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// durationBounds are the upper bounds of the classes of a turn's duration, in seconds.
var durationBounds = [...]float64{0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600}

// Meter counts what an agent has done since the hub's start.
type Meter struct {
	Agent string
	// Tasks are the ended tasks by outcome: completed, failed, canceled, rejected.
	Tasks map[string]uint64
	// Turns is the number of ended turns, Seconds their durations together, and Classes how many of them took at most
	// so many seconds.
	Turns   uint64
	Seconds float64
	Classes map[float64]uint64
	Usage   runner.Usage
}

// maxMeters bounds the agents with a meter of their own; others share that of otherAgents.
const (
	maxMeters   = 1000
	otherAgents = "other"
)

// meters are the meters by agent. Their zero value is ready; they are safe for concurrent use.
type meters struct {
	mu      sync.Mutex
	byAgent map[string]*meter
}

type meter struct {
	tasks   map[a2a.TaskState]uint64
	turns   uint64
	seconds float64
	classes [len(durationBounds)]uint64 // each without those below it
	usage   runner.Usage
}

// of returns the meter of an agent. mu is held.
func (m *meters) of(agent string) *meter {
	x := m.byAgent[agent]
	if x != nil {
		return x
	}
	if len(m.byAgent) >= maxMeters && agent != otherAgents {
		return m.of(otherAgents)
	}
	if m.byAgent == nil {
		m.byAgent = map[string]*meter{}
	}
	x = &meter{tasks: map[a2a.TaskState]uint64{}}
	m.byAgent[agent] = x
	return x
}

func (m *meters) taskEnded(agent string, state a2a.TaskState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(agent).tasks[state]++
}

func (m *meters) turnEnded(agent string, took time.Duration, u runner.Usage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.of(agent)
	x.turns++
	x.seconds += took.Seconds()
	if i, _ := slices.BinarySearch(durationBounds[:], took.Seconds()); i < len(x.classes) {
		x.classes[i]++
	}
	x.usage = x.usage.Plus(u)
}

// Meters returns the meters of all agents that have done something since the hub's start, sorted by agent.
func (h *Hub) Meters() []Meter {
	h.meters.mu.Lock()
	defer h.meters.mu.Unlock()
	all := make([]Meter, 0, len(h.meters.byAgent))
	for id, x := range h.meters.byAgent {
		one := Meter{Agent: id, Tasks: map[string]uint64{}, Turns: x.turns, Seconds: x.seconds, Classes: map[float64]uint64{}, Usage: x.usage}
		for state, n := range x.tasks {
			one.Tasks[StateName(state)] = n
		}
		atMost := uint64(0)
		for i, n := range x.classes {
			atMost += n
			one.Classes[durationBounds[i]] = atMost
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Meter) int { return cmp.Compare(a.Agent, b.Agent) })
	return all
}
