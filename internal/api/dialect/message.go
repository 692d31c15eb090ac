package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// Time is a time that is written as the specification has it: in UTC with
// milliseconds, such as "2025-01-01T00:00:00.000Z". The zero Time is null.
type Time struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05.000Z"

// MarshalJSON implements [json.Marshaler].
func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return t.UTC().AppendFormat(nil, `"`+timeLayout+`"`), nil
}

// TaskState is a state of the specification.
type TaskState string

// The states of a task.
const (
	StateSubmitted     TaskState = "submitted"
	StateWorking       TaskState = "working"
	StateInputRequired TaskState = "input-required"
	StateCompleted     TaskState = "completed"
	StateCanceled      TaskState = "canceled"
	StateFailed        TaskState = "failed"
	StateRejected      TaskState = "rejected"
	StateAuthRequired  TaskState = "auth-required"
	StateUnknown       TaskState = "unknown"
)

// Ended reports whether the state is final: the task never changes again.
func (s TaskState) Ended() bool {
	switch s {
	case StateCompleted, StateCanceled, StateFailed, StateRejected:
		return true
	}
	return false
}

// Final reports whether a stream ends with this state: the task has ended, or waits for its user.
func (s TaskState) Final() bool {
	return s.Ended() || s == StateInputRequired || s == StateAuthRequired
}

// Roles of a message.
const (
	RoleUser  = "user"
	RoleAgent = "agent"
)

// Values of the member kind.
const (
	KindMessage        = "message"
	KindTask           = "task"
	KindStatusUpdate   = "status-update"
	KindArtifactUpdate = "artifact-update"
	KindText           = "text"
	KindFile           = "file"
	KindData           = "data"
)

// Message is one message of a conversation.
type Message struct {
	Kind             string         `json:"kind"`
	MessageID        string         `json:"messageId"`
	Role             string         `json:"role"`
	Parts            []Part         `json:"parts"`
	TaskID           string         `json:"taskId,omitempty"`
	ContextID        string         `json:"contextId,omitempty"`
	Metadata         map[string]any `json:"metadata,omitempty"`
	ReferenceTaskIDs []string       `json:"referenceTaskIds,omitempty"`
	Extensions       []string       `json:"extensions,omitempty"`
}

// Text returns the text of the message's text parts.
func (m *Message) Text() string {
	if m == nil {
		return ""
	}
	return textOf(m.Parts)
}

// Part is a part of a message or artifact: Kind says which one of Text, File and Data is set.
type Part struct {
	Kind     string         `json:"kind"`
	Text     *string        `json:"text,omitempty"`
	File     *File          `json:"file,omitempty"`
	Data     map[string]any `json:"data,omitzero"`
	Metadata map[string]any `json:"metadata,omitempty"`
}

// TextPart returns a part with text.
func TextPart(text string) Part { return Part{Kind: KindText, Text: &text} }

// DataPart returns a part with structured data.
func DataPart(data map[string]any) Part {
	if data == nil {
		data = map[string]any{}
	}
	return Part{Kind: KindData, Data: data}
}

// FilePart returns a part with a file.
func FilePart(file File) Part { return Part{Kind: KindFile, File: &file} }

// File is a file by content or by address: exactly one of Bytes (base64 on the wire, not nil) and URI is set.
type File struct {
	Name     string `json:"name"`
	MimeType string `json:"mimeType"`
	Bytes    []byte `json:"bytes,omitzero"`
	URI      string `json:"uri,omitempty"`
}

// Task is a task of an agent.
type Task struct {
	Kind      string         `json:"kind"`
	ID        string         `json:"id"`
	ContextID string         `json:"contextId"`
	Status    TaskStatus     `json:"status"`
	History   []Message      `json:"history"`
	Artifacts []Artifact     `json:"artifacts"`
	Metadata  map[string]any `json:"metadata,omitempty"`
}

// Text returns the agent's answer: the status message's text, or else the artifacts'.
func (t *Task) Text() string {
	if text := t.Status.Message.Text(); text != "" {
		return text
	}
	var texts []string
	for _, a := range t.Artifacts {
		if text := textOf(a.Parts); text != "" {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "\n")
}

func textOf(parts []Part) string {
	var b strings.Builder
	for _, p := range parts {
		if p.Text != nil {
			b.WriteString(*p.Text)
		}
	}
	return b.String()
}

// TaskStatus is the state of a task and the time of the last change.
type TaskStatus struct {
	State     TaskState `json:"state"`
	Message   *Message  `json:"message,omitempty"`
	Timestamp Time      `json:"timestamp"`
}

// Artifact is a result of a task.
type Artifact struct {
	ArtifactID  string         `json:"artifactId"`
	Name        string         `json:"name"`
	Description string         `json:"description,omitempty"`
	Parts       []Part         `json:"parts"`
	Metadata    map[string]any `json:"metadata,omitempty"`
	Extensions  []string       `json:"extensions,omitempty"`
}

// StatusUpdate is the event of a changed status. Final is set on the last event of a stream.
type StatusUpdate struct {
	Kind      string         `json:"kind"`
	TaskID    string         `json:"taskId"`
	ContextID string         `json:"contextId"`
	Status    TaskStatus     `json:"status"`
	Final     bool           `json:"final"`
	Metadata  map[string]any `json:"metadata,omitempty"`
}

// ArtifactUpdate is the event of a new or longer artifact. With Append, the parts
// extend the earlier artifact with the same id.
type ArtifactUpdate struct {
	Kind      string         `json:"kind"`
	TaskID    string         `json:"taskId"`
	ContextID string         `json:"contextId"`
	Artifact  Artifact       `json:"artifact"`
	Append    bool           `json:"append"`
	LastChunk bool           `json:"lastChunk"`
	Metadata  map[string]any `json:"metadata,omitempty"`
}

// Event is one event of a stream as a client reads it: exactly one of the
// fields is set. A Task in the middle of a stream replaces all earlier events:
// the client had fallen behind.
type Event struct {
	Task     *Task
	Status   *StatusUpdate
	Artifact *ArtifactUpdate
}

// UnmarshalJSON sets the field that the event's kind names.
func (e *Event) UnmarshalJSON(data []byte) error {
	var probe struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(data, &probe); err != nil {
		return err
	}
	*e = Event{}
	switch probe.Kind {
	case KindTask:
		return json.Unmarshal(data, &e.Task)
	case KindStatusUpdate:
		return json.Unmarshal(data, &e.Status)
	case KindArtifactUpdate:
		return json.Unmarshal(data, &e.Artifact)
	default:
		return fmt.Errorf("an event of the unknown kind %.40q", probe.Kind)
	}
}

// MarshalJSON writes the field that is set.
func (e Event) MarshalJSON() ([]byte, error) {
	p := e.payload()
	if p == nil {
		return nil, errors.New("an empty event")
	}
	return rawjson.Append(nil, p)
}

func (e Event) payload() any {
	switch {
	case e.Task != nil:
		return e.Task
	case e.Status != nil:
		return e.Status
	case e.Artifact != nil:
		return e.Artifact
	default:
		return nil
	}
}
