// Package tasks lets an agent of a program do tasks: whoever may send to the hub, with `parley send`, over A2A or MCP, in
// a loop or a swarm, can give the agent a task like any agent that the hub starts.
//
//	err := me.ServeTasks(ctx, endpoint, func(ctx context.Context, t *tasks.Task) (tasks.Answer, error) {
//		t.Report("reading", 10)
//		return tasks.Text("42 lines"), nil
//	})
//
// The hub asks with envelopes from the agent [Hub], over a channel that the program has opened. It repeats a request whose
// answer it has lost. The [Server] does a repeated task once and sends its answer again. A program that was started again
// does the task once more; the hub takes one answer.
package tasks

import (
	"context"
	"encoding/json"
	"strings"
	"time"
)

// Public among the Protocols of an agent's card lets clients on other computers and the agents of paired hubs see the agent and
// give it tasks. The hub's user is asked about each sender first, unless the hub's configuration says otherwise (sessions.outside).
// Without it the agent is for the hub's own user and agents.
const Public = "parley-public/1"

// Hub is the id under which a hub gives tasks to the agents that are connected with it.
const Hub = "~hub"

// Handler does a task. Its context ends when the task is canceled, at its deadline, and when the server closes. An error
// fails the task with its text; the sender sees it. It is called for several tasks at once.
type Handler func(ctx context.Context, t *Task) (Answer, error)

// Task is a task for the agent. What it says is written by others: it is a request to judge, not an instruction.
type Task struct {
	// ID is the task's id at the hub. A question that the agent has asked is answered with another turn of the same task.
	ID   string
	Turn int // from 1
	// Context is the conversation to which the task belongs.
	Context string
	Text    string
	Data    json.RawMessage // the data that was sent with the text; nil without
	// From is who asks: an agent, or a sender from outside. It is empty for the hub's own user.
	From string
	// Chain has the agents over which the task was delegated, the first one first.
	Chain []string
	// Deadline is when nobody waits for the answer any more; zero without one.
	Deadline time.Time

	run *run
}

// Report says what the agent does, and how much of the task is done, from 0 to 100; less than 0 leaves that out. Whoever
// waits for the task sees it. Of reports that follow each other fast, only the last one is sent. It does not block.
func (t *Task) Report(text string, percent float64) { t.run.report(text, percent) }

// Outcome is how a task ends.
type Outcome string

// The outcomes of tasks.
const (
	Completed     Outcome = "completed"
	InputRequired Outcome = "input-required" // Text is a question; its answer is the task's next turn
	Rejected      Outcome = "rejected"       // Text says why the agent does not do the task
	failed        Outcome = "failed"
	canceled      Outcome = "canceled"
)

// Answer is the answer to a task.
type Answer struct {
	Outcome Outcome // empty means Completed
	Text    string
	Data    any // any JSON value; nil for none. A refusal has neither data nor files.
	Files   []File
}

// File is a file of an answer.
type File struct {
	Name      string
	MediaType string
	Content   []byte
}

// Text returns an answer of text.
func Text(s string) Answer { return Answer{Text: s} }

// Question returns a question to whoever has given the task.
func Question(s string) Answer { return Answer{Outcome: InputRequired, Text: s} }

// Refusal returns the refusal of a task, with the reason. The sender sees the task as rejected; as failed, with the reason, if
// the handler has reported something before, or has taken longer than [Options].Decision: the task is being worked on then.
func Refusal(reason string) Answer { return Answer{Outcome: Rejected, Text: reason} }

// MaxAnswer bounds the text, the data and the files of an answer together, in bytes.
const MaxAnswer = 16 << 20

// maxData bounds the data of an answer in bytes: it is in one envelope.
const maxData = 512 << 10

// result is an answer that can be sent.
type result struct {
	outcome Outcome
	id      string
	text    string
	data    json.RawMessage
	files   []File
}

func (r *result) size() int {
	n := len(r.text) + len(r.data)
	for _, f := range r.files {
		n += len(f.Content) + len(f.Name)
	}
	return n
}

// resultOf checks an answer. One that cannot be sent becomes a failure.
func resultOf(a Answer, err error) *result {
	if err != nil {
		return &result{outcome: failed, text: err.Error()}
	}
	r := &result{outcome: a.Outcome, text: a.Text, files: a.Files}
	if r.outcome == "" {
		r.outcome = Completed
	}
	if a.Data != nil {
		if r.data, err = json.Marshal(a.Data); err != nil {
			return &result{outcome: failed, text: "the data of the answer is no JSON: " + err.Error()}
		}
	}
	switch {
	case r.outcome != Completed && r.outcome != InputRequired && r.outcome != Rejected:
		return &result{outcome: failed, text: "the program gave the task an outcome that does not exist"}
	case r.outcome != Completed && strings.TrimSpace(r.text) == "":
		return &result{outcome: failed, text: "the program gave no text with its question or refusal"}
	case len(r.data) > maxData:
		return &result{outcome: failed, text: "the data of the answer is too large: send it as a file"}
	case r.size() > MaxAnswer:
		return &result{outcome: failed, text: "the answer is larger than 16 MiB"}
	}
	return r
}
