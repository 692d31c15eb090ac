// Package swarmplan reads plans for swarms: from files that people write, and from
// the answers of agents that were asked to split a task.
package swarmplan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/parleyhub/parley/swarm"
)

// MaxFile bounds a plan, in bytes.
const MaxFile = 1 << 20

// maxNesting bounds brackets within each other: the YAML parser recurses.
const maxNesting = 64

// Read reads a plan in JSON or YAML. Unknown keys are errors. Whether the plan can
// be carried out is for the coordinator to say.
func Read(data []byte) (swarm.Plan, error) {
	if len(data) > MaxFile {
		return swarm.Plan{}, fmt.Errorf("the plan has %d bytes, at most %d are allowed", len(data), MaxFile)
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return swarm.Plan{}, errors.New("the plan is empty")
	}
	if nested(data) > maxNesting {
		return swarm.Plan{}, fmt.Errorf("the plan has more than %d brackets within each other", maxNesting)
	}
	if data[0] != '{' {
		converted, err := yaml.YAMLToJSON(data)
		if err != nil {
			return swarm.Plan{}, fmt.Errorf("the plan is neither JSON nor YAML: %w", err)
		}
		data = converted
	}
	return decode(data)
}

func decode(data []byte) (swarm.Plan, error) {
	var p swarm.Plan
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return swarm.Plan{}, fmt.Errorf("the plan cannot be read: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return swarm.Plan{}, errors.New("the plan goes on behind its end")
	}
	return p, nil
}

// nested is how deep brackets go; brackets in strings count too.
func nested(data []byte) int {
	depth, most := 0, 0
	for _, c := range data {
		switch c {
		case '[', '{':
			depth++
			most = max(most, depth)
		case ']', '}':
			depth--
		}
	}
	return most
}

// Worker is an agent that a planner may count on.
type Worker struct {
	ID           string
	Description  string
	Capabilities []string
}

// Prompt asks an agent to split a task among workers.
func Prompt(task string, workers []Worker) string {
	var b strings.Builder
	b.WriteString(`Split a task into sub-tasks that several agents can work on at the same time. Do not work on the task yourself.
Answer with one JSON object and nothing else:

{"subTasks": [{"id": "short-name", "description": "all that the agent must know", "requiredCapabilities": [], "dependsOn": []}]}

Each agent sees only the description of its own sub-task, the task as a whole, and the results of those that it depends on.
Use requiredCapabilities only where a sub-task needs an agent with that capability, and only ones of this list. Make 2 to
20 sub-tasks. If the results must be put together, add a last sub-task that depends on the others.

The agents:
`)
	for _, w := range workers {
		fmt.Fprintf(&b, "- %s", w.ID)
		if w.Description != "" {
			fmt.Fprintf(&b, ": %s", strings.Join(strings.Fields(w.Description), " "))
		}
		if len(w.Capabilities) > 0 {
			fmt.Fprintf(&b, " (capabilities: %s)", strings.Join(w.Capabilities, ", "))
		}
		b.WriteString("\n")
	}
	b.WriteString("\nThe task:\n")
	b.WriteString(task)
	return b.String()
}

// FromAnswer takes the sub-tasks of a plan out of what an agent answered, which may
// say something before and after. Whatever else the answer wants is not taken: who
// takes part and what for is the user's to say.
func FromAnswer(answer string) ([]swarm.SubTaskPlan, error) {
	if len(answer) > MaxFile {
		answer = answer[:MaxFile]
	}
	const most = 64 // places to look at
	for looked := 0; looked < most; looked++ {
		at := strings.IndexByte(answer, '{')
		if at < 0 {
			break
		}
		answer = answer[at:]
		var p struct {
			SubTasks []swarm.SubTaskPlan `json:"subTasks"`
		}
		dec := json.NewDecoder(strings.NewReader(answer))
		if err := dec.Decode(&p); err == nil && len(p.SubTasks) > 0 {
			return p.SubTasks, nil
		}
		answer = answer[1:]
	}
	return nil, errors.New("the planner's answer holds no JSON object with subTasks")
}
