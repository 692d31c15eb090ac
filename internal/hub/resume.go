package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// minRemaining is what a resumed turn has at least, so that an answer that waits is read before the turn ends.
const minRemaining = 10 * time.Second

// Suspended returns the ids of the durable agents whose tasks wait until the agents are registered again.
func (h *Hub) Suspended() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := make([]string, 0, len(h.suspended))
	for id := range h.suspended {
		ids = append(ids, id)
	}
	return ids
}

// resume continues the tasks of an agent that has just been registered, in the order of their last change: those of a durable agent,
// and those whose turns had not begun when the hub was replaced.
func (h *Hub) resume(a *agent) {
	h.mu.Lock()
	ids := h.suspended[a.id]
	resumes := a.durable || a.configured
	if resumes {
		delete(h.suspended, a.id)
	}
	h.mu.Unlock()
	if !resumes || len(ids) == 0 {
		return
	}
	h.wg.Go(func() {
		for _, id := range ids {
			if err := h.resumeTask(h.background, a, id); err != nil && h.background.Err() == nil {
				h.log.Error("a task could not be resumed", "task", id, "agent", a.id, "error", err)
			}
		}
	})
}

// resumeTask repeats the turn that the hub's end has cut off.
func (h *Hub) resumeTask(ctx context.Context, a *agent, id a2a.TaskID) error {
	t, err := h.acquire(ctx, id)
	if err != nil {
		return err
	}
	if !a.durable { // from here on it is a task that runs, also if the hub is killed
		t.mu.Lock()
		t.stored = false
		t.mu.Unlock()
		if err := t.store(ctx); err != nil {
			h.release(t)
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	msg := t.lastRequest()
	if t.status.State.Terminal() || t.turn != nil || len(t.waiting) > 0 || msg == nil {
		h.release(t) // canceled meanwhile
		return nil
	}
	t.agent = a
	t.reopen()
	t.waiting = []pending{{msg: msg, sender: SenderOf(t.metadata), listed: true, timeout: t.remaining(), done: neutral}}
	if a.durable && t.tally.Turns == 0 { // the begin of a later turn is not stored
		t.waiting[0].began = time.Unix(0, t.entry.created)
	}
	for _, w := range t.resumed {
		t.waiting = append(t.waiting, pending{msg: w.msg, sender: w.sender, timeout: a.timeout(0), done: neutral})
	}
	t.resumed = nil
	h.mu.Lock()
	onTurn := h.onTurn
	h.mu.Unlock()
	if onTurn != nil {
		onTurn(t.id)
	}
	return a.resume(t)
}

func neutral(error) {}

// lastRequest returns the message of the latest turn. mu is held.
func (t *task) lastRequest() *a2a.Message {
	for i := len(t.history) - 1; i >= 0; i-- {
		if m := t.history[i]; m.Role == a2a.MessageRoleUser {
			return m
		}
	}
	return nil
}

// setDeadline notes how long a task of a durable agent may wait for its next turn's end. mu is held.
func (t *task) setDeadline(timeout time.Duration) {
	if t.agent.durable {
		t.setMeta(MetaDeadline, time.Now().Add(timeout).UTC().Format(time.RFC3339))
	}
}

// Deadline returns when a task of a durable agent fails unless it is answered before; zero without a deadline.
func (h *Hub) Deadline(ctx context.Context, id a2a.TaskID) time.Time {
	none := 0
	task, err := h.Task(ctx, id, &none)
	if err != nil {
		return time.Time{}
	}
	return DeadlineOf(task.Metadata)
}

// DeadlineOf is [Hub.Deadline] from the task's metadata.
func DeadlineOf(metadata map[string]any) time.Time {
	text, _ := metadata[MetaDeadline].(string)
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return at
}

// WaitingNotice says that a task waits for an agent that is not there, of which why says so, and until when; a zero
// deadline is left out.
func WaitingNotice(why string, deadline time.Time) runner.Notice {
	why += ": the task waits for it"
	if !deadline.IsZero() {
		why += ", at most until " + deadline.UTC().Format("2006-01-02 15:04 UTC")
	}
	return runner.Notice{Text: why}
}

// deadline returns the task's deadline; zero without one. mu is held.
func (t *task) deadline() time.Time { return DeadlineOf(t.metadata) }

// remaining returns the time until the deadline. mu is held.
func (t *task) remaining() time.Duration {
	at := t.deadline()
	if at.IsZero() {
		return t.agent.timeout(0)
	}
	return max(time.Until(at), minRemaining)
}

// Stopping reports whether a turn's context has ended because the hub stops. A durable agent keeps its task then.
func Stopping(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errStopping) }

// outlives reports whether the task stays as it is although its turn is cut off.
func (t *task) outlives(cause error) bool {
	if t.agent == nil || !errors.Is(cause, errStopping) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.agent.durable || t.held
}

// suspend stores a task as it is when the hub stops. Its next hub resumes it.
func (t *task) suspend() {
	if err := t.store(context.Background()); err != nil {
		t.hub.log.Error("a task was not stored before the hub stopped", "task", t.id, "error", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.turn != nil {
		t.turn.over = true
	}
	t.suspended = true
	report(t.waiting, errNeutral)
	t.stopFlush()
	t.changed.Send()
	if !wait.Closed(t.settled) {
		close(t.settled) // for those who wait for the answer: see Pending.Wait
	}
}

// suspendedError is the error for whoever waits for a task that the hub's stop has suspended.
func suspendedError(id a2a.TaskID) error {
	return &Error{Code: CodeUnavailable, Message: fmt.Sprintf("the hub stopped; task %s stays open and is continued when it runs again", id),
		Remedy: "start the hub, then get the task"}
}
