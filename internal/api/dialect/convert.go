package dialect

import (
	"fmt"
	"maps"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

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

// FromState translates a state; one that is not known is "unknown".
func FromState(s a2a.TaskState) TaskState {
	if name, ok := stateNames[s]; ok {
		return name
	}
	return StateUnknown
}

// hubState is the reverse of FromState; ok is false for what no task can have.
func hubState(name TaskState) (state a2a.TaskState, ok bool) {
	for state, n := range stateNames {
		if n == name {
			return state, true
		}
	}
	return "", false
}

// FromTask translates a task with the last historyLength messages of its
// history, all where that is nil.
func FromTask(t *a2a.Task, historyLength *int) Task {
	history := t.History
	if historyLength != nil && len(history) > *historyLength {
		history = history[len(history)-*historyLength:]
	}
	task := Task{
		Kind:      KindTask,
		ID:        string(t.ID),
		ContextID: t.ContextID,
		Status:    fromStatus(t.Status),
		History:   make([]Message, 0, len(history)),
		Artifacts: make([]Artifact, 0, len(t.Artifacts)),
		Metadata:  t.Metadata,
	}
	for _, m := range history {
		task.History = append(task.History, FromMessage(m))
	}
	for _, a := range t.Artifacts {
		task.Artifacts = append(task.Artifacts, fromArtifact(a))
	}
	return task
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
		Parts:      fromParts(m.Parts),
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
		Parts:       fromParts(a.Parts),
		Metadata:    a.Metadata,
		Extensions:  a.Extensions,
	}
}

func fromParts(parts a2a.ContentParts) []Part {
	out := make([]Part, 0, len(parts))
	for _, p := range parts {
		out = append(out, fromPart(p))
	}
	return out
}

func fromPart(p *a2a.Part) Part {
	var part Part
	switch content := p.Content.(type) {
	case a2a.Raw:
		part = FilePart(File{Name: p.Filename, MimeType: p.MediaType, Bytes: notNil(content)})
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
	if m, ok := value.(map[string]any); ok {
		part := DataPart(m)
		part.Metadata = metadata
		return part
	}
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

// asObject turns a struct, which a data part made in this process may hold,
// into the object that it is on the wire.
func asObject(value any) (map[string]any, bool) {
	switch value.(type) {
	case nil, string, bool, float64, []any:
		return nil, false
	}
	raw, err := marshal(value)
	if err != nil {
		return nil, false
	}
	var m map[string]any
	if unmarshal(raw, &m) != nil || m == nil {
		return nil, false
	}
	return m, true
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
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
	context := Context{
		ID:         c.ID,
		AgentIDs:   append([]string{}, c.AgentIDs...),
		TaskIDs:    make([]string, 0, len(c.TaskIDs)),
		CreatedAt:  Time{c.CreatedAt},
		LastUsedAt: Time{c.LastUsedAt},
		ExpiresAt:  Time{c.ExpiresAt},
	}
	for _, id := range c.TaskIDs {
		context.TaskIDs = append(context.TaskIDs, string(id))
	}
	return context
}

func fromStatusInfo(s hub.Status, now time.Time) Status {
	status := Status{
		Version:     s.Version,
		Uptime:      max(0, now.Sub(s.StartedAt).Milliseconds()),
		StartedAt:   Time{s.StartedAt},
		Agents:      make([]AgentStatus, 0, len(s.Agents)),
		ActiveTasks: s.ActiveTasks,
		TotalTasks:  s.TotalTasks,
		Total:       len(s.Agents),
	}
	for _, a := range s.Agents {
		status.Agents = append(status.Agents, AgentStatus{
			ID:      a.Definition.ID,
			Name:    displayName(a),
			Status:  string(a.Health.Status),
			Running: a.Running,
			Queued:  a.Queued,
		})
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

func displayName(a hub.AgentInfo) string {
	if a.Definition.Name != "" {
		return a.Definition.Name
	}
	return a.Definition.ID
}
