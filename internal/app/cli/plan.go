package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/swarm"
)

// maxPlan bounds a plan, in bytes.
const maxPlan = 1 << 20

// readPlan decodes the plan of a swarm from JSON or YAML. Unknown keys are errors. The
// coordinator checks whether the plan can be run.
func readPlan(data []byte) (p swarm.Plan, err error) {
	if len(data) > maxPlan {
		return p, fmt.Errorf("the plan has %d bytes, at most %d are allowed", len(data), maxPlan)
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return p, errors.New("the plan is empty")
	}
	if config.TooDeep(data) {
		return p, fmt.Errorf("the plan has more than %d nested brackets", config.MaxDepth)
	}
	if data[0] != '{' {
		if data, err = yaml.YAMLToJSON(data); err != nil {
			return p, fmt.Errorf("the plan is neither JSON nor YAML: %w", err)
		}
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return swarm.Plan{}, fmt.Errorf("the plan cannot be read: %w", err)
	}
	if !ended(dec) {
		return swarm.Plan{}, errors.New("unexpected text after the plan")
	}
	return p, nil
}

// plannerPrompt returns the prompt that asks an agent to split a task among workers.
func plannerPrompt(task string, workers []dialect.Agent) string {
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
			fmt.Fprintf(&b, ": %s", text.OneLine(w.Description))
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

// subTasksIn returns the sub-tasks of the first JSON object with subTasks in a planner's answer, which may have text
// around it. It ignores the object's other fields: the user chooses the participants.
func subTasksIn(answer string) ([]swarm.SubTaskPlan, error) {
	answer = answer[:min(len(answer), maxPlan)]
	for range 64 { // objects that are tried
		at := strings.IndexByte(answer, '{')
		if at < 0 {
			break
		}
		answer = answer[at:]
		var p struct {
			SubTasks []swarm.SubTaskPlan `json:"subTasks"`
		}
		if err := json.NewDecoder(strings.NewReader(answer)).Decode(&p); err == nil && len(p.SubTasks) > 0 {
			return p.SubTasks, nil
		}
		answer = answer[1:]
	}
	return nil, errors.New("the planner's answer contains no JSON object with subTasks")
}
