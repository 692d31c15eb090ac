package hub

import (
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// publish records an event of the task. data is not called if there is no log.
func (t *task) publish(kind events.Kind, data func() map[string]any) {
	if t.hub.cfg.Events == nil {
		return
	}
	t.hub.cfg.Events.Publish(events.Event{Kind: kind, Agent: t.agentID, Task: string(t.id), Context: t.contextID, Project: t.project, Data: data()})
}

// stateData is the data of events without an error's code. Events share it: a task has at least three.
var stateData = sync.OnceValue(func() map[a2a.TaskState]map[string]any {
	all := map[a2a.TaskState]map[string]any{}
	for state, name := range stateNames {
		all[state] = map[string]any{"state": name}
	}
	return all
})

// publishState records a new state of the task, for a failure with the code of the error.
func (t *task) publishState(status a2a.TaskStatus) {
	if t.hub.cfg.Events == nil {
		return
	}
	data := stateData()[status.State]
	if status.Message != nil {
		if e, ok := status.Message.Metadata[MetaError].(map[string]any); ok {
			data = map[string]any{"state": StateName(status.State), "code": e["code"]}
		}
	}
	t.hub.cfg.Events.Publish(events.Event{
		Time: *status.Timestamp, Kind: events.TaskState, Agent: t.agentID, Task: string(t.id), Context: t.contextID, Project: t.project, Data: data,
	})
}

// publishTool records a new state of a tool call, whose title is redacted already. Its input and output are not part
// of events: they may be long, and hold secrets.
func (tn *turn) publishTool(call runner.ToolCall) {
	tn.task.publish(events.TurnTool, func() map[string]any {
		return map[string]any{"turn": tn.n, "id": call.ID, "tool": call.Name, "title": call.Title, "status": string(call.Status)}
	})
}

func (tn *turn) publishEnd(out runner.Outcome) {
	u, took := tn.usage, time.Since(tn.began)
	tn.task.hub.meters.turnEnded(tn.task.agentID, took, u)
	tn.task.publish(events.TurnEnded, func() map[string]any {
		return map[string]any{
			"turn": tn.n, "outcome": string(out.Status), "durationMs": took.Milliseconds(),
			"inputTokens": u.InputTokens, "outputTokens": u.OutputTokens, "costUsd": u.CostUSD,
		}
	})
}
