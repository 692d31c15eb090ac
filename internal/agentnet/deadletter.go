package agentnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// The limits of a list of dead letters (REQ-DLQ-007).
const (
	DefaultDeadLimit = 50
	MaxDeadLimit     = 1000
)

// DeadLetter is work that failed (REQ-DLQ-005).
type DeadLetter struct {
	TaskID            string          `json:"originalTaskId"`
	Subject           string          `json:"originalSubject"`
	Attempts          int             `json:"deliveryAttempts"`
	LastAttemptAt     string          `json:"lastAttemptAt"`
	LastAssignedAgent string          `json:"lastAssignedAgent"` // GUID, empty if none ever had it
	Reason            FailureReason   `json:"failureReason"`
	Payload           json.RawMessage `json:"originalPayload"` // the offer

	Detail        string `json:"failureDetail,omitempty"`
	SubmitterGUID string `json:"submitterGuid,omitempty"`
	DeadAt        string `json:"deadAt,omitempty"`
	Generation    int    `json:"generation,omitempty"`
}

func (x item) deadLetter() (DeadLetter, error) {
	payload, err := json.Marshal(x.order)
	if err != nil {
		return DeadLetter{}, err
	}
	return DeadLetter{TaskID: x.TaskID, Subject: queueSubject + x.Capability, Attempts: x.Deliveries,
		LastAttemptAt: or(x.ClaimedAt, x.FinishedAt), LastAssignedAgent: x.Holder, Reason: x.Reason, Payload: payload,
		Detail: x.Detail, SubmitterGUID: x.SubmitterGUID, DeadAt: x.FinishedAt, Generation: x.Generation}, nil
}

// bury moves an item to the dead letters (REQ-DLQ-003). Its record decides: when
// that is written, the rest is only carried out, by whoever comes next if this
// process dies.
func (n *Network) bury(ctx context.Context, b *bus.Bus, x *version, ackSubject string, reason FailureReason, detail string) error {
	x.State, x.Reason, x.Detail, x.DeadSequence = Dead, reason, detail, 0
	x.FinishedAt = timestamp(n.clock.now())
	if err := n.save(ctx, b, x); err != nil {
		return err
	}
	return n.publishDead(ctx, b, x, ackSubject)
}

// publishDead puts a dead item into the dead letters, notes where, and takes it
// off its queue (REQ-DLQ-004, REQ-DLQ-012).
func (n *Network) publishDead(ctx context.Context, b *bus.Bus, x *version, ackSubject string) error {
	letter, err := x.deadLetter()
	if err != nil {
		return err
	}
	data, err := json.Marshal(letter)
	if err != nil {
		return err
	}
	ack, err := b.Publish(ctx, &nats.Msg{Subject: deadSubject, Data: data}, jetstream.WithExpectStream(deadStream),
		jetstream.WithMsgID(fmt.Sprintf("%s/%d", itemKey(x.TaskID), x.Generation)))
	if err != nil {
		return err
	}
	x.DeadSequence = ack.Sequence
	if err := n.save(ctx, b, x); err != nil && !errors.Is(err, errConflict) {
		return err
	}
	n.tell(b, ackSubject, "+TERM dead letter")
	n.log.Warn("an item of work has failed and is in the dead letters", "taskId", x.TaskID, "queue", x.Capability,
		"attempts", x.Deliveries, "reason", x.Reason, "lastAgent", x.Holder)
	return nil
}

// DeadLetters lists failed work, oldest first; of one queue if capability is not
// empty (REQ-DLQ-006). more says that there is more than the limit.
func (a *Agent) DeadLetters(ctx context.Context, limit int, capability string) (list []DeadLetter, more bool, err error) {
	if _, err := a.ready(); err != nil && !isConnection(err) {
		return nil, false, err
	}
	return a.net.DeadLetters(ctx, limit, capability)
}

// DeadLetters is the list for people.
func (n *Network) DeadLetters(ctx context.Context, limit int, capability string) (list []DeadLetter, more bool, err error) {
	b, err := n.connected()
	if err == nil {
		list, more, err = n.deadLetters(ctx, b, limit, capability)
	}
	if n.near == nil || (err != nil && !isConnection(err)) {
		return list, more, err
	}
	near, nearErr := n.near.connected()
	if nearErr != nil {
		return list, more, err
	}
	here, moreHere, err := n.near.deadLetters(ctx, near, limit, capability)
	if err != nil {
		return nil, false, err
	}
	list = append(list, here...)
	most := min(len(list), or(limit, DefaultDeadLimit))
	return list[:most], more || moreHere || most < len(list), nil
}

func (n *Network) deadLetters(ctx context.Context, b *bus.Bus, limit int, capability string) (list []DeadLetter, more bool, err error) {
	limit = or(limit, DefaultDeadLimit)
	if limit < 1 || limit > MaxDeadLimit {
		return nil, false, invalid("The limit %d is not allowed.", limit).WithRemedy("Use a limit from 1 to %d.", MaxDeadLimit)
	}
	subject := ""
	if capability != "" {
		if capability, err = queueName(capability); err != nil {
			return nil, false, err
		}
		subject = queueSubject + capability
	}
	list = []DeadLetter{}
	err = scan(ctx, b, deadStream, deadSubject, 1, func(s stored) bool {
		var letter DeadLetter
		if err := json.Unmarshal(s.data, &letter); err != nil || letter.TaskID == "" {
			n.log.Error("a dead letter is skipped: it is not of the network's format", "sequence", s.sequence, "error", err)
			return true
		}
		if subject != "" && letter.Subject != subject {
			return true
		}
		if len(list) == limit {
			more = true
			return false
		}
		list = append(list, letter)
		return true
	})
	if err != nil {
		return nil, false, connectionError(err)
	}
	list, err = n.stillDead(ctx, b, list)
	return list, more, connectionErrorOrNil(err)
}

// stillDead drops the letters of items that were taken out half way by a
// process that died.
func (n *Network) stillDead(ctx context.Context, b *bus.Bus, list []DeadLetter) ([]DeadLetter, error) {
	var failed error
	list = slices.DeleteFunc(list, func(l DeadLetter) bool {
		x, err := n.item(ctx, b, l.TaskID)
		if err != nil {
			failed = err
		}
		return x != nil && (x.State != Dead || x.Generation != max(l.Generation, 1))
	})
	return list, failed
}

// RetryDeadLetter puts a failed item into its queue again. Unless
// resetAttempts, the attempts so far count, and it has at least one more
// (REQ-DLQ-008, REQ-DLQ-009).
func (a *Agent) RetryDeadLetter(ctx context.Context, taskID string, resetAttempts bool) (DeadLetter, error) {
	if _, err := a.ready(); err != nil && !isConnection(err) {
		return DeadLetter{}, err
	}
	letter, err := a.net.RetryDeadLetter(ctx, taskID, resetAttempts)
	if err == nil {
		a.log.Warn("a dead letter is retried", "taskId", taskID, "resetAttempts", resetAttempts) // REQ-DLQ-012
	}
	return letter, err
}

// RetryDeadLetter is for people.
func (n *Network) RetryDeadLetter(ctx context.Context, taskID string, resetAttempts bool) (DeadLetter, error) {
	at, b, err := n.deadKeeper(ctx, taskID)
	if err != nil {
		return DeadLetter{}, err
	}
	defer wake(n.items.kick)
	return at.retry(ctx, b, taskID, resetAttempts)
}

func (n *Network) retry(ctx context.Context, b *bus.Bus, taskID string, resetAttempts bool) (DeadLetter, error) {
	x, letter, err := n.deadItem(ctx, b, taskID)
	if err != nil {
		return DeadLetter{}, err
	}
	o, generation, dead := x.order, x.Generation+1, x.DeadSequence
	o.Generation, o.Attempts = generation, x.Deliveries
	if resetAttempts {
		o.Attempts = 0
	}
	seq, err := n.enqueue(ctx, b, o, x.Capability)
	if err != nil {
		return DeadLetter{}, connectionError(err)
	}
	for range maxConflicts {
		if x.Generation >= generation {
			break // a worker was quicker, or another who retries
		}
		x.renew(o)
		x.QueueSequence = seq
		if err = n.save(ctx, b, x); !errors.Is(err, errConflict) {
			break
		}
		if x, err = n.item(ctx, b, taskID); err != nil || x == nil {
			break
		}
	}
	if err == nil {
		err = n.removeDead(ctx, b, dead)
	}
	return letter, connectionErrorOrNil(err)
}

// DiscardDeadLetter removes a failed item for good (REQ-DLQ-010).
func (a *Agent) DiscardDeadLetter(ctx context.Context, taskID string) (DeadLetter, error) {
	if _, err := a.ready(); err != nil && !isConnection(err) {
		return DeadLetter{}, err
	}
	letter, err := a.net.DiscardDeadLetter(ctx, taskID)
	if err == nil {
		a.log.Warn("a dead letter is discarded", "taskId", taskID) // REQ-DLQ-012
	}
	return letter, err
}

// DiscardDeadLetter is for people.
func (n *Network) DiscardDeadLetter(ctx context.Context, taskID string) (DeadLetter, error) {
	at, b, err := n.deadKeeper(ctx, taskID)
	if err != nil {
		return DeadLetter{}, err
	}
	return at.discard(ctx, b, taskID)
}

func (n *Network) discard(ctx context.Context, b *bus.Bus, taskID string) (DeadLetter, error) {
	x, letter, err := n.deadItem(ctx, b, taskID)
	if err != nil {
		return DeadLetter{}, err
	}
	dead := x.DeadSequence
	x.State = Discarded
	err = n.save(ctx, b, x)
	if errors.Is(err, errConflict) {
		return DeadLetter{}, &Error{Code: ConflictError, Message: fmt.Sprintf("Somebody else has just taken %s out of the dead letters.", quote(taskID)),
			Remedy: "See list_dead_letter_items."}
	}
	if err == nil {
		err = n.removeDead(ctx, b, dead)
	}
	return letter, connectionErrorOrNil(err)
}

// deadItem finds an item that is in the dead letters.
func (n *Network) deadItem(ctx context.Context, b *bus.Bus, taskID string) (*version, DeadLetter, error) {
	x, err := n.item(ctx, b, taskID)
	if err != nil {
		return nil, DeadLetter{}, connectionError(err)
	}
	if x == nil || x.State != Dead {
		return nil, DeadLetter{}, &Error{Code: NotFoundError, Message: fmt.Sprintf("There is no dead letter of the task %s.", quote(taskID)),
			Remedy: "list_dead_letter_items shows those that there are."}
	}
	letter, err := x.deadLetter()
	return x, letter, err
}

func (n *Network) removeDead(ctx context.Context, b *bus.Bus, seq uint64) error {
	if seq == 0 {
		return b.Commit(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, deadStream)
	if err != nil {
		return err
	}
	if err := stream.DeleteMsg(ctx, seq); err != nil && !isGone(err) {
		return err
	}
	return b.Commit(ctx)
}

// isGone says that a message was not there to be deleted.
func isGone(err error) bool {
	const deleteFailed, sequenceNotFound = 10057, 10043
	api, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) ||
		ok && (api.ErrorCode == deleteFailed || api.ErrorCode == sequenceNotFound)
}
