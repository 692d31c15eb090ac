package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/text"
)

// request is the payload of a request of the hub, and of the notification that cancels it.
type request struct {
	Text      string          `json:"text"`
	Data      json.RawMessage `json:"data"`
	From      string          `json:"from"`
	Over      []string        `json:"over"`
	TimeoutMs float64         `json:"timeoutMs"`
	Key       string          `json:"key"`
	Turn      int             `json:"turn"`
	Cancel    bool            `json:"cancel"`
}

// Bounds of a request.
const (
	maxKey  = 128
	maxTime = 365 * 24 * time.Hour
)

func readRequest(e *envelope.Envelope) (q request, err error) {
	if err := json.Unmarshal(e.Payload, &q); err != nil {
		return q, err
	}
	if q.Key == "" || len(q.Key) > maxKey || q.Turn < 1 {
		return q, errors.New("it names no turn of a task")
	}
	if q.TimeoutMs < 0 || q.TimeoutMs > float64(maxTime.Milliseconds()) {
		return q, errors.New("timeoutMs is not a time in milliseconds")
	}
	if strings.TrimSpace(q.Text) == "" && !q.Cancel {
		return q, errors.New("it asks for nothing")
	}
	if string(q.Data) == "null" {
		q.Data = nil
	}
	return q, nil
}

// task returns the task of a request.
func (q request) task(e *envelope.Envelope, of *run) *Task {
	t := &Task{ID: q.Key, Turn: q.Turn, Context: e.Thread(), Text: q.Text, Data: q.Data, From: q.From, Chain: q.Over, run: of}
	if q.TimeoutMs > 0 {
		t.Deadline = time.Now().Add(time.Duration(q.TimeoutMs * float64(time.Millisecond)))
	}
	return t
}

// start is the payload of a stream-start.
type start struct {
	TaskID    string `json:"taskId"`
	ContextID string `json:"contextId"`
	Of        string `json:"of"`
	State     string `json:"state"`
	Resumed   bool   `json:"resumed,omitempty"`
}

// chunk is the payload of a stream-data.
type chunk struct {
	ArtifactID string          `json:"artifactId,omitempty"`
	Append     bool            `json:"append,omitempty"`
	Text       string          `json:"text,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"`
	Status     string          `json:"status,omitempty"`
	Percent    *float64        `json:"percent,omitempty"`
	State      string          `json:"state,omitempty"`
	Of         string          `json:"of"`
	File       string          `json:"file,omitempty"`
	Size       *int            `json:"size,omitempty"`
	Bytes      []byte          `json:"bytes,omitempty"`
	MediaType  string          `json:"mediaType,omitempty"`
}

// end is the payload of a stream-end.
type end struct {
	State     string   `json:"state"`
	TaskID    string   `json:"taskId"`
	ContextID string   `json:"contextId"`
	Text      string   `json:"text"` // the question
	Of        string   `json:"of"`
	MessageID string   `json:"messageId,omitempty"`
	Error     *failure `json:"error,omitempty"`
}

// failure is the payload of an error, and of a stream-end without an answer.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	State   string `json:"state,omitempty"`
	TaskID  string `json:"taskId,omitempty"`
	Of      string `json:"of,omitempty"`
}

// The sizes of pieces, in bytes.
const (
	maxText    = 128 << 10
	filePart   = 256 << 10
	maxMessage = 16 << 10 // of a question, a refusal or a failure
	maxStatus  = 4096
	maxName    = 1024
)

// stream answers one request.
type stream struct {
	s   *Server
	run *run
	e   *envelope.Envelope
}

func (x stream) start(ctx context.Context, state string, resumed bool) bool {
	return x.s.reply(ctx, x.e, envelope.StreamStart, start{TaskID: x.run.key.task, ContextID: x.e.Thread(), Of: x.e.ID, State: state, Resumed: resumed})
}

func (x stream) data(ctx context.Context, c chunk) bool {
	c.Of = x.e.ID
	return x.s.reply(ctx, x.e, envelope.StreamData, c)
}

// end sends the answer.
func (x stream) end(ctx context.Context, r *result) {
	last := end{State: string(r.outcome), TaskID: x.run.key.task, ContextID: x.e.Thread(), Of: x.e.ID, MessageID: r.id}
	switch r.outcome {
	case InputRequired:
		last.Text = text.Cut(r.text, maxMessage)
	case Completed:
		if !x.text(ctx, r.text) {
			return
		}
	default:
		last.Error = &failure{Code: "TASK_" + strings.ToUpper(string(r.outcome)), Message: text.Valid(r.text, maxMessage), State: string(r.outcome), TaskID: x.run.key.task}
	}
	if last.Error != nil || x.rest(ctx, r) {
		x.s.reply(ctx, x.e, envelope.StreamEnd, last)
	}
}

// text sends the answer's text in pieces.
func (x stream) text(ctx context.Context, rest string) bool {
	c := chunk{ArtifactID: "answer"}
	for rest != "" {
		c.Text = text.Cut(rest, maxText)
		rest = rest[len(c.Text):]
		if !x.data(ctx, c) {
			return false
		}
		c.Append = true
	}
	return true
}

// rest sends the answer's data and files.
func (x stream) rest(ctx context.Context, r *result) bool {
	if r.data != nil && !x.data(ctx, chunk{ArtifactID: "data", Data: r.data}) {
		return false
	}
	for i, f := range r.files {
		if !x.file(ctx, fmt.Sprintf("file-%d", i+1), f) {
			return false
		}
	}
	return true
}

func (x stream) file(ctx context.Context, id string, f File) bool {
	size := len(f.Content)
	c := chunk{ArtifactID: id, File: text.Valid(f.Name, maxName), Size: &size, MediaType: text.Valid(f.MediaType, maxName)}
	if c.File == "" {
		c.File = id
	}
	for first, rest := true, f.Content; first || len(rest) > 0; first = false {
		c.Bytes = rest[:min(len(rest), filePart)]
		rest = rest[len(c.Bytes):]
		if !x.data(ctx, c) {
			return false
		}
	}
	return true
}
