// Package work is the work queues of the agents' network on one bus: queues, claims with
// leases, results and dead letters.
//
// The record of an item is the only authority on who holds it. Every change names the revision that it replaces, so
// of two concurrent changes one fails. A claim has a token that grows with each claim of the item; older tokens are
// refused. The queue's message only delivers the item to a worker, and again when its lease has ended.
package work

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// ItemState is the state of an item of work.
type ItemState string

// The states of an item.
const (
	Queued    ItemState = "queued"    // waits for a worker
	Claimed   ItemState = "claimed"   // a worker has it
	Completed ItemState = "completed" // there is a result
	Dead      ItemState = "dead"      // in the dead letters
	Discarded ItemState = "discarded" // was in the dead letters, or withdrawn

	// Forwarding is the state of an item that is being submitted to another bus, and may
	// be there already: no worker of this bus gets it any more.
	Forwarding ItemState = "forwarding"
	// Forwarded is the state of an item that another bus has.
	Forwarded ItemState = "forwarded"
)

// FailureReason says why an item is in the dead letters.
type FailureReason string

// The reasons.
const (
	TimedOut     FailureReason = "timeout"         // the last worker's lease ended
	AgentOffline FailureReason = "agent-offline"   // the last worker went offline
	Refused      FailureReason = "explicit-reject" // a worker refused it
)

// The limits of items, in bytes.
const (
	maxOrder  = 256 << 10 // an item that another program submits
	maxRaw    = 64 << 10  // what is kept of one that is longer or invalid
	maxResult = 256 << 10 // a result's JSON
	maxNote   = 4 << 10   // a summary, or a reason to reject

	sendAttempts = 3
)

// Order is an item as a queue's message: the offer, the submitter, and the attempts before.
type Order struct {
	TaskID               string          `json:"taskId"`
	Description          string          `json:"taskDescription"`
	RequiredCapabilities []string        `json:"requiredCapabilities"`
	Priority             *float64        `json:"priority,omitempty"`
	Deadline             string          `json:"deadline,omitempty"`
	ContextData          json.RawMessage `json:"contextData,omitempty"`

	SubmitterGUID   string `json:"submitterGuid,omitempty"`
	SubmitterHandle string `json:"submitterHandle,omitempty"`
	SubmittedAt     string `json:"submittedAt,omitempty"`
	// Submission distinguishes a repeated submission from a second item with the same
	// id; Generation counts the retries from the dead letters.
	Submission string `json:"submission,omitempty"`
	Generation int    `json:"generation,omitempty"`
	Attempts   int    `json:"attempts,omitempty"` // before this generation
	Claims     int    `json:"claims,omitempty"`   // on another bus, before it was forwarded
}

// record is the stored record of an item.
type record struct {
	Order
	Capability string    `json:"capability"`
	State      ItemState `json:"state"`
	// QueueSequence is the queue's message that delivers the item. Any other message for it is a duplicate.
	QueueSequence uint64 `json:"queueSequence"`

	Deliveries int `json:"deliveries"` // attempts, including those before
	// MaxAttempts is the limit of the process that claimed the item first, so that all processes apply the same one;
	// 0 before.
	MaxAttempts int `json:"maxAttempts,omitempty"`
	// Passes are deliveries of the queue's message that were no attempts: no worker
	// waited for it any more, or one held the item.
	Passes       int    `json:"passes,omitempty"`
	Token        int    `json:"token"` // of the last claim
	Holder       string `json:"holder,omitempty"`
	HolderHandle string `json:"holderHandle,omitempty"`
	ClaimedAt    string `json:"claimedAt,omitempty"`
	LeaseUntil   string `json:"leaseUntil,omitempty"`
	LeaseSince   string `json:"leaseSince,omitempty"` // when it was granted or extended; "" if a former version has done that
	AckSubject   string `json:"ackSubject,omitempty"` // of the message that the holder received

	Success    bool            `json:"success,omitempty"`
	Summary    string          `json:"resultSummary,omitempty"`
	Result     json.RawMessage `json:"resultData,omitempty"`
	FinishedAt string          `json:"finishedAt,omitempty"`

	Reason FailureReason `json:"failureReason,omitempty"` // of the last failure
	Detail string        `json:"failureDetail,omitempty"`
	// DeadSequence is the message in the dead letters, 0 until it is stored.
	DeadSequence uint64 `json:"deadSequence,omitempty"`
}

// Item is an item's record with its revision, 0 where it is not stored yet.
type Item struct {
	record
	revision uint64
}

// finished reports whether nothing more happens to the item on this bus, unless somebody retries it.
func (x record) finished() bool {
	return x.State == Completed || x.State == Dead || x.State == Discarded || x.State == Forwarded
}

// Service is the work on one bus. It is safe for concurrent use once the Store is started.
type Service struct {
	reg *registry.Registry
	cfg store.Config

	mu        sync.Mutex
	consumers map[string]jetstream.Consumer // of the queues, by capability
}

// New returns the work of a registry's bus. It adds to what the Store prepares.
func New(reg *registry.Registry) *Service {
	s := &Service{reg: reg, cfg: reg.Config(), consumers: map[string]jetstream.Consumer{}}
	reg.Prepare(func(ctx context.Context, b *bus.Bus) error {
		s.forgetConsumers() // it may be another server
		return reg.EnsureStreams(ctx, b, jetstream.StreamConfig{
			Name:        store.DeadStream,
			Description: "Work that failed",
			Subjects:    []string{store.DeadSubject},
			MaxAge:      s.cfg.DeadLetterTTL,
			Duplicates:  min(s.cfg.DeadLetterTTL, 24*time.Hour),
			AllowDirect: true,
		}, jetstream.StreamConfig{
			Name:              store.ItemStream,
			Description:       "Work: who holds it, and what came of it",
			Subjects:          []string{store.ItemSubject + "*"},
			MaxMsgsPerSubject: 1,
			AllowMsgTTL:       true,
			AllowDirect:       true,
		})
	})
	return s
}

// Worker is an agent's access to the work on one bus. It is safe for concurrent use.
type Worker struct {
	svc   *Service
	agent *registry.Agent
}

// Worker returns the access of an agent.
func (s *Service) Worker(agent *registry.Agent) *Worker { return &Worker{s, agent} }

// taskKey is the last token of the subject of an item's record: task ids are free text.
func taskKey(taskID string) string { return store.Digest(taskID) }

func itemKey(taskID string) store.Key {
	return store.Key{Stream: store.ItemStream, Subject: store.ItemSubject + taskKey(taskID)}
}

// Find returns an item; nil if there is none.
func (s *Service) Find(ctx context.Context, taskID string) (*Item, error) {
	b, err := s.reg.Connected()
	if err != nil {
		return nil, err
	}
	v, err := itemKey(taskID).Get(ctx, b)
	if err != nil || !v.Exists() {
		return nil, err
	}
	x := &Item{revision: v.Revision}
	if err := json.Unmarshal(v.Data, &x.record); err != nil {
		return nil, fmt.Errorf("the record of %s: %w", store.Quote(taskID), err)
	}
	return x, nil
}

var errUnchanged = errors.New("the item's record stays as it is")

// change has f change the latest record of an item, which is nil if there is none, and saves what f returns, unless
// that is nil; with errUnchanged it returns it without saving. It starts again if somebody else changes the record
// meanwhile.
func (s *Service) change(ctx context.Context, taskID string, f func(*Item) (*Item, error)) (*Item, error) {
	for range store.MaxConflicts {
		x, err := s.Find(ctx, taskID)
		if err == nil {
			x, err = f(x)
		}
		if err == nil && x != nil {
			err = s.save(ctx, x)
		}
		switch {
		case err == nil, errors.Is(err, errUnchanged):
			return x, nil
		case !errors.Is(err, store.ErrConflict):
			return nil, err
		}
	}
	return nil, fmt.Errorf("change %s: %w", store.Quote(taskID), store.ErrConflict)
}

// save replaces a record's revision. It sets a TTL for finished items.
func (s *Service) save(ctx context.Context, x *Item) error {
	b, err := s.reg.Connected()
	if err != nil {
		return err
	}
	var opts []jetstream.PublishOpt
	if x.finished() {
		ttl := s.cfg.DeadLetterTTL
		if x.State == Forwarded {
			ttl = 2*s.cfg.AckTimeout + 10*time.Minute // until the queue cannot deliver it any more
		}
		opts = append(opts, jetstream.WithMsgTTL(max(ttl.Truncate(time.Second), time.Second)))
	}
	revision, err := itemKey(x.TaskID).Put(ctx, b, x.record, x.revision, opts...)
	if err != nil {
		return err
	}
	x.revision = revision
	return nil
}

// Submission is work for a queue.
type Submission struct {
	mail.Offer // its TaskID is generated where it is empty
	// Capability names the queue; it is the first required capability where it is empty.
	Capability string
}

// Order checks a submission and returns it as the agent's, with the queue's name.
func (w *Worker) Order(sub Submission) (o Order, capability string, err error) {
	if sub.Capability == "" && len(sub.RequiredCapabilities) > 0 {
		sub.Capability = sub.RequiredCapabilities[0]
	}
	if capability, err = store.QueueName(sub.Capability); err != nil {
		return o, "", err
	}
	sub.TaskID = cmp.Or(sub.TaskID, uuid.NewString())
	if len(sub.RequiredCapabilities) == 0 {
		sub.RequiredCapabilities = []string{sub.Capability}
	}
	now := w.svc.reg.Now()
	if _, err := sub.CheckMetadata(now); err != nil {
		return o, "", err
	}
	o = Order{TaskID: sub.TaskID, Description: sub.Description, RequiredCapabilities: sub.RequiredCapabilities, Priority: sub.Priority,
		Deadline: sub.Deadline, SubmitterGUID: w.agent.GUID(), SubmitterHandle: w.agent.Entry().Handle,
		SubmittedAt: store.Timestamp(now), Submission: uuid.NewString(), Generation: 1}
	if sub.ContextData != nil {
		if o.ContextData, err = json.Marshal(sub.ContextData); err != nil {
			return o, "", store.Invalid("contextData is not JSON: %v.", err)
		}
	}
	return o, capability, nil
}

// Submit adds an item to a queue and returns when it is durable. Submitting the same item
// again is no error; another one with the same id is a ConflictError. It stores the queue's
// message first, so that every item with a record can be delivered, and then the record.
func (s *Service) Submit(ctx context.Context, o Order, capability string) error {
	have, err := s.Find(ctx, o.TaskID)
	if err != nil {
		return err
	}
	if have != nil {
		if err := checkSame(have.Order, o); err != nil {
			return err
		}
		return s.reg.Commit(ctx) // the earlier attempt may have failed before its record was durable
	}
	seq, err := s.enqueue(ctx, o, capability)
	if err != nil {
		return err
	}
	err = s.save(ctx, newItem(o, capability, seq))
	if errors.Is(err, store.ErrConflict) {
		// A worker or another submitter was faster and has created the record.
		if have, err = s.Find(ctx, o.TaskID); err == nil && have != nil {
			err = checkSame(have.Order, o)
		}
	}
	if err != nil {
		return err
	}
	return s.reg.Commit(ctx)
}

func newItem(o Order, capability string, seq uint64) *Item {
	return &Item{record: record{Order: o, Capability: capability, State: Queued, QueueSequence: seq, Token: o.Claims}}
}

// checkSame returns a ConflictError if o is not the item have, submitted again.
func checkSame(have, o Order) error {
	if have.Submission == o.Submission || (have.SubmitterGUID == o.SubmitterGUID && have.Description == o.Description &&
		bytes.Equal(have.ContextData, o.ContextData) && slices.Equal(have.RequiredCapabilities, o.RequiredCapabilities)) {
		return nil
	}
	return &store.Error{Code: store.ConflictError, Message: fmt.Sprintf("There is another item of work with the id %s.", store.Quote(o.TaskID)),
		Remedy: "Choose another taskId, or leave it out."}
}

// enqueue stores an item's message in its queue.
func (s *Service) enqueue(ctx context.Context, o Order, capability string) (seq uint64, err error) {
	b, err := s.reg.Connected()
	if err != nil {
		return 0, err
	}
	if _, err := s.ensureQueue(ctx, b, capability, store.Owner(s.cfg)); err != nil {
		return 0, err
	}
	data, err := json.Marshal(o)
	if err != nil {
		return 0, err
	}
	if most := store.MaxPayload(b); int64(len(data)) > most {
		return 0, store.Invalid("The encoded item is %d bytes long; the server accepts %d.", len(data), most).
			WithRemedy("Write the long part to a file and send its path.")
	}
	retry := wait.Backoff{Most: time.Second}
	for attempt := 1; ; attempt++ {
		ack, err := b.Publish(ctx, &nats.Msg{Subject: store.QueueSubject + capability, Data: data},
			jetstream.WithMsgID(fmt.Sprintf("%s/%s/%d", taskKey(o.TaskID), o.SubmitterGUID, o.Generation)),
			jetstream.WithExpectStream(store.QueueStreamPrefix+capability))
		if err == nil {
			return ack.Sequence, nil
		}
		if attempt == sendAttempts || ctx.Err() != nil || !b.Conn().IsConnected() {
			s.forgetConsumers() // somebody may have removed the stream
			return 0, err
		}
		retry.Pause(ctx)
	}
}
