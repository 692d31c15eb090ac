package work

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
)

// held returns an item if the agent holds it by the token, or an error that names the holder or the state.
func (w *Worker) held(x *Item, taskID string, token int) (*Item, error) {
	switch {
	case x == nil:
		return nil, noItem(taskID)
	case w.holds(x, token):
		return x, nil
	}
	e := &store.Error{Code: store.ConflictError, Remedy: "Do not go on with it; claim other work with claim_work_item."}
	task, holder := store.Quote(taskID), cmp.Or(x.HolderHandle, "another agent")
	switch {
	case x.State == Claimed && x.Holder == w.agent.GUID():
		e.Message = fmt.Sprintf("The claim %d of %s is over: you have claimed the item again since, with the token %d.", token, task, x.Token)
		e.Remedy = "Use the newer token."
	case x.State == Claimed:
		e.Message = fmt.Sprintf("You do not hold %s any more: your lease ended, and %s has claimed it.", task, holder)
	case x.State == Queued || x.State == Forwarding:
		e.Message = fmt.Sprintf("You do not hold %s: it waits in its queue for a worker.", task)
	case x.State == Completed:
		e.Message = fmt.Sprintf("%s is completed already, by %s.", task, holder)
	case x.State == Discarded && x.Reason == "":
		e.Message = fmt.Sprintf("You do not hold %s any more: nobody wants its result, its task was canceled.", task)
	default:
		e.Message = fmt.Sprintf("You do not hold %s any more: it has failed too often, or was refused, and is in the dead letters.", task)
	}
	return nil, e
}

func (w *Worker) holds(x *Item, token int) bool {
	return (x.State == Claimed || x.leaseOver()) && x.Holder == w.agent.GUID() && x.Token == token
}

func noItem(taskID string) *store.Error {
	return &store.Error{Code: store.NotFoundError, Message: fmt.Sprintf("There is no item of work %s.", store.Quote(taskID)),
		Remedy: "Check the taskId; finished items are kept for some days only."}
}

// Extend extends the lease of an item that the agent holds to its full length from now, and returns when it ends.
func (w *Worker) Extend(ctx context.Context, taskID string, token int) (until string, err error) {
	x, err := w.changeHeld(ctx, taskID, token, func(x *Item) {
		x.beginLease(w.svc.reg.Now(), w.svc.cfg.AckTimeout)
	})
	if err != nil {
		return "", err
	}
	w.svc.acknowledge(x.AckSubject, "+WPI")
	return x.LeaseUntil, nil
}

// Outcome is the result of an item.
type Outcome struct {
	Success bool           `json:"success" jsonschema:"Whether the work was done. False is an answer too: the item is finished. To have another agent try, use reject_work_item."`
	Summary string         `json:"resultSummary" jsonschema:"What came of it, in up to 4096 bytes"`
	Result  map[string]any `json:"resultData,omitempty" jsonschema:"Results for the submitter's program"`
}

// encode checks the outcome and returns the result in JSON.
func (o Outcome) encode() (json.RawMessage, error) {
	if o.Summary == "" || len(o.Summary) > maxNote {
		return nil, store.Invalid("The result's summary has %d bytes.", len(o.Summary)).WithRemedy("Say in 1 to %d bytes what came of the work.", maxNote)
	}
	if o.Result == nil {
		return nil, nil
	}
	data, err := json.Marshal(o.Result)
	if err != nil || len(data) > maxResult {
		return nil, store.Invalid("The result's data are not JSON of at most %d bytes.", maxResult).WithRemedy("Write them to a file and give its path.")
	}
	return data, nil
}

// Complete stores the outcome of an item that the agent holds, durably. To complete an
// item a second time with the same token is no error and changes nothing.
func (w *Worker) Complete(ctx context.Context, taskID string, token int, o Outcome) error {
	result, err := o.encode()
	if err != nil {
		return err
	}
	x, err := w.changeHeld(ctx, taskID, token, func(x *Item) {
		x.State, x.Success, x.Summary, x.Result = Completed, o.Success, o.Summary, result
		x.FinishedAt = store.Timestamp(w.svc.reg.Now())
	})
	if err != nil {
		if w.hasCompleted(ctx, taskID, token) {
			return nil
		}
		return err
	}
	w.svc.acknowledge(x.AckSubject, "+ACK")
	return nil
}

// hasCompleted reports whether this claim completed the item before, though the agent got no answer.
func (w *Worker) hasCompleted(ctx context.Context, taskID string, token int) bool {
	if w.agent.Failure() != nil {
		return false
	}
	x, err := w.svc.Find(ctx, taskID)
	return err == nil && x != nil && x.State == Completed && x.Holder == w.agent.GUID() && x.Token == token && w.svc.reg.Commit(ctx) == nil
}

// notNow returns a message to its queue after half a second, so that other workers claim an item before the one that has
// just rejected it.
const notNow = `-NAK {"delay": 500000000}`

// Reject returns an item that the agent holds to the queue; if final, or after the last
// attempt, it puts it into the dead letters. dead says which.
func (w *Worker) Reject(ctx context.Context, taskID string, token int, reason string, final bool) (dead bool, err error) {
	if reason == "" || len(reason) > maxNote {
		return false, store.Invalid("The reason has %d bytes.", len(reason)).WithRemedy("Say in 1 to %d bytes why.", maxNote)
	}
	x, err := w.changeHeld(ctx, taskID, token, func(x *Item) {
		x.Reason, x.Detail = Refused, reason
		x.State = Queued
		if final || x.Deliveries >= w.svc.maxAttempts(x.record) {
			x.die(Refused, reason, w.svc.reg.Now())
		}
	})
	if err != nil {
		return false, err
	}
	if x.State == Dead {
		return true, store.AsError(w.svc.publishDead(ctx, x, x.AckSubject))
	}
	w.svc.acknowledge(x.AckSubject, notNow)
	return false, nil
}

// changeHeld changes the record of an item that the agent holds, and returns when that is durable.
func (w *Worker) changeHeld(ctx context.Context, taskID string, token int, change func(*Item)) (*Item, error) {
	if _, err := w.agent.Ready(); err != nil {
		return nil, err
	}
	if err := w.svc.reg.RefreshTime(ctx); err != nil {
		return nil, store.AsError(err)
	}
	x, err := w.svc.change(ctx, taskID, func(x *Item) (*Item, error) {
		x, err := w.held(x, taskID, token)
		if err == nil {
			x.State = Claimed // it may wait since the lease ended
			change(x)
		}
		return x, err
	})
	if err == nil {
		err = w.svc.reg.Commit(ctx)
	}
	return x, store.AsError(err)
}

// acknowledge sends one of NATS's acknowledgements for a queue's message. The record is authoritative: if the
// acknowledgement is lost, the message is delivered again to a worker that reads the record.
func (s *Service) acknowledge(ackSubject, how string) {
	if !isAckSubject(ackSubject) {
		return
	}
	b, err := s.reg.Connected()
	if err == nil {
		err = b.Conn().Publish(ackSubject, []byte(how))
	}
	if err != nil {
		s.reg.Log().Debug("a queue's message was not acknowledged", "error", err)
	}
}

// isAckSubject guards against forged records: this process publishes with its own rights,
// and only acknowledgements of queues' messages.
func isAckSubject(subject string) bool {
	const short, long = 9, 11 // the long form has a domain and an account's hash before the stream
	token := strings.Split(subject, ".")
	if len(token) < short || len(token) > long+1 || token[0] != "$JS" || token[1] != "ACK" || strings.ContainsAny(subject, "*> \t\r\n") {
		return false
	}
	at := 2
	if len(token) >= long {
		at = 4
	}
	return strings.HasPrefix(token[at], store.QueueStreamPrefix) && token[at+1] == store.QueueGroup
}

// ItemStatus is an item as its submitter and its worker see it. Other agents see neither offer nor result.
type ItemStatus struct {
	TaskID          string        `json:"taskId"`
	Capability      string        `json:"capability"`
	State           ItemState     `json:"state" jsonschema:"queued, claimed, completed, dead (in the dead letters) or discarded"`
	Description     string        `json:"taskDescription,omitempty"`
	SubmitterGUID   string        `json:"submitterGuid,omitempty"`
	SubmitterHandle string        `json:"submitterHandle,omitempty"`
	SubmittedAt     string        `json:"submittedAt,omitempty"`
	Attempts        int           `json:"attempts"`
	HolderGUID      string        `json:"holderGuid,omitempty" jsonschema:"Who has it, or had it last"`
	HolderHandle    string        `json:"holderHandle,omitempty"`
	ClaimedAt       string        `json:"claimedAt,omitempty"`
	LeaseUntil      string        `json:"leaseUntil,omitempty"`
	FinishedAt      string        `json:"finishedAt,omitempty"`
	FailureReason   FailureReason `json:"failureReason,omitempty"`
	FailureDetail   string        `json:"failureDetail,omitempty"`

	Success       *bool           `json:"success,omitempty"`
	ResultSummary string          `json:"resultSummary,omitempty" jsonschema:"For the submitter and the worker only"`
	ResultData    json.RawMessage `json:"resultData,omitempty"`
}

// Decode decodes a stored record of an item as its status without the result, for those who watch the items.
func Decode(data []byte) (ItemStatus, error) {
	var x record
	if err := json.Unmarshal(data, &x); err != nil {
		return ItemStatus{}, err
	}
	if x.TaskID == "" || x.State == "" {
		return ItemStatus{}, errors.New("no item")
	}
	return x.status(false, time.Time{}), nil
}

// status returns the item as it is now: no lease that has ended is shown.
func (x record) status(full bool, now time.Time) ItemStatus {
	if x.leaseEnded(now) {
		x.State, x.Reason = Queued, TimedOut
	}
	s := ItemStatus{TaskID: x.TaskID, Capability: x.Capability, State: x.State, SubmitterGUID: x.SubmitterGUID,
		SubmitterHandle: x.SubmitterHandle, SubmittedAt: x.SubmittedAt, Attempts: x.Deliveries, ClaimedAt: x.ClaimedAt,
		HolderGUID: x.Holder, HolderHandle: x.HolderHandle, FinishedAt: x.FinishedAt, FailureReason: x.Reason}
	switch x.State {
	case Claimed:
		s.LeaseUntil = x.LeaseUntil
	case Forwarding:
		s.State = Queued
	case Completed:
		s.Success, s.FailureReason = &x.Success, ""
	}
	if full {
		s.Description, s.FailureDetail, s.ResultSummary, s.ResultData = x.Description, x.Detail, x.Summary, x.Result
	}
	return s
}

// Status returns the status of an item on this bus. With wait it blocks until the item is finished or ctx ends.
func (w *Worker) Status(ctx context.Context, taskID string, wait bool) (ItemStatus, error) {
	b, err := w.agent.Ready()
	if err != nil {
		return ItemStatus{}, err
	}
	changed := make(chan *nats.Msg, 1)
	if wait {
		sub, err := b.Conn().ChanSubscribe(itemKey(taskID).Subject, changed)
		if err != nil {
			return ItemStatus{}, store.AsError(err)
		}
		defer func() { _ = sub.Unsubscribe() }() // it fails if the connection has ended, and the subscription with it
	}
	poll := time.NewTicker(mail.PollInterval)
	defer poll.Stop()
	for {
		get, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.RequestTimeout)
		x, err := w.svc.Find(get, taskID)
		cancel()
		if err != nil {
			return ItemStatus{}, store.AsError(err)
		}
		if x == nil {
			return ItemStatus{}, noItem(taskID)
		}
		if x.leaseEnded(w.svc.reg.Now()) {
			x = w.svc.settled(ctx, x)
		}
		if !wait || x.finished() || ctx.Err() != nil {
			return x.status(w.agent.GUID() == x.SubmitterGUID || w.agent.GUID() == x.Holder, w.svc.reg.Now()), nil
		}
		select {
		case <-changed:
		case <-poll.C:
		case <-ctx.Done():
		}
	}
}
