package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/negotiation"
)

// request is a decoded request or proposal.
type request struct {
	parts   []*a2a.Part
	stream  bool
	timeout time.Duration // 0 means the agent's limit
	chain   []string      // the delegation chain, by global ids
	key     key           // of another hub's turn; zero without one
}

// Bounds of a delegation chain.
const (
	maxChain   = 16
	maxChainID = 256
)

var errEmpty = errors.New("the payload asks for nothing: send a text, or an object with the field text")

// readRequest reads the payload of a request: a text, an object with the field text, or
// any other JSON value, which the agent receives as data.
func readRequest(payload json.RawMessage) (request, error) {
	trimmed := bytes.TrimSpace(payload)
	switch {
	case len(trimmed) == 0 || string(trimmed) == "null":
		return request{}, errEmpty
	case trimmed[0] == '"':
		var text string
		if err := json.Unmarshal(trimmed, &text); err != nil {
			return request{}, err
		}
		return textRequest(text)
	case trimmed[0] == '{':
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(trimmed, &fields); err != nil {
			return request{}, err
		}
		if _, ok := fields["text"]; ok {
			return readFields(trimmed)
		}
	}
	data, err := dataPart(trimmed)
	if err != nil {
		return request{}, err
	}
	return request{parts: []*a2a.Part{data}}, nil
}

func textRequest(text string) (request, error) {
	if strings.TrimSpace(text) == "" {
		return request{}, errEmpty
	}
	return request{parts: []*a2a.Part{a2a.NewTextPart(text)}}, nil
}

func readFields(payload []byte) (request, error) {
	var fields struct {
		Text      string          `json:"text"`
		Data      json.RawMessage `json:"data"`
		Stream    bool            `json:"stream"`
		TimeoutMs float64         `json:"timeoutMs"`
		Over      []string        `json:"over"`
		key
	}
	if err := json.Unmarshal(payload, &fields); err != nil {
		return request{}, err
	}
	const longest = 365 * 24 * time.Hour
	if fields.TimeoutMs < 0 || fields.TimeoutMs > float64(longest.Milliseconds()) {
		return request{}, errors.New("timeoutMs is not a time in milliseconds")
	}
	if len(fields.Over) > maxChain || slices.ContainsFunc(fields.Over, func(id string) bool { return id == "" || len(id) > maxChainID }) {
		return request{}, fmt.Errorf("over has more than %d agents, or an invalid id", maxChain)
	}
	if err := fields.key.check(); err != nil {
		return request{}, err
	}
	r, err := textRequest(fields.Text)
	if err != nil {
		return request{}, err
	}
	r.chain, r.key = fields.Over, fields.key
	if d := bytes.TrimSpace(fields.Data); len(d) > 0 && string(d) != "null" {
		part, err := dataPart(d)
		if err != nil {
			return request{}, err
		}
		r.parts = append(r.parts, part)
	}
	r.stream, r.timeout = fields.Stream, time.Duration(fields.TimeoutMs*float64(time.Millisecond))
	return r, nil
}

func dataPart(data []byte) (*a2a.Part, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber() // large numbers must not be rounded
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	return a2a.NewDataPart(v), nil
}

// offerRequest returns a proposal's request.
func offerRequest(o negotiation.Offer) (request, error) {
	r, err := textRequest(o.TaskDescription)
	if err != nil || len(o.Input) == 0 || string(o.Input) == "null" {
		return r, err
	}
	part, err := dataPart(o.Input)
	if err != nil {
		return request{}, err
	}
	r.parts = append(r.parts, part)
	return r, nil
}

// accepted is the payload of a task-accept.
type accepted struct {
	negotiation.Answer
	begun
}

// cancellation is the payload of a notification that cancels the thread's tasks.
type cancellation struct {
	Cancel bool `json:"cancel"`
	key         // of the turn; without one, all of the sender's tasks in the thread are canceled
}

// begun is the payload of a stream-start.
type begun struct {
	TaskID    string `json:"taskId"`
	ContextID string `json:"contextId"`
}

// Start is the payload of the stream-start of a request with a key.
type Start struct {
	begun
	Of    string `json:"of,omitempty"` // the id of the request's envelope; so in all payloads of the answer
	State string `json:"state,omitempty"`
	// Resumed is set for a request that was repeated: the text follows whole at the end of the turn.
	Resumed bool `json:"resumed,omitempty"`
}

// Chunk is the payload of a stream-data: a part of the answer, or the agent's current activity.
type Chunk struct {
	ArtifactID string   `json:"artifactId,omitempty"`
	Append     bool     `json:"append,omitempty"` // to the artifact; otherwise it replaces it
	Text       string   `json:"text,omitempty"`
	Data       any      `json:"data,omitempty"`
	File       string   `json:"file,omitempty"` // the name of a file that tasks/get returns
	Status     string   `json:"status,omitempty"`
	Of         string   `json:"of,omitempty"`
	State      string   `json:"state,omitempty"`   // of the task; only with Of
	Percent    *float64 `json:"percent,omitempty"` // with Status: how much is done, 0 to 100
	// Size is the size of File in bytes; only with Of. Then Bytes is the next part of its content, and the chunks up to
	// the last part have the same File. Without it the content stays at the hub.
	Size      *int   `json:"size,omitempty"`
	Bytes     []byte `json:"bytes,omitempty"`
	MediaType string `json:"mediaType,omitempty"`
}

// Result is the payload of a response, and of a stream-end.
type Result struct {
	State     string   `json:"state"` // completed, input-required or auth-required; in a stream-end any final state
	TaskID    string   `json:"taskId"`
	ContextID string   `json:"contextId"`
	Text      string   `json:"text"`                // the answer or the question; in a stream-end only the question
	Data      []any    `json:"data,omitempty"`      // such as a permission question with its options
	Truncated bool     `json:"truncated,omitempty"` // tasks/get and streams have the whole text
	Error     *Failure `json:"error,omitempty"`     // only in a stream-end
	Of        string   `json:"of,omitempty"`
	MessageID string   `json:"messageId,omitempty"` // of the answer; only with Of
}

// Failure is the payload of an error.
type Failure struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Remedy    string `json:"remedy,omitempty"`
	Cause     string `json:"cause,omitempty"` // the agent's own code
	State     string `json:"state,omitempty"` // of the task, if there is one
	TaskID    string `json:"taskId,omitempty"`
	ContextID string `json:"contextId,omitempty"`
	Of        string `json:"of,omitempty"`
}

// maxText bounds the text of one envelope in bytes; it stays below the size of an
// envelope even if every byte has to be escaped.
const maxText = 128 << 10

// resultOf returns a task's answer or question.
func resultOf(t *a2a.Task) Result {
	r := Result{State: stateName(t.Status.State), TaskID: string(t.ID), ContextID: t.ContextID}
	if m := t.Status.Message; m != nil {
		r.Text = textOf(m.Parts)
		for _, p := range m.Parts {
			if d, ok := p.Content.(a2a.Data); ok {
				r.Data = append(r.Data, d.Value)
			}
		}
	}
	if !fits(r.Data) {
		r.Data, r.Truncated = nil, true
	}
	if len(r.Text) > maxText {
		r.Text, r.Truncated = text.Cut(r.Text, maxText), true
	}
	return r
}

// fits reports whether data is small enough for an envelope.
func fits(data any) bool {
	encoded, err := json.Marshal(data)
	return err == nil && len(encoded) <= maxText
}

// failureOf returns the error of a task without an answer.
func failureOf(t *a2a.Task) *Failure {
	f := &Failure{
		Code: "TASK_" + upper(stateName(t.Status.State)), Message: "the task ended " + stateName(t.Status.State),
		State: stateName(t.Status.State), TaskID: string(t.ID), ContextID: t.ContextID,
	}
	m := t.Status.Message
	if m == nil {
		return f
	}
	if said := textOf(m.Parts); said != "" {
		f.Message = text.Cut(said, maxText)
	}
	if e, ok := m.Metadata[hub.MetaError].(map[string]any); ok {
		f.Cause, _ = e["code"].(string) // either may be missing
		f.Remedy, _ = e["remedy"].(string)
	}
	return f
}

// failureFrom returns the hub's error for a message.
func failureFrom(err error) *Failure {
	he, ok := errors.AsType[*hub.Error](err)
	if !ok {
		return &Failure{Code: "INTERNAL", Message: "the hub failed", Remedy: "see the hub's log"}
	}
	return &Failure{Code: upper(string(he.Code)), Message: he.Message, Remedy: he.Remedy}
}

// reasonFrom returns the hub's error as the reason of a rejection.
func reasonFrom(err error) negotiation.Reason {
	he, ok := errors.AsType[*hub.Error](err)
	if !ok {
		return "internal"
	}
	return negotiation.Reason(he.Code)
}

// upper converts a code of the hub to the form in envelopes: TASK_NOT_FOUND.
func upper(code string) string { return strings.ToUpper(strings.ReplaceAll(code, "-", "_")) }

// answers reports whether a task in this state has an answer or a question. Otherwise it has failed.
func answers(s a2a.TaskState) bool { return s == a2a.TaskStateCompleted || hub.Interrupted(s) }

// stateName returns a state's name in the specification: input-required.
func stateName(s a2a.TaskState) string {
	name := strings.ToLower(strings.TrimPrefix(string(s), "TASK_STATE_"))
	return strings.ReplaceAll(name, "_", "-")
}

func textOf(parts []*a2a.Part) string {
	var b strings.Builder
	for _, p := range parts {
		if t, ok := p.Content.(a2a.Text); ok && p.Filename == "" {
			b.WriteString(string(t))
		}
	}
	return b.String()
}
