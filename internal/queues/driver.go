package queues

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

const (
	// Deadline is how long a task waits for its item's end unless its sender says less.
	Deadline = 30 * 24 * time.Hour

	maxOpen      = 1000      // items of one queue that are followed at once; more wait
	maxWaiting   = 1000      // tasks of one queue that wait to be followed
	maxPrompt    = 256 << 10 // bytes of an item's text, as other programs may submit it
	withdrawTime = 5 * time.Second
)

// queue is one queue as an agent of the hub.
type queue struct {
	of   *Items
	name string
}

func (q *queue) definition(id string) runner.Definition {
	tier := 3
	return runner.Definition{
		ID: id, Tier: &tier, Name: q.name, Description: "The work queue " + q.name + ": whoever claims an item does it.",
		Driver: runner.DriverQueue, Permissions: runner.PermissionsAsk, WorkDir: runner.WorkDirSpec{Policy: runner.WorkDirContext},
		Limits:       runner.Limits{Run: Deadline, Idle: Deadline, Concurrency: maxOpen, Queue: maxWaiting, MaxPrompt: maxPrompt},
		Capabilities: []runner.Capability{{ID: q.name, Name: q.name}},
	}
}

// Probe implements [runner.Agent].
func (q *queue) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageAuthenticated, AuthKnown: true}
}

// Open implements [runner.Agent].
func (q *queue) Open(runner.SessionSpec) (runner.Session, error) { return q, nil }

// Close implements [runner.Session].
func (q *queue) Close(context.Context) error { return nil }

// Turn implements [runner.Session]: it submits an item, unless the task is one, and follows it to its end.
func (q *queue) Turn(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
	s := q.of
	if !s.isReady(ctx) {
		return runner.Outcome{Status: runner.OutcomeCanceled, ExitCode: -1}, nil
	}
	item, own := s.itemOf(ctx, agentOf(q.name), turn.TaskID, turn.Number)
	f := &follower{queue: q, item: item, own: own, h: h}
	defer s.cover(item, 0)
	if own {
		if end := f.submit(ctx, turn); end != nil {
			return end.out, end.err
		}
	}
	return f.follow(ctx)
}

// isReady blocks until the items can be reached. It returns false if ctx ends before; their tasks are looked at when they can.
func (s *Items) isReady(ctx context.Context) bool {
	select {
	case <-s.ready:
		return true
	default:
	}
	select {
	case <-s.ready:
		return true
	case <-ctx.Done():
		return false
	}
}

// Withdraw implements [runner.Withdrawer]. The item may be in its queue already: others may have submitted it, or the turn
// may have begun in an earlier run of the hub.
func (q *queue) Withdraw(ctx context.Context, taskID string, turn int) {
	ctx, cancel := context.WithTimeout(ctx, withdrawTime)
	defer cancel()
	if q.of.isReady(ctx) {
		item, _ := q.of.itemOf(ctx, agentOf(q.name), taskID, turn)
		q.of.withdraw(ctx, item)
	}
}

// withdraw withdraws an item, if there is one.
func (s *Items) withdraw(ctx context.Context, item string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	retry := wait.Backoff{First: 100 * time.Millisecond, Most: time.Second}
	err := s.net.WithdrawItem(ctx, item)
	for err != nil && !store.IsNotFound(err) && retry.Pause(ctx) {
		err = s.net.WithdrawItem(ctx, item)
	}
	if err != nil && !store.IsNotFound(err) {
		s.log.Warn("an item whose task was canceled is not withdrawn yet", "item", item, "error", err)
	}
}

// outcome is the end of a turn.
type outcome struct {
	out runner.Outcome
	err error
}

func failed(code runner.Code, message, remedy string) *outcome {
	return &outcome{runner.Outcome{Status: runner.OutcomeFailed, ExitCode: -1}, &runner.Error{Code: code, Message: message, Remedy: remedy}}
}

// follower follows an item for a task.
type follower struct {
	*queue
	item string
	own  bool // the task submits it
	h    runner.Handler

	attempt int // the latest that was shown
	ended   int // the latest attempt whose end was shown
	lease   string
	end     *outcome
}

// submit submits the task as an item. To submit it again after a restart is no error. It returns the end of the turn if the
// item is refused, or nobody waits for it any more.
func (f *follower) submit(ctx context.Context, turn runner.Turn) *outcome {
	text, perr := runner.PromptText(turn.Parts, maxPrompt)
	if perr != nil {
		return &outcome{runner.Outcome{Status: runner.OutcomeFailed, ExitCode: -1}, perr}
	}
	sub := work.Submission{Capability: f.name, Offer: mail.Offer{TaskID: f.item, Description: text}}
	retry := wait.Backoff{First: 200 * time.Millisecond, Most: maxPause}
	for {
		_, err := f.of.submitter.Submit(ctx, sub)
		switch code := store.CodeOf(err); {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return f.canceled(ctx)
		case code == store.ValidationError || code == store.ConflictError:
			return &outcome{runner.Outcome{Status: runner.OutcomeRejected, ExitCode: -1}, &runner.Error{Code: runner.CodeLimit, Message: err.Error()}}
		}
		f.of.log.Warn("an item waits to be put into its queue", "item", f.item, "queue", f.name, "error", err)
		retry.Pause(ctx)
	}
}

// follow returns the outcome of the item.
func (f *follower) follow(ctx context.Context) (runner.Outcome, error) {
	retry := wait.Backoff{First: 200 * time.Millisecond, Most: maxPause}
	for f.end == nil {
		err := f.of.net.FollowItem(ctx, f.item, f.visit)
		switch {
		case f.end != nil:
		case ctx.Err() != nil:
			f.end = f.canceled(ctx)
		case store.IsNotFound(err):
			f.end = failed(runner.CodeAgent, "the queue does not know the item any more", "submit it again")
		default:
			f.of.log.Debug("an item cannot be followed now", "item", f.item, "error", err)
			retry.Pause(ctx)
		}
	}
	return f.end.out, f.end.err
}

// canceled returns the end of a turn that nobody waits for. Unless the hub stops, it withdraws the item; one that others
// have submitted stays if only the time to wait for it has ended.
func (f *follower) canceled(ctx context.Context) *outcome {
	late := errors.Is(context.Cause(ctx), process.ErrRunTime)
	if !hub.Stopping(ctx) && (f.own || !late) {
		f.of.withdraw(ctx, f.item)
	}
	return &outcome{out: runner.Outcome{Status: runner.OutcomeCanceled, ExitCode: -1}}
}

// visit shows what has become of the item. It reports whether to go on.
func (f *follower) visit(t work.Tracked) bool {
	switch t.State {
	case work.Completed:
		f.completed(t)
	case work.Dead:
		f.end = failed(runner.CodeAgent, "the item is a dead letter after "+attempts(t)+": "+f.of.reason(t),
			local.Program()+" network dead-letters --retry "+f.item+" puts it into its queue again, as another task")
	case work.Discarded:
		f.end = failed(runner.CodeAgent, "the item was withdrawn from its queue", "submit it again")
	case work.Claimed:
		f.claimed(t)
	default:
		f.queued(t)
	}
	if f.end == nil {
		f.of.cover(f.item, t.Generation)
	}
	return f.end == nil
}

// claimed shows who has the item, and until when.
func (f *follower) claimed(t work.Tracked) {
	f.redelivered(t.Attempts-1, "")
	f.h.Event(runner.Shown{})
	if f.attempt == t.Attempts && f.lease == t.LeaseUntil {
		return
	}
	f.attempt, f.lease = t.Attempts, t.LeaseUntil
	f.h.Event(runner.Progress{Text: fmt.Sprintf("%s works on it: attempt %d of %d, lease until %s", f.of.holder(t), t.Attempts, t.MaxAttempts, t.LeaseUntil)})
}

// queued shows that the item waits again, and why.
func (f *follower) queued(t work.Tracked) {
	if t.Attempts > 0 && t.FailureReason != "" {
		f.redelivered(t.Attempts, f.of.reason(t))
	}
}

// redelivered shows that an attempt has ended. Its reason is "" if it is not known any more.
func (f *follower) redelivered(attempt int, why string) {
	if attempt <= f.ended {
		return
	}
	f.ended = attempt
	f.h.Event(runner.Shown{})
	text := fmt.Sprintf("attempt %d has ended, and the item was queued again", attempt)
	if why != "" {
		text += ": " + why
	}
	f.h.Event(runner.Notice{Text: text})
	f.h.Event(runner.Progress{Text: text})
}

func (f *follower) completed(t work.Tracked) {
	f.redelivered(t.Attempts-1, "")
	f.h.Event(runner.Shown{})
	var data any
	if len(t.ResultData) > 0 && json.Unmarshal(t.ResultData, &data) == nil {
		f.h.Event(runner.Artifact{ID: "result", Name: "result", Parts: []*a2a.Part{a2a.NewDataPart(data)}, Last: true})
	}
	if t.Success != nil && !*t.Success {
		f.end = failed(runner.CodeAgent, cmp.Or(t.ResultSummary, "the work was not done"), "")
		return
	}
	f.end = &outcome{out: runner.Outcome{Status: runner.OutcomeCompleted, Text: t.ResultSummary, ExitCode: -1}}
}

// holder names the agent that has an item, or had it last.
func (s *Items) holder(t work.Tracked) string {
	return cmp.Or(agentName(s.hub, t.HolderGUID, t.HolderHandle), "a worker")
}

// agentName returns what the hub's directory calls an agent of the agents' network, where several may have one handle.
func agentName(h *hub.Hub, guid, handle string) string {
	if info, ok := h.Session(guid); ok {
		return info.Residence.Handle
	}
	return cmp.Or(handle, guid)
}

func attempts(t work.Tracked) string {
	if t.Attempts == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", t.Attempts)
}

// reason returns why the last attempt has failed, in words.
func (s *Items) reason(t work.Tracked) string {
	switch t.FailureReason {
	case work.TimedOut:
		return "the lease of " + s.holder(t) + " ended"
	case work.AgentOffline:
		return s.holder(t) + " went offline"
	}
	return cmp.Or(t.FailureDetail, string(t.FailureReason), "refused")
}
