package hub

import (
	"context"
	"fmt"
	"slices"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// A gate is the question whether the sender of a task may give it to the agent. The specification's diagram has no state
// for it: the task has been stored, and nobody works on it. It is auth-required, and from there ends or begins to work.

// gateOf returns the question in a status about the sender; "" if there is none.
func gateOf(status a2a.TaskStatus) (requestID string) {
	if status.State != a2a.TaskStateAuthRequired || status.Message == nil {
		return ""
	}
	for _, p := range status.Message.Parts {
		data, ok := p.Data().(map[string]any)
		if !ok || p.Metadata[MetaPermission] == nil || data["sender"] == nil {
			continue
		}
		id, _ := data["requestId"].(string)
		return id
	}
	return ""
}

// gated reports whether the status asks about the sender. mu is held.
func (t *task) gated() bool { return gateOf(t.status) != "" }

// asks reports whether the status shows a question about the sender already: an earlier hub has asked it. mu is held.
func (t *task) asks(req runner.PermissionRequest) bool {
	return req.Sender && gateOf(t.status) == req.ID
}

// stillAsks makes a question that an earlier hub has asked one of this hub. mu is held.
func (t *task) stillAsks() {
	if !wait.Closed(t.settled) {
		close(t.settled)
	}
	t.changed.Send()
}

// passGate returns an error if a message may not answer the question about the sender. For the user, it waits until the
// question can be answered, after a restart. mu is held before and after, except after an error.
func (t *task) passGate(ctx context.Context, req SendRequest) error {
	for t.gated() && t.agent != nil {
		if !req.Sender.Own() || req.Delegation != nil && req.Delegation.By != "" {
			t.mu.Unlock()
			return &Error{Code: CodeUnsupported, Message: fmt.Sprintf("task %s waits until the hub's user has permitted its sender; nobody else can answer", t.id),
				Remedy: "wait, or cancel the task"}
		}
		if len(t.questions) > 0 && t.questions[0].asked {
			return nil
		}
		if err := t.waitChange(ctx); err != nil {
			return err
		}
		if err := t.whileSettling(ctx); err != nil {
			return err
		}
	}
	return nil
}

// answerGate applies the answer to a question about the sender. It is stored before it is shown: the state of a task that
// outlives the hub never goes back. mu is held, but not while the answer is written.
func (t *task) answerGate(q *question, d decision) error {
	i := slices.IndexFunc(q.req.Options, func(o runner.PermissionOption) bool { return o.ID == d.answer.OptionID })
	allowed := i >= 0 && slices.Contains(runner.Allow, q.req.Options[i].Kind)
	t.dropQuestion(q)
	t.reopen()
	if allowed {
		before := t.metadata
		t.setMeta(MetaSender, storedSender{SenderOf(t.metadata), true}.data())
		msg := t.agentMessage(a2a.NewTextPart("The user has permitted the sender. The agent gets the task."))
		if err := t.settle(ending{state: a2a.TaskStateWorking, message: msg, live: true}); err != nil {
			t.metadata, t.snap = before, nil
			t.questions = slices.Insert(t.questions, 0, q)
			t.stillAsks()
			return t.hub.storeError(err)
		}
	}
	t.publish(events.PermissionAnswered, func() map[string]any {
		return map[string]any{"request": q.req.ID, "option": d.answer.OptionID}
	})
	q.answer <- d
	return nil
}

// permitOtherwise answers a question about the sender for whoever knows the answer, unless it is answered already.
func (t *task) permitOtherwise(q *question) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.whileSettling(context.Background()); err != nil {
		panic(err) // Background never ends
	}
	if !slices.Contains(t.questions, q) {
		return
	}
	d := decide(q.req, true, "")
	d.by = string(runner.ByPolicy)
	if err := t.answerGate(q, d); err != nil {
		t.hub.log.Error("a sender's permission could not be stored", "task", t.id, "error", err)
	}
}
