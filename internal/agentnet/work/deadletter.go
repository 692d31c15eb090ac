package work

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/store"
)

// The limits of a list of dead letters.
const (
	DefaultDeadLimit = 50
	MaxDeadLimit     = 1000
)

// DeadLetter is work that failed.
type DeadLetter struct {
	TaskID            string          `json:"originalTaskId"`
	Subject           string          `json:"originalSubject"`
	Attempts          int             `json:"deliveryAttempts"`
	LastAttemptAt     string          `json:"lastAttemptAt"`
	LastAssignedAgent string          `json:"lastAssignedAgent"` // GUID, empty if no agent ever had it
	Reason            FailureReason   `json:"failureReason"`
	Payload           json.RawMessage `json:"originalPayload"` // the offer

	Detail        string `json:"failureDetail,omitempty"`
	SubmitterGUID string `json:"submitterGuid,omitempty"`
	DeadAt        string `json:"deadAt,omitempty"`
	Generation    int    `json:"generation,omitempty"`
}

func (x record) deadLetter() (DeadLetter, error) {
	payload, err := json.Marshal(x.Order)
	if err != nil {
		return DeadLetter{}, err
	}
	return DeadLetter{TaskID: x.TaskID, Subject: store.QueueSubject + x.Capability, Attempts: x.Deliveries,
		LastAttemptAt: cmp.Or(x.ClaimedAt, x.FinishedAt), LastAssignedAgent: x.Holder, Reason: x.Reason, Payload: payload,
		Detail: x.Detail, SubmitterGUID: x.SubmitterGUID, DeadAt: x.FinishedAt, Generation: x.Generation}, nil
}

// die notes that the item has failed for good.
func (x *record) die(reason FailureReason, detail string, now time.Time) {
	x.State, x.Reason, x.Detail, x.DeadSequence, x.FinishedAt = Dead, reason, detail, 0, store.Timestamp(now)
}

// bury moves an item to the dead letters. Once its record is written, any process can
// complete the rest, should this one die.
func (s *Service) bury(ctx context.Context, x *Item, ackSubject string, reason FailureReason, detail string) error {
	x.die(reason, detail, s.reg.Now())
	if err := s.save(ctx, x); err != nil {
		return err
	}
	return s.publishDead(ctx, x, ackSubject)
}

// publishDead puts a dead item into the dead letters, notes its sequence number, and
// removes the item from its queue.
func (s *Service) publishDead(ctx context.Context, x *Item, ackSubject string) error {
	b, err := s.reg.Connected()
	if err != nil {
		return err
	}
	letter, err := x.deadLetter()
	if err != nil {
		return err
	}
	data, err := json.Marshal(letter)
	if err != nil {
		return err
	}
	ack, err := b.Publish(ctx, &nats.Msg{Subject: store.DeadSubject, Data: data}, jetstream.WithExpectStream(store.DeadStream),
		jetstream.WithMsgID(fmt.Sprintf("%s/%d", taskKey(x.TaskID), x.Generation)))
	if err != nil {
		return err
	}
	x.DeadSequence = ack.Sequence
	if err := s.save(ctx, x); err != nil && !errors.Is(err, store.ErrConflict) {
		return err
	}
	s.acknowledge(ackSubject, "+TERM dead letter")
	s.reg.Log().Warn("an item of work has failed and is in the dead letters", "taskId", x.TaskID, "queue", x.Capability,
		"attempts", x.Deliveries, "reason", x.Reason, "lastAgent", x.Holder)
	return nil
}

// DeadLetters lists failed work on this bus, oldest first; of one queue if capability is
// not empty. limit 0 is DefaultDeadLimit. more says that there is more than the limit.
func (s *Service) DeadLetters(ctx context.Context, limit int, capability string) (list []DeadLetter, more bool, err error) {
	b, err := s.reg.Connected()
	if err != nil {
		return nil, false, err
	}
	limit = cmp.Or(limit, DefaultDeadLimit)
	if limit < 1 || limit > MaxDeadLimit {
		return nil, false, store.Invalid("The limit %d is not allowed.", limit).WithRemedy("Use a limit from 1 to %d.", MaxDeadLimit)
	}
	subject := ""
	if capability != "" {
		if capability, err = store.QueueName(capability); err != nil {
			return nil, false, err
		}
		subject = store.QueueSubject + capability
	}
	list = []DeadLetter{}
	err = store.Scan(ctx, b, store.DeadStream, store.DeadSubject, 1, func(m store.Message) bool {
		var letter DeadLetter
		if err := json.Unmarshal(m.Data, &letter); err != nil || letter.TaskID == "" {
			s.reg.Log().Error("a dead letter of the wrong format is skipped", "sequence", m.Sequence, "error", err)
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
	if err == nil {
		list, err = s.stillDead(ctx, list)
	}
	return list, more, store.AsError(err)
}

// stillDead drops the letters of items that a process has retried or discarded and died
// before it removed the letter.
func (s *Service) stillDead(ctx context.Context, list []DeadLetter) ([]DeadLetter, error) {
	var failed error
	list = slices.DeleteFunc(list, func(l DeadLetter) bool {
		x, err := s.Find(ctx, l.TaskID)
		if err != nil {
			failed = err
		}
		return x != nil && (x.State != Dead || x.Generation != max(l.Generation, 1))
	})
	return list, failed
}

// RetryDeadLetter puts a failed item on this bus into its queue again. Unless
// resetAttempts, the attempts so far count, but it gets at least one more.
func (s *Service) RetryDeadLetter(ctx context.Context, taskID string, resetAttempts bool) (DeadLetter, error) {
	x, letter, err := s.deadItem(ctx, taskID)
	if err != nil {
		return DeadLetter{}, err
	}
	o, generation, dead := x.Order, x.Generation+1, x.DeadSequence
	o.Generation, o.Attempts = generation, x.Deliveries
	if resetAttempts {
		o.Attempts = 0
	}
	seq, err := s.enqueue(ctx, o, x.Capability)
	if err != nil {
		return DeadLetter{}, store.AsError(err)
	}
	_, err = s.change(ctx, taskID, func(x *Item) (*Item, error) {
		if x == nil || x.Generation >= generation {
			return nil, nil // a worker or another retry was faster
		}
		x.renew(o)
		x.QueueSequence = seq
		return x, nil
	})
	if err == nil {
		err = s.removeDead(ctx, dead)
	}
	return letter, store.AsError(err)
}

// DiscardDeadLetter removes a failed item on this bus for good.
func (s *Service) DiscardDeadLetter(ctx context.Context, taskID string) (DeadLetter, error) {
	x, letter, err := s.deadItem(ctx, taskID)
	if err != nil {
		return DeadLetter{}, err
	}
	x.State = Discarded
	err = s.save(ctx, x)
	if errors.Is(err, store.ErrConflict) {
		return DeadLetter{}, &store.Error{Code: store.ConflictError, Message: fmt.Sprintf("Somebody else has just taken %s out of the dead letters.", store.Quote(taskID)),
			Remedy: "See list_dead_letter_items."}
	}
	if err == nil {
		err = s.removeDead(ctx, x.DeadSequence)
	}
	return letter, store.AsError(err)
}

// deadItem finds an item that is in the dead letters.
func (s *Service) deadItem(ctx context.Context, taskID string) (*Item, DeadLetter, error) {
	x, err := s.Find(ctx, taskID)
	if err != nil {
		return nil, DeadLetter{}, store.AsError(err)
	}
	if x == nil || x.State != Dead {
		return nil, DeadLetter{}, &store.Error{Code: store.NotFoundError, Message: fmt.Sprintf("There is no dead letter of the task %s.", store.Quote(taskID)),
			Remedy: "list_dead_letter_items lists the dead letters."}
	}
	letter, err := x.deadLetter()
	return x, letter, err
}

func (s *Service) removeDead(ctx context.Context, seq uint64) error {
	b, err := s.reg.Connected()
	if err != nil {
		return err
	}
	if seq != 0 {
		if err := store.DeleteMessage(ctx, b, store.DeadStream, seq); err != nil {
			return err
		}
	}
	return b.Commit(ctx)
}
