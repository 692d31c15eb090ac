package dialect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/hub"
)

var stateNames = map[a2a.TaskState]TaskState{
	a2a.TaskStateSubmitted:     StateSubmitted,
	a2a.TaskStateWorking:       StateWorking,
	a2a.TaskStateInputRequired: StateInputRequired,
	a2a.TaskStateCompleted:     StateCompleted,
	a2a.TaskStateCanceled:      StateCanceled,
	a2a.TaskStateFailed:        StateFailed,
	a2a.TaskStateRejected:      StateRejected,
	a2a.TaskStateAuthRequired:  StateAuthRequired,
}

// FromState translates a state; an unknown one becomes "unknown".
func FromState(s a2a.TaskState) TaskState {
	if name, ok := stateNames[s]; ok {
		return name
	}
	return StateUnknown
}

// hubState is the reverse of FromState; ok is false for any other state.
func hubState(name TaskState) (state a2a.TaskState, ok bool) {
	for state, n := range stateNames {
		if n == name {
			return state, true
		}
	}
	return "", false
}

// each returns the results of f for a list, never nil.
func each[A, B any](list []A, f func(A) B) []B {
	out := make([]B, 0, len(list))
	for _, a := range list {
		out = append(out, f(a))
	}
	return out
}

// FromTask translates a task with the last historyLength messages of its history, or all of them if that is nil.
func FromTask(t *a2a.Task, historyLength *int) Task {
	history := t.History
	if historyLength != nil && len(history) > *historyLength {
		history = history[len(history)-*historyLength:]
	}
	return Task{
		Kind:      KindTask,
		ID:        string(t.ID),
		ContextID: t.ContextID,
		Status:    fromStatus(t.Status),
		History:   each(history, FromMessage),
		Artifacts: each(t.Artifacts, fromArtifact),
		Metadata:  t.Metadata,
	}
}

func fromStatus(s a2a.TaskStatus) TaskStatus {
	status := TaskStatus{State: FromState(s.State)}
	if s.Timestamp != nil {
		status.Timestamp = Time{*s.Timestamp}
	}
	if s.Message != nil {
		m := FromMessage(s.Message)
		status.Message = &m
	}
	return status
}

// FromMessage translates a message.
func FromMessage(m *a2a.Message) Message {
	message := Message{
		Kind:       KindMessage,
		MessageID:  m.ID,
		Role:       RoleAgent,
		Parts:      each(m.Parts, fromPart),
		TaskID:     string(m.TaskID),
		ContextID:  m.ContextID,
		Metadata:   m.Metadata,
		Extensions: m.Extensions,
	}
	if m.Role == a2a.MessageRoleUser {
		message.Role = RoleUser
	}
	for _, id := range m.ReferenceTasks {
		message.ReferenceTaskIDs = append(message.ReferenceTaskIDs, string(id))
	}
	return message
}

func fromArtifact(a *a2a.Artifact) Artifact {
	return Artifact{
		ArtifactID:  string(a.ID),
		Name:        a.Name,
		Description: a.Description,
		Parts:       each(a.Parts, fromPart),
		Metadata:    a.Metadata,
		Extensions:  a.Extensions,
	}
}

func fromPart(p *a2a.Part) Part {
	var part Part
	switch content := p.Content.(type) {
	case a2a.Raw:
		part = FilePart(File{Name: p.Filename, MimeType: p.MediaType, Bytes: append([]byte{}, content...)})
	case a2a.URL:
		part = FilePart(File{Name: p.Filename, MimeType: p.MediaType, URI: string(content)})
	case a2a.Data:
		return fromData(content.Value, p.Metadata)
	default:
		part = TextPart(p.Text())
	}
	part.Metadata = p.Metadata
	return part
}

func fromData(value any, metadata map[string]any) Part {
	if m, ok := asObject(value); ok {
		part := DataPart(m)
		part.Metadata = metadata
		return part
	}
	part := DataPart(map[string]any{"value": value})
	part.Metadata = maps.Clone(metadata)
	if part.Metadata == nil {
		part.Metadata = map[string]any{}
	}
	part.Metadata[compatKey] = true
	return part
}

// asObject returns the JSON object that a map or a struct is on the wire. Data
// parts made in this process may hold structs.
func asObject(value any) (map[string]any, bool) {
	switch value := value.(type) {
	case map[string]any:
		return value, true
	case nil, string, bool, float64, []any:
		return nil, false
	}
	raw, err := rawjson.Append(nil, value)
	if err != nil {
		return nil, false
	}
	var m map[string]any
	err = json.Unmarshal(raw, &m)
	return m, err == nil && m != nil
}

// fromEvent translates an event of a subscription.
func fromEvent(event a2a.Event, historyLength *int) (Event, error) {
	switch e := event.(type) {
	case *a2a.Task:
		task := FromTask(e, historyLength)
		return Event{Task: &task}, nil
	case *a2a.TaskStatusUpdateEvent:
		status := fromStatus(e.Status)
		return Event{Status: &StatusUpdate{
			Kind:      KindStatusUpdate,
			TaskID:    string(e.TaskID),
			ContextID: e.ContextID,
			Status:    status,
			Final:     status.State.Final(),
			Metadata:  e.Metadata,
		}}, nil
	case *a2a.TaskArtifactUpdateEvent:
		return Event{Artifact: &ArtifactUpdate{
			Kind:      KindArtifactUpdate,
			TaskID:    string(e.TaskID),
			ContextID: e.ContextID,
			Artifact:  fromArtifact(e.Artifact),
			Append:    e.Append,
			LastChunk: e.LastChunk,
			Metadata:  e.Metadata,
		}}, nil
	default:
		return Event{}, fmt.Errorf("the hub sent an event of type %T", event)
	}
}

func fromHealth(h hub.Health) Health {
	health := Health{
		Status:       string(h.Status),
		LastCheck:    Time{h.LastCheck},
		ErrorMessage: h.Message,
		Stage:        string(h.Stage),
		Version:      h.Version,
		Circuit:      h.Circuit,
	}
	if !h.LastCheck.IsZero() {
		ms := h.Latency.Milliseconds()
		health.LatencyMs = &ms
	}
	return health
}

func fromContext(c hub.ContextInfo) Context {
	return Context{
		ID:         c.ID,
		AgentIDs:   append([]string{}, c.AgentIDs...),
		TaskIDs:    each(c.TaskIDs, func(id a2a.TaskID) string { return string(id) }),
		CreatedAt:  Time{c.CreatedAt},
		LastUsedAt: Time{c.LastUsedAt},
		ExpiresAt:  Time{c.ExpiresAt},
		WorkDirs:   c.WorkDirs,
	}
}

func fromStatusInfo(s hub.Status, now time.Time) Status {
	status := Status{
		Version:     s.Version,
		Uptime:      max(0, now.Sub(s.StartedAt).Milliseconds()),
		StartedAt:   Time{s.StartedAt},
		Agents:      each(s.Agents, agentStatus),
		ActiveTasks: s.ActiveTasks,
		TotalTasks:  s.TotalTasks,
		AgentCounts: AgentCounts{Total: len(s.Agents)},
	}
	for _, a := range s.Agents {
		switch a.Health.Status {
		case hub.Healthy:
			status.Healthy++
		case hub.Degraded:
			status.Degraded++
		case hub.Unhealthy:
			status.Unhealthy++
		default:
			status.Unknown++
		}
	}
	return status
}

func agentStatus(a hub.AgentInfo) AgentStatus {
	return AgentStatus{
		ID: a.Definition.ID, Name: displayName(a), Status: string(a.Health.Status), Running: a.Running, Queued: a.Queued,
	}
}

func displayName(a hub.AgentInfo) string { return cmp.Or(a.Definition.Name, a.Definition.ID) }
