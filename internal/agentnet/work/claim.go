package work

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// Claim is an item that the caller holds until LeaseUntil.
type Claim struct {
	TaskID               string          `json:"taskId"`
	Token                int             `json:"claimToken" jsonschema:"Proves that you hold the item: pass it to extend, complete and reject"`
	Capability           string          `json:"capability"`
	Description          string          `json:"taskDescription"`
	RequiredCapabilities []string        `json:"requiredCapabilities,omitempty"`
	Priority             *float64        `json:"priority,omitempty"`
	Deadline             string          `json:"deadline,omitempty"`
	ContextData          json.RawMessage `json:"contextData,omitempty"`
	SubmitterGUID        string          `json:"submitterGuid,omitempty" jsonschema:"Whom to ask"`
	SubmitterHandle      string          `json:"submitterHandle,omitempty"`
	SubmittedAt          string          `json:"submittedAt,omitempty"`
	Attempt              int             `json:"attempt" jsonschema:"Which attempt at it this is"`
	MaxAttempts          int             `json:"maxAttempts"`
	LeaseUntil           string          `json:"leaseUntil" jsonschema:"Until then the item is yours (ISO 8601, UTC); extend_work_item gives you more time"`

	Generation int `json:"-"` // counts the retries from the dead letters, from 1
}

// Claim takes the next item of the queues on this bus and waits for up to wait at each of
// them. It returns nil if there is none.
func (w *Worker) Claim(ctx context.Context, queues []string, wait time.Duration) (*Claim, error) {
	b, err := w.agent.Ready()
	if err != nil {
		return nil, err
	}
	for _, capability := range queues {
		x, err := w.claimFrom(ctx, b, capability, wait)
		if err != nil {
			return nil, err
		}
		if x != nil {
			return x.claim(), nil
		}
	}
	return nil, nil
}

// claimFrom fetches from one queue until it gets an item that can be claimed. It moves others
// to the dead letters or acknowledges them.
func (w *Worker) claimFrom(ctx context.Context, b *bus.Bus, capability string, patience time.Duration) (*Item, error) {
	consumer, err := w.svc.existingConsumer(ctx, b, capability)
	if err != nil {
		return nil, err
	}
	if consumer == nil {
		wait.Pause(ctx, min(patience, queueRetry))
		return nil, nil
	}
	for {
		msg, err := fetchOne(consumer, patience)
		if err != nil {
			w.svc.forgetConsumers()
			return nil, err
		}
		if msg == nil {
			return nil, nil
		}
		if errors.Is(ctx.Err(), context.Canceled) { // the caller does not wait any more
			return nil, w.svc.pass(ctx, capability, msg)
		}
		// A message that was delivered is claimed even if the time to wait ends now:
		// otherwise nobody could claim it for as long as a lease.
		claiming, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*store.RequestTimeout)
		x, err := w.claim(claiming, capability, msg)
		if err == nil && x != nil { // a power cut must not take back a token that its holder has
			err = w.svc.reg.Commit(claiming)
		}
		cancel()
		if err != nil {
			return nil, err // after an error the message is delivered again when its lease has ended
		}
		if x != nil {
			return x, nil
		}
	}
}

// claim makes the agent the holder of the item that a message delivers. It returns nil if
// the item cannot be claimed.
func (w *Worker) claim(ctx context.Context, capability string, msg jetstream.Msg) (*Item, error) {
	s := w.svc
	meta, err := msg.Metadata()
	if err == nil {
		err = s.reg.RefreshTime(ctx)
	}
	if err != nil {
		return nil, err
	}
	seq := meta.Sequence.Stream
	o, invalid := decodeOrder(msg.Data(), seq, capability)
	if invalid != nil {
		s.reg.Log().Warn("an item of work cannot be read", "queue", capability, "error", invalid)
	}
	for range store.MaxConflicts {
		x, err := s.Find(ctx, o.TaskID)
		if err != nil {
			return nil, err
		}
		if x == nil { // the submitter has not written the record yet, or is another program
			x = newItem(o, capability, seq)
		}
		if invalid == nil && o.isAnother(x.Order) {
			invalid = fmt.Errorf("there is another item of work with the id %s", store.Quote(o.TaskID))
			s.reg.Log().Warn("an item of work cannot be claimed", "queue", capability, "error", invalid)
			o = unreadable(msg.Data(), seq, capability)
			continue
		}
		if invalid != nil { // no worker can ever do it
			return nil, s.bury(ctx, x, msg.Reply(), Refused, "the item is not of the queue's format: "+invalid.Error())
		}
		claimed, err := w.tryClaim(ctx, x, o, meta, msg)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if !claimed {
			return nil, err
		}
		return x, nil
	}
	return nil, store.ErrConflict
}

// tryClaim claims an item if its record allows it, and otherwise disposes of the message.
func (w *Worker) tryClaim(ctx context.Context, x *Item, o Order, meta *jetstream.MsgMetadata, msg jetstream.Msg) (bool, error) {
	s := w.svc
	now := s.reg.Now()
	switch x.verdict(o, meta.Sequence.Stream, now, s.cfg.AckTimeout) {
	case isDone, isDuplicate:
		return false, msg.DoubleAck(ctx)
	case isDying: // a process died while it buried the item
		return false, s.publishDead(ctx, x, msg.Reply())
	case isHeld:
		return false, s.putBack(ctx, x, msg)
	}
	if o.Generation > x.Generation { // the retry has not updated the record yet
		x.renew(o)
	}
	attempt := max(x.Deliveries+1, o.Attempts+int(meta.NumDelivered)-x.Passes)
	if attempt > s.maxAttempts(x.record) {
		reason := s.failureReason(ctx, x.record)
		x.Deliveries = attempt - 1
		return false, s.bury(ctx, x, msg.Reply(), reason, x.Detail)
	}
	x.Deliveries, x.MaxAttempts = attempt, cmp.Or(x.MaxAttempts, s.cfg.MaxAttempts)
	now = s.reg.Now()
	x.State, x.Holder, x.HolderHandle, x.Token = Claimed, w.agent.GUID(), w.agent.Entry().Handle, x.Token+1
	x.ClaimedAt = store.Timestamp(now)
	x.beginLease(now, s.cfg.AckTimeout)
	x.AckSubject, x.QueueSequence = msg.Reply(), meta.Sequence.Stream
	err := s.save(ctx, x)
	return err == nil, err
}

// putBack returns a message to the queue until the lease of the item's holder ends: the lease was extended, or a server
// that was killed forgot that it had delivered the message. The server ignores the acknowledgements of a delivery that it
// has forgotten, so that the holder gets this one's.
func (s *Service) putBack(ctx context.Context, x *Item, msg jetstream.Msg) error {
	if x.State == Claimed {
		if s.isOfLater(ctx, x.record) {
			x.beginLease(s.reg.Now(), s.cfg.AckTimeout)
		}
		x.Passes++
		x.AckSubject = msg.Reply()
		if err := s.save(ctx, x); err != nil {
			return err
		}
	}
	if err := msg.NakWithDelay(max(store.ParseTime(x.LeaseUntil).Sub(s.reg.Now()), time.Second)); err != nil {
		return err
	}
	now, err := s.Find(ctx, x.TaskID)
	if err == nil && now != nil && now.State == Queued { // the holder rejected it before it was put back for a whole lease
		s.acknowledge(msg.Reply(), notNow)
	}
	return err
}

// pass returns a message to the queue because its worker was cancelled, and records that this
// was no attempt at the item.
func (s *Service) pass(ctx context.Context, capability string, msg jetstream.Msg) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.RequestTimeout)
	defer cancel()
	if err := s.notePass(ctx, capability, msg); err != nil {
		s.reg.Log().Warn("a delivery that was no attempt counts as one", "queue", capability, "error", err)
	}
	return msg.Nak()
}

func (s *Service) notePass(ctx context.Context, capability string, msg jetstream.Msg) error {
	meta, err := msg.Metadata()
	if err != nil {
		return err
	}
	seq := meta.Sequence.Stream
	o, err := decodeOrder(msg.Data(), seq, capability)
	if err != nil {
		return nil //nolint:nilerr // the next claim buries it
	}
	_, err = s.change(ctx, o.TaskID, func(x *Item) (*Item, error) {
		if x == nil {
			x = newItem(o, capability, seq)
		}
		if o.isAnother(x.Order) || x.verdict(o, seq, s.reg.Now(), s.cfg.AckTimeout) != isFree {
			return nil, nil
		}
		if o.Generation > x.Generation {
			x.renew(o)
			x.QueueSequence = seq
		}
		x.Passes++
		return x, nil
	})
	return err
}

// verdict is the state of an item with respect to a queue's message for it.
type verdict int

const (
	isFree      verdict = iota // the item can be claimed
	isHeld                     // a worker has it
	isDone                     // it is finished
	isDuplicate                // another message delivers the item
	isDying                    // it is dead, but not in the dead letters yet
)

// leaseTolerance is the fraction of a lease by which the server's timer may deliver a
// message before the record's lease ends.
const leaseTolerance = 10

func (x record) verdict(o Order, seq uint64, now time.Time, lease time.Duration) verdict {
	switch x.State {
	case Completed, Discarded, Forwarded:
		return isDone
	case Forwarding:
		return isHeld
	case Dead:
		switch {
		case o.Generation > x.Generation:
			return isFree
		case o.Generation == x.Generation && x.isUnburied():
			return isDying
		}
		return isDone
	case Claimed:
		switch {
		case seq != x.QueueSequence:
			return isDuplicate
		case store.ParseTime(x.LeaseUntil).Sub(now) > min(lease/leaseTolerance, time.Second):
			return isHeld
		}
		return isFree
	}
	if o.Generation < x.Generation {
		return isDuplicate
	}
	return isFree
}

// renew begins the item's next generation.
func (x *record) renew(o Order) {
	x.Order, x.State, x.Deliveries, x.MaxAttempts, x.Passes, x.DeadSequence = o, Queued, o.Attempts, 0, 0, 0
	x.Reason, x.Detail, x.FinishedAt = "", "", ""
}

// maxAttempts is how often an item may be claimed. A retry that keeps the count allows at least one more attempt.
func (s *Service) maxAttempts(x record) int {
	return max(cmp.Or(x.MaxAttempts, s.cfg.MaxAttempts), x.Attempts+1)
}

// failureReason returns why the last attempt at an item failed.
func (s *Service) failureReason(ctx context.Context, x record) FailureReason {
	if x.State != Claimed {
		if x.Reason != "" {
			return x.Reason
		}
		return TimedOut
	}
	b, err := s.reg.Connected()
	if err != nil {
		return TimedOut
	}
	if gone, err := s.reg.IsGone(ctx, b, x.Holder); err == nil && gone {
		return AgentOffline
	}
	return TimedOut
}

// decodeOrder reads a queue's message. Also with an error it returns an order, so that the
// message can be put into the dead letters.
func decodeOrder(data []byte, seq uint64, capability string) (Order, error) {
	var o Order
	err := json.Unmarshal(data, &o)
	var object map[string]json.RawMessage
	switch {
	case err != nil:
	case len(data) > maxOrder:
		err = fmt.Errorf("it is %d bytes long, and at most %d are allowed; the first %d are kept", len(data), maxOrder, maxRaw)
	case mail.IsTaskID(o.TaskID) != "":
		err = errors.New("taskId " + mail.IsTaskID(o.TaskID))
	case len(o.ContextData) > 0 && json.Unmarshal(o.ContextData, &object) != nil:
		err = errors.New("contextData is not an object")
	}
	if err != nil {
		return unreadable(data, seq, capability), err
	}
	o.Generation = max(o.Generation, 1)
	o.Attempts = max(o.Attempts, 0)
	return o, nil
}

// unreadable returns the order of a message that has no valid one.
func unreadable(data []byte, seq uint64, capability string) Order {
	raw, _ := json.Marshal(map[string]string{"raw": strings.ToValidUTF8(string(data[:min(len(data), maxRaw)]), "\uFFFD")}) // text can be encoded
	return Order{TaskID: fmt.Sprintf("unreadable-%s-%d", capability, seq), ContextData: raw, Generation: 1}
}

// isAnother reports whether an order of another program, which names no submission, is
// not the item that has its id already.
func (o Order) isAnother(have Order) bool {
	// With a submission the submitter has checked it.
	return o.Submission == "" && o.content() != have.content()
}

// content returns what the order requests, in a canonical form.
func (o Order) content() string {
	data, _ := json.Marshal(Order{Description: o.Description, RequiredCapabilities: o.RequiredCapabilities, ContextData: o.ContextData}) // what was decoded can be encoded
	return string(data)
}
