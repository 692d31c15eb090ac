package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/base/wait"
)

const (
	taskTime    = 30 * time.Second // for which a tool waits for the hub
	answerTime  = 20 * time.Second // in which an answer is given again while the hub cannot be reached: it may be starting again
	answerPause = 300 * time.Millisecond
)

type answerTaskIn struct {
	TaskID  string             `json:"taskId" jsonschema:"The task's id, from the message that gave it to you"`
	Text    string             `json:"text" jsonschema:"The answer; with another outcome the question, or why the task is not done"`
	Outcome assignment.Outcome `json:"outcome,omitempty" jsonschema:"completed by default. input-required asks the sender, whose reply comes as a message of the same task. failed and rejected say that you could not or will not do it"`
	Data    map[string]any     `json:"data,omitempty" jsonschema:"Structured data of the answer"`
	Files   []assignment.File  `json:"files,omitempty" jsonschema:"Files of the answer"`
}

type taskOut struct {
	TaskID  string             `json:"taskId"`
	Outcome assignment.Outcome `json:"outcome,omitempty"`
}

func (g *Network) addTasks(all *Tools) {
	addNetworkTool(all, g, Tool[answerTaskIn, taskOut]{
		Name: "answer_task", Title: "Answer a task", Idempotent: true, Blocks: true,
		Description: "Answer a task that came as mail of the type task. It is stored with whoever gave it before this returns. Each task is answered " +
			"once; to ask back use the outcome input-required. A message of another type is answered with send_direct_message.",
		Refine: func(p map[string]*jsonschema.Schema) {
			p["outcome"].Enum, p["outcome"].Default = enumOf(assignment.Outcomes), []byte(`"completed"`)
			lists(p, "files")
		},
	}, g.answerTask)
	addNetworkTool(all, g, Tool[assignment.Progress, taskOut]{
		Name: "report_progress", Title: "Say how a task goes", Idempotent: true,
		Description: "Show to whoever waits for a task what you are doing. Use it while a task takes long; it is not an answer.",
		Refine:      func(p map[string]*jsonschema.Schema) { bounds(p["percent"], 0, 100) },
	}, func(ctx context.Context, _ *Call, a *agentnet.Agent, in assignment.Progress) (string, taskOut, error) {
		ctx, cancel := context.WithTimeout(ctx, taskTime)
		defer cancel()
		return "It is shown to whoever waits.", taskOut{TaskID: in.TaskID}, a.ReportProgress(ctx, in)
	})
}

func (g *Network) answerTask(ctx context.Context, c *Call, a *agentnet.Agent, in answerTaskIn) (string, taskOut, error) {
	answer := assignment.Answer{TaskID: in.TaskID, Outcome: in.Outcome, Text: in.Text, Data: in.Data, Files: in.Files}
	if answer.Outcome == "" {
		answer.Outcome = assignment.Completed
	}
	ids := answerIDsOf(c.Client)
	key, id, err := ids.take(answer)
	if err != nil {
		return "", taskOut{}, err
	}
	answer.ID = id
	ctx, cancel := context.WithTimeout(ctx, taskTime)
	defer cancel()
	err = giveAnswer(ctx, a, answer, g.answerTime)
	if !store.IsUnreachable(err) {
		ids.drop(key)
	}
	if err != nil {
		return "", taskOut{}, err
	}
	text := "The answer is stored: the task is done."
	switch answer.Outcome {
	case assignment.InputRequired:
		text = "The question is stored. The reply comes as a message of the same task: wait_for_direct_messages waits for it."
	case assignment.Failed, assignment.Rejected:
		text = "It is stored that you do not do the task, and why."
	}
	return text, taskOut{answer.TaskID, answer.Outcome}, nil
}

// giveAnswer gives an answer again while the hub cannot be reached: agents seldom repeat a tool that failed, and the work is done.
func giveAnswer(ctx context.Context, a *agentnet.Agent, answer assignment.Answer, most time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		err := a.AnswerTask(ctx, answer)
		if !store.IsUnreachable(err) || !wait.Pause(waiting, answerPause) {
			return err
		}
	}
}

// answerIDs are the ids of answers that the hub has not confirmed: the same answer, given again, has the same id, so that it
// is stored once. They are safe for concurrent use.
type answerIDs struct {
	mu  sync.Mutex
	ids map[[sha256.Size]byte]string
}

// maxUnconfirmed bounds them.
const maxUnconfirmed = 100

type answerIDsKey struct{}

func answerIDsOf(c *Client) *answerIDs {
	return c.Value(answerIDsKey{}, func() any { return &answerIDs{ids: make(map[[sha256.Size]byte]string)} }).(*answerIDs)
}

// take returns the id of an answer, and its key.
func (x *answerIDs) take(a assignment.Answer) (key [sha256.Size]byte, id string, err error) {
	data, err := json.Marshal(a)
	if err != nil {
		return key, "", store.Invalid("The data is not JSON: %v.", err).WithRemedy("Use an object.")
	}
	key = sha256.Sum256(data)
	x.mu.Lock()
	defer x.mu.Unlock()
	if id = x.ids[key]; id != "" {
		return key, id, nil
	}
	if len(x.ids) >= maxUnconfirmed {
		clear(x.ids)
	}
	id = uuid.NewString()
	x.ids[key] = id
	return key, id, nil
}

func (x *answerIDs) drop(key [sha256.Size]byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.ids, key)
}

// taskText formats a hub's message about a task. The frame says that its text is not the user's.
func taskText(m mail.Mail) string {
	data := objectOf(m.Metadata)
	id, _ := data["taskId"].(string)
	if m.Type == mail.TaskCanceled {
		return fmt.Sprintf("\n[%s] The task %s was canceled: stop working on it, nobody waits for an answer.", timestamp(m.Timestamp), NameText(id))
	}
	if m.Type == mail.TaskAnswer {
		return answerText(m, data, id)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n[%s] **Task %s** from %s", timestamp(m.Timestamp), NameText(id), requester(data))
	if until, ok := data["deadline"].(string); ok {
		fmt.Fprintf(&b, ", until %s", NameText(until))
	}
	if turn, ok := data["turn"].(float64); ok && turn > 1 {
		b.WriteString(". This message continues it")
	}
	fmt.Fprintf(&b, ". What follows is the sender's text, not your user's:\n    %s", display.Indented(m.Text))
	fmt.Fprintf(&b, "\n    (Answer it with answer_task and the taskId %s.)", NameText(id))
	return b.String()
}

// answerText formats the answer of a task that the agent has given to another.
func answerText(m mail.Mail, data map[string]any, id string) string {
	agent, _ := data["from"].(string)
	state, _ := data["state"].(string)
	text := fmt.Sprintf("\n[%s] **Answer to your task %s** from the agent %s, which is %s now. What follows is that agent's text, not your user's:\n    %s",
		timestamp(m.Timestamp), NameText(id), NameText(agent), NameText(state), display.Indented(m.Text))
	if data["truncated"] == true {
		text += "\n    (The rest was cut: get_task shows it.)"
	}
	return text
}

// requester says who gave a task, as far as the hub knows.
func requester(data map[string]any) string {
	from, delegated := data["from"].(string)
	sender, foreign := data["sender"].(map[string]any)
	switch {
	case delegated && foreign:
		return "the agent " + NameText(from) + " for " + senderText(sender)
	case delegated:
		return "the agent " + NameText(from)
	case foreign:
		return senderText(sender)
	}
	return "a person or program at the hub"
}

// senderKinds are what the kinds of senders mean to an agent.
var senderKinds = map[string]string{
	"client": "a program of this computer at", "a2a": "a client of another computer at", "peer": "the paired hub", "program": "the program",
}

// senderText describes a sender who is not the agent's user.
func senderText(sender map[string]any) string {
	kind, _ := sender["kind"].(string)
	id, _ := sender["id"].(string)
	label, _ := sender["label"].(string)
	text := strings.TrimSpace(cmp.Or(senderKinds[kind], "somebody else:") + " " + NameText(id))
	switch {
	case label == "" || label == id:
	case kind == "peer":
		text += ", which your user calls " + quotedName(label)
	default:
		text += ", which calls itself " + quotedName(label)
	}
	return text
}
