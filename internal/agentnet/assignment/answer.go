package assignment

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// Outcome is what an answer makes of a task.
type Outcome string

// The outcomes.
const (
	Completed     Outcome = "completed"
	InputRequired Outcome = "input-required" // the answer is a question
	Failed        Outcome = "failed"
	Rejected      Outcome = "rejected"
)

// Outcomes lists them.
var Outcomes = []Outcome{Completed, InputRequired, Failed, Rejected}

// The limits of an answer.
const (
	MaxText     = mail.MaxMail // in bytes
	MaxFiles    = 20
	maxProgress = 2000 // bytes of a progress text
	maxName     = 255  // bytes of a file's name
	// requestTime bounds one attempt to reach the hub.
	requestTime = 10 * time.Second
)

// Answer is a session's answer to a task.
type Answer struct {
	ID      string         `json:"id"` // a UUID: the same at every attempt
	TaskID  string         `json:"taskId"`
	Outcome Outcome        `json:"outcome"`
	Text    string         `json:"text"`
	Data    map[string]any `json:"data,omitempty"`
	Files   []File         `json:"files,omitempty"`
}

// File is a file of an answer. Its content is Text, or Base64 if it is not text.
type File struct {
	Name      string `json:"name" jsonschema:"The file's name, without a path"`
	MediaType string `json:"mediaType,omitempty" jsonschema:"For example text/x-diff"`
	Text      string `json:"text,omitempty" jsonschema:"The content of a text file"`
	Base64    string `json:"base64,omitempty" jsonschema:"The content of any other file, in base64"`
}

// Content returns the file's content. The file was checked.
func (f File) Content() []byte {
	if f.Base64 == "" {
		return []byte(f.Text)
	}
	data, _ := base64.StdEncoding.DecodeString(f.Base64) // Check has decoded it
	return data
}

// Progress is what a session says about its work on a task.
type Progress struct {
	TaskID  string   `json:"taskId" jsonschema:"The task's id, from the message that gave it to you"`
	Text    string   `json:"message" jsonschema:"What you are doing, in one line; up to 2000 bytes"`
	Percent *float64 `json:"percent,omitempty" jsonschema:"How much is done, 0 to 100"`
}

// Check returns a ValidationError if the answer is invalid.
func (a Answer) Check() error {
	switch {
	case mail.IsTaskID(a.TaskID) != "":
		return store.Invalid("The taskId %s.", mail.IsTaskID(a.TaskID)).WithRemedy("Use the taskId of the message that gave you the task.")
	case !slices.Contains(Outcomes, a.Outcome):
		return store.Invalid("There is no outcome %s.", store.Quote(string(a.Outcome))).WithRemedy("Use completed, input-required, failed or rejected.")
	case a.Text == "" && len(a.Files) == 0 && len(a.Data) == 0:
		return store.Invalid("The answer is empty.").WithRemedy("Give it a text.")
	case a.Text == "" && a.Outcome != Completed:
		return store.Invalid("The answer says no reason.").WithRemedy("Ask your question, or say why the task is not done, in the text.")
	case !utf8.ValidString(a.Text):
		return store.Invalid("The text is not valid UTF-8.").WithRemedy("Send binary data as a file, in base64.")
	case len(a.Text) > MaxText:
		return store.Invalid("The text is %d bytes long; at most %d are allowed.", len(a.Text), MaxText).
			WithRemedy("Write the long part to a file and name its path in the answer.")
	case len(a.Files) > MaxFiles:
		return store.Invalid("The answer has %d files; at most %d are allowed.", len(a.Files), MaxFiles).WithRemedy("Put them into an archive.")
	}
	for _, f := range a.Files {
		if err := f.check(); err != nil {
			return err
		}
	}
	return nil
}

func (f File) check() error {
	switch {
	case f.Name == "" || len(f.Name) > maxName || !utf8.ValidString(f.Name) || strings.ContainsAny(f.Name, "/\\\r\n\t") || display.Plain(f.Name) != f.Name:
		return store.Invalid("The file's name %s is not allowed.", store.Quote(f.Name)).
			WithRemedy("Use a name of up to %d bytes, without a path and without control characters.", maxName)
	case f.Text != "" && f.Base64 != "":
		return store.Invalid("The file %s has two contents.", store.Quote(f.Name)).WithRemedy("Give either text or base64.")
	case !utf8.ValidString(f.Text):
		return store.Invalid("The file %s is not text.", store.Quote(f.Name)).WithRemedy("Give it in base64.")
	}
	if _, err := base64.StdEncoding.DecodeString(f.Base64); err != nil {
		return store.Invalid("The content of %s is not base64: %v.", store.Quote(f.Name), err).WithRemedy("Use standard base64 with padding.")
	}
	return nil
}

// Check returns a ValidationError if the progress is invalid.
func (p Progress) Check() error {
	switch {
	case mail.IsTaskID(p.TaskID) != "":
		return store.Invalid("The taskId %s.", mail.IsTaskID(p.TaskID)).WithRemedy("Use the taskId of the message that gave you the task.")
	case p.Text == "" || len(p.Text) > maxProgress || !utf8.ValidString(p.Text):
		return store.Invalid("The message is not text of 1 to %d bytes.", maxProgress).WithRemedy("Say in one line what you are doing.")
	case p.Percent != nil && (*p.Percent < 0 || *p.Percent > 100):
		return store.Invalid("%v percent are not possible.", *p.Percent).WithRemedy("Use a number from 0 to 100.")
	}
	return nil
}

// decodeAnswer decodes and checks a session's request: it may be of any program.
func decodeAnswer(data []byte) (a Answer, err error) {
	if err := json.Unmarshal(data, &a); err != nil {
		return a, store.Invalid("The answer is not JSON of the right shape.").WithRemedy("Use answer_task.")
	}
	if a.ID == "" || len(a.ID) > 64 {
		return a, store.Invalid("The answer has no id.").WithRemedy("Use answer_task.")
	}
	return a, a.Check()
}

func decodeProgress(data []byte) (p Progress, err error) {
	if err := json.Unmarshal(data, &p); err != nil {
		return p, store.Invalid("The progress is not JSON of the right shape.").WithRemedy("Use report_progress.")
	}
	return p, p.Check()
}

// reply is the hub's answer to a request of a session.
type reply struct {
	Error *failure `json:"error,omitempty"`
}

type failure struct {
	Code    store.Code `json:"code"`
	Message string     `json:"message"`
	Remedy  string     `json:"remedy"`
}

func newReply(err error) reply {
	if err == nil {
		return reply{}
	}
	e, ok := errors.AsType[*store.Error](err)
	if !ok {
		e = &store.Error{Code: store.InternalError, Message: "The hub could not store this.", Remedy: "Try again."}
	}
	return reply{&failure{e.Code, e.Message, e.Remedy}}
}

// Send brings a session's answer to its hub, and returns once it is stored there. It tries again until ctx ends: a hub
// that has it already stores it once.
func (a Answer) Send(ctx context.Context, b *bus.Bus, guid string) error {
	return request(ctx, b, store.TaskSubject+guid+answerSubject, a)
}

// Send shows progress to whoever waits for the task.
func (p Progress) Send(ctx context.Context, b *bus.Bus, guid string) error {
	return request(ctx, b, store.TaskSubject+guid+progressSubject, p)
}

func request(ctx context.Context, b *bus.Bus, subject string, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return store.Invalid("The data is not JSON: %v.", err).WithRemedy("Use an object.")
	}
	if most := store.MaxPayload(b); int64(len(data)) > most {
		return store.Invalid("The answer is %d bytes long; the hub accepts %d.", len(data), most).
			WithRemedy("Write the long part to a file and name its path in the answer.")
	}
	retry := wait.Backoff{First: 100 * time.Millisecond, Most: 2 * time.Second}
	for {
		answer, err := requestOnce(ctx, b, subject, data)
		if err == nil {
			return answer.err()
		}
		if !retry.Pause(ctx) {
			return unanswered(err)
		}
	}
}

func requestOnce(ctx context.Context, b *bus.Bus, subject string, data []byte) (r reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	m, err := b.Conn().RequestMsgWithContext(ctx, &nats.Msg{Subject: subject, Data: data})
	if err != nil {
		return reply{}, err
	}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return reply{}, fmt.Errorf("the hub's answer: %w", err)
	}
	return r, nil
}

func (r reply) err() error {
	if r.Error == nil {
		return nil
	}
	return &store.Error{Code: r.Error.Code, Message: r.Error.Message, Remedy: r.Error.Remedy}
}

func unanswered(err error) error {
	return &store.Error{Code: store.ConnectionError, Message: "The hub has not confirmed that it has this; it may have it.",
		Remedy: "Call the tool again in a moment: what the hub has already is not stored twice.", Err: err}
}
