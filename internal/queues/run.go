package queues

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
)

const (
	maxNote   = 4000      // bytes of a summary or a reason
	maxResult = 200 << 10 // bytes of a result's JSON

	// MetaItem is the key in a task's metadata of the item that it works on.
	MetaItem = "workItem"
)

// run is the work on one claim of an item.
type run struct {
	*crew
	claim *work.Claim
	log   *slog.Logger
}

// ending is what a run makes of its item.
type ending struct {
	run    *run
	done   bool // the agent has done the item
	result work.Outcome
	reason string // why it has not
	final  bool   // nobody is to try again
}

// key returns the idempotency key of the task for a claim. A worker that was killed finds the task again, because it has
// the same claim; a later claim of the item is another attempt, with a task of its own.
func key(claim *work.Claim, token int) string {
	return fmt.Sprintf("item/%s/%d", store.Digest(claim.TaskID), token)
}

func (r *run) taskID() a2a.TaskID { return hub.OnceID(r.agent, key(r.claim, r.claim.Token)) }

// end gives the item to the agent, and returns what came of it; nil if ctx has ended before.
func (r *run) end(ctx context.Context) *ending {
	if e := r.earlier(ctx); e != nil {
		return e
	}
	if err := r.send(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		r.log.Warn("an item is returned: its agent does not accept it", "error", err)
		return r.failed(err.Error(), false)
	}
	task, err := r.await(ctx)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return r.failed(err.Error(), false)
	}
	if hub.Interrupted(task.Status.State) {
		return r.unanswered(ctx, task)
	}
	return r.ending(task)
}

// unanswered cancels a task that waits for an answer, unless it goes on meanwhile.
func (r *run) unanswered(ctx context.Context, task *a2a.Task) *ending {
	r.abandon(ctx, "nobody has answered its question")
	now, err := r.hub.Task(ctx, task.ID, nil)
	if ctx.Err() != nil {
		return nil
	}
	if err == nil && now.Status.State.Terminal() && now.Status.State != a2a.TaskStateCanceled {
		return r.ending(now)
	}
	return r.failed(fmt.Sprintf("%s has asked, and nobody has answered within %s: %s", r.agent, r.lease, textOf(task.Status.Message)), false)
}

// earlier returns the ending of the claim before this one, if this agent had it and has done the item: it was killed
// before it completed the item, and its lease ended.
func (r *run) earlier(ctx context.Context) *ending {
	task, err := r.hub.Task(ctx, hub.OnceID(r.agent, key(r.claim, r.claim.Token-1)), nil)
	if err != nil || task.Status.State != a2a.TaskStateCompleted {
		return nil
	}
	return r.completed(task)
}

// send stores the item's task, unless it is stored.
func (r *run) send(ctx context.Context) error {
	c := r.claim
	once := key(c, c.Token)
	parts := []*a2a.Part{a2a.NewTextPart(c.Description)}
	var data map[string]any
	if len(c.ContextData) > 0 && json.Unmarshal(c.ContextData, &data) == nil && len(data) > 0 {
		parts = append(parts, a2a.NewDataPart(data))
	}
	msg := a2a.NewMessage(a2a.MessageRoleUser, parts...)
	msg.ID = once
	msg.Metadata = map[string]any{hub.MetaOnce: once}
	item := map[string]any{"taskId": c.TaskID, "capability": c.Capability, "attempt": c.Attempt, "maxAttempts": c.MaxAttempts}
	if from := agentName(r.hub, c.SubmitterGUID, c.SubmitterHandle); from != "" {
		item["submitter"] = from
	}
	_, err := r.hub.Send(ctx, hub.SendRequest{AgentID: r.agent, Message: msg, Metadata: map[string]any{MetaItem: item},
		Delegation: r.items.origin(ctx, c), Timeout: r.timeout()})
	return err
}

// timeout returns the time until the item's deadline; 0 without one, or if it has passed.
func (r *run) timeout() time.Duration {
	at, err := time.Parse(time.RFC3339, r.claim.Deadline)
	if err != nil {
		return 0
	}
	return max(time.Until(at), 0)
}

// await returns the task when it has ended, or has waited for an answer for as long as a lease.
func (r *run) await(ctx context.Context) (*a2a.Task, error) {
	for {
		sub, err := r.hub.Subscribe(ctx, r.taskID())
		if err != nil {
			return nil, err
		}
		task := sub.Task()
		ended := task.Status.State.Terminal() || r.next(ctx, sub, task)
		sub.Close()
		if ended || ctx.Err() != nil {
			return task, ctx.Err()
		}
	}
}

// next blocks until the state of a task has changed. It reports whether an answer has not come in time.
func (r *run) next(ctx context.Context, sub *hub.Subscription, task *a2a.Task) (late bool) {
	waiting := hub.Interrupted(task.Status.State)
	if waiting {
		r.log.Info("an item waits for an answer to its agent's question", "task", task.ID)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, since(task).Add(r.lease))
		defer cancel()
	}
	for {
		if _, err := sub.Next(ctx); err != nil {
			return waiting && ctx.Err() != nil
		} else if waiting {
			return false
		}
	}
}

// since returns when a task got its state.
func since(task *a2a.Task) time.Time {
	if at := task.Status.Timestamp; at != nil {
		return *at
	}
	return time.Now()
}

// ending returns what a task makes of the item.
func (r *run) ending(task *a2a.Task) *ending {
	switch state := task.Status.State; {
	case state == a2a.TaskStateCompleted:
		return r.completed(task)
	case state == a2a.TaskStateCanceled:
		return r.failed("the task of "+r.agent+" was canceled at its hub", true)
	case wasStopped(task):
		return r.failed("the hub stopped while "+r.agent+" worked on it", false)
	default:
		return r.failed(fmt.Sprintf("%s: %s", r.agent, cmp.Or(strings.TrimSpace(textOf(task.Status.Message)), hub.StateName(state))), false)
	}
}

// wasStopped reports whether the end of the hub has ended a task.
func wasStopped(task *a2a.Task) bool {
	if task.Status.Message == nil {
		return false
	}
	failure, _ := task.Status.Message.Metadata[hub.MetaError].(map[string]any)
	return failure["code"] == hub.CodeStopped
}

func (r *run) failed(reason string, final bool) *ending {
	return &ending{run: r, reason: text.Clip(strings.ToValidUTF8(reason, "\uFFFD"), maxNote), final: final}
}

// completed returns the ending for a task's answer: its begin is the summary, all of it is in the data as far as that fits.
func (r *run) completed(task *a2a.Task) *ending {
	answer := textOf(task.Status.Message)
	result := map[string]any{"agent": r.agent, "task": string(task.ID)}
	r.add(result, "answer", answer)
	var data []any
	for _, a := range task.Artifacts {
		for _, p := range a.Parts {
			if d := p.Data(); d != nil {
				data = append(data, d)
			}
		}
	}
	if len(data) > 0 {
		r.add(result, "data", data)
	}
	summary := cmp.Or(text.Clip(strings.TrimSpace(answer), maxNote), r.agent+" has done it, without an answer in words.")
	return &ending{run: r, done: true, result: work.Outcome{Success: true, Summary: summary, Result: result}}
}

// add adds a value to an item's result if it fits.
func (r *run) add(result map[string]any, key string, value any) {
	result[key] = value
	if whole, err := json.Marshal(result); err != nil || len(whole) > maxResult {
		delete(result, key)
		result["omitted"] = "the answer is too long for the queue: the task at the hub of the agent has all of it"
	}
}

func textOf(m *a2a.Message) string {
	if m == nil {
		return ""
	}
	var b strings.Builder
	for _, p := range m.Parts {
		b.WriteString(p.Text())
	}
	return b.String()
}

// store completes or rejects the item. It tries until that is durable, the item is not held any more or ctx ends.
func (e *ending) store(ctx context.Context) {
	c := e.run.claim
	e.run.persist(ctx, "the end of an item cannot be stored yet", func() error {
		if e.done {
			return e.lost(e.run.member.Complete(ctx, c.TaskID, c.Token, e.result))
		}
		dead, err := e.run.member.Reject(ctx, c.TaskID, c.Token, e.reason, e.final)
		if err == nil {
			e.run.log.Warn("an item was not done", "reason", e.reason, "dead", dead)
		}
		return e.lost(err)
	})
}

// lost returns nil for an error that trying again does not change.
func (e *ending) lost(err error) error {
	if isLost(err) || store.CodeOf(err) == store.ValidationError {
		e.run.log.Warn("the end of an item is not stored", "error", err)
		return nil
	}
	return err
}

// abandon cancels the task of an item, if it has not ended.
func (r *run) abandon(ctx context.Context, why string) {
	if _, err := r.hub.Cancel(context.WithoutCancel(ctx), r.taskID()); err == nil {
		r.log.Warn("the task of an item is canceled", "task", r.taskID(), "reason", why)
	}
}

// extend extends the lease until ctx ends or the item is lost.
func (r *run) extend(ctx context.Context, drop context.CancelCauseFunc) {
	pause := r.lease / 3
	for wait.Pause(ctx, pause) {
		_, err := r.member.Extend(ctx, r.claim.TaskID, r.claim.Token)
		switch {
		case err == nil:
			pause = r.lease / 3
		case isLost(err):
			drop(errLost)
			return
		default:
			pause = min(r.lease/10, time.Second)
		}
	}
}
