package agentnet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// ItemState is where an item of work stands.
type ItemState string

// The states of an item.
const (
	Queued    ItemState = "queued"    // waits for a worker
	Claimed   ItemState = "claimed"   // a worker has it
	Completed ItemState = "completed" // there is a result
	Dead      ItemState = "dead"      // in the dead letters
	Discarded ItemState = "discarded" // was in the dead letters
)

// FailureReason says why an item is in the dead letters (REQ-DLQ-005).
type FailureReason string

// The reasons.
const (
	TimedOut     FailureReason = "timeout"         // the last worker let its lease end
	AgentOffline FailureReason = "agent-offline"   // the last worker has gone
	Refused      FailureReason = "explicit-reject" // a worker refused it
)

// The bounds of what other programs put into a queue, in bytes: of an item, and of
// what is kept of one that is longer or cannot be read.
const (
	maxOrder = 256 << 10
	maxRaw   = 64 << 10
)

// maxResult bounds a result, in bytes of JSON.
const maxResult = 256 << 10

// order is an item on its way through a queue: the offer (REQ-HANDOFF-003), who
// made it, and how often it was tried before.
type order struct {
	TaskID               string          `json:"taskId"`
	Description          string          `json:"taskDescription"`
	RequiredCapabilities []string        `json:"requiredCapabilities"`
	Priority             *float64        `json:"priority,omitempty"`
	Deadline             string          `json:"deadline,omitempty"`
	ContextData          json.RawMessage `json:"contextData,omitempty"`

	SubmitterGUID   string `json:"submitterGuid,omitempty"`
	SubmitterHandle string `json:"submitterHandle,omitempty"`
	SubmittedAt     string `json:"submittedAt,omitempty"`
	// Submission tells a repeated attempt to submit from a second item with the
	// same id; Generation counts the retries from the dead letters.
	Submission string `json:"submission,omitempty"`
	Generation int    `json:"generation,omitempty"`
	Attempts   int    `json:"attempts,omitempty"` // before this generation
	Claims     int    `json:"claims,omitempty"`   // on the hub's bus, before it was moved
}

// item is the record of an item: the only authority on who holds it.
type item struct {
	order
	Capability string    `json:"capability"`
	State      ItemState `json:"state"`
	// QueueSequence is the queue's message that brings the item to workers. Any
	// other message for it is a duplicate.
	QueueSequence uint64 `json:"queueSequence"`

	Deliveries int `json:"deliveries"` // attempts, with those before
	// Passes are deliveries of the queue's message that were no attempts: nobody
	// waited for it any more, or somebody held the item.
	Passes       int    `json:"passes,omitempty"`
	Token        int    `json:"token"` // of the last claim
	Holder       string `json:"holder,omitempty"`
	HolderHandle string `json:"holderHandle,omitempty"`
	ClaimedAt    string `json:"claimedAt,omitempty"`
	LeaseUntil   string `json:"leaseUntil,omitempty"`
	AckSubject   string `json:"ackSubject,omitempty"` // of the message that the holder was given

	Success    bool            `json:"success,omitempty"`
	Summary    string          `json:"resultSummary,omitempty"`
	Result     json.RawMessage `json:"resultData,omitempty"`
	FinishedAt string          `json:"finishedAt,omitempty"`

	Reason FailureReason `json:"failureReason,omitempty"` // of the last failure
	Detail string        `json:"failureDetail,omitempty"`
	// DeadSequence is the message in the dead letters, 0 until it is there.
	DeadSequence uint64 `json:"deadSequence,omitempty"`
}

// version is an item with the revision of its record, 0 where it has none yet.
type version struct {
	item
	revision uint64
}

func (n *Network) itemCell(taskID string) cell {
	return cell{itemStream, itemSubject + itemKey(taskID)}
}

// item reads an item's record; nil if there is none.
func (n *Network) item(ctx context.Context, b *bus.Bus, taskID string) (*version, error) {
	v, err := n.itemCell(taskID).read(ctx, b)
	if err != nil || !v.there() {
		return nil, err
	}
	x := &version{revision: v.revision}
	if err := json.Unmarshal(v.data, &x.item); err != nil {
		return nil, fmt.Errorf("the record of %s: %w", quote(taskID), err)
	}
	return x, nil
}

// save replaces a record's revision. Finished items are kept for a while only.
func (n *Network) save(ctx context.Context, b *bus.Bus, x *version) error {
	data, err := json.Marshal(x.item)
	if err != nil {
		return err
	}
	var opts []jetstream.PublishOpt
	if x.finished() {
		ttl := n.cfg.DeadLetterTTL
		if x.State == moved {
			ttl = n.movedTTL()
		}
		opts = append(opts, jetstream.WithMsgTTL(max(ttl.Truncate(time.Second), time.Second)))
	}
	revision, err := n.itemCell(x.TaskID).write(ctx, b, data, x.revision, opts...)
	if err != nil {
		return err
	}
	x.revision = revision
	return nil
}

// Submission is work for a queue.
type Submission struct {
	Offer
	// Capability names the queue; it is the first required capability where it
	// is empty. Offer.TaskID is made up where it is empty.
	Capability string
}

// Submit puts an item into a queue and returns its id when it is durable there.
// To submit the same item again is no error; another one of the same id is.
func (a *Agent) Submit(ctx context.Context, s Submission) (taskID string, err error) {
	b, err := a.ready()
	near := a.nearPlace()
	if err != nil && (near == nil || !isConnection(err)) {
		return "", err
	}
	if s.Capability == "" && len(s.RequiredCapabilities) > 0 {
		s.Capability = s.RequiredCapabilities[0]
	}
	capability, err := queueName(s.Capability)
	if err != nil {
		return "", err
	}
	s.TaskID = or(s.TaskID, uuid.NewString())
	if len(s.RequiredCapabilities) == 0 {
		s.RequiredCapabilities = []string{s.Capability}
	}
	if _, err := checkMetadata(WorkOffer, s.metadata(), a.net.clock.now()); err != nil {
		return "", err
	}
	o := order{TaskID: s.TaskID, Description: s.Description, RequiredCapabilities: s.RequiredCapabilities, Priority: s.Priority,
		Deadline: s.Deadline, SubmitterGUID: a.guid, SubmitterHandle: a.Entry().Handle,
		SubmittedAt: timestamp(a.net.clock.now()), Submission: uuid.NewString(), Generation: 1}
	if s.ContextData != nil {
		if o.ContextData, err = json.Marshal(s.ContextData); err != nil {
			return "", invalid("contextData is not JSON: %v.", err)
		}
	}
	if near != nil {
		err = a.entrust(ctx, near, o, capability)
	} else {
		err = a.net.submit(ctx, b, o, capability)
	}
	if err != nil {
		return "", connectionError(err)
	}
	return s.TaskID, nil
}

// submit stores the queue's message first, so that whatever has a record can be
// worked on, and then the record.
func (n *Network) submit(ctx context.Context, b *bus.Bus, o order, capability string) error {
	have, err := n.item(ctx, b, o.TaskID)
	if err != nil {
		return err
	}
	if have != nil {
		return sameItem(have.order, o)
	}
	seq, err := n.enqueue(ctx, b, o, capability)
	if err != nil {
		return err
	}
	x := &version{item: newItem(o, capability, seq)}
	err = n.save(ctx, b, x)
	if errors.Is(err, errConflict) {
		// A worker was quicker and has made the record, or another submitter.
		if have, err = n.item(ctx, b, o.TaskID); err == nil && have != nil {
			err = sameItem(have.order, o)
		}
	}
	if err != nil {
		return err
	}
	return b.Commit(ctx)
}

func newItem(o order, capability string, seq uint64) item {
	return item{order: o, Capability: capability, State: Queued, QueueSequence: seq, Token: o.Claims}
}

// sameItem tells an item that is submitted again from another of the same id.
func sameItem(have, o order) error {
	if have.Submission == o.Submission || (have.SubmitterGUID == o.SubmitterGUID && have.Description == o.Description &&
		bytes.Equal(have.ContextData, o.ContextData) && slices.Equal(have.RequiredCapabilities, o.RequiredCapabilities)) {
		return nil
	}
	return &Error{Code: ConflictError, Message: fmt.Sprintf("There is another item of work with the id %s.", quote(o.TaskID)),
		Remedy: "Choose another taskId, or leave it out."}
}

// enqueue stores an item's message in its queue.
func (n *Network) enqueue(ctx context.Context, b *bus.Bus, o order, capability string) (seq uint64, err error) {
	if _, err := n.queueStream(ctx, b, capability); err != nil {
		return 0, err
	}
	data, err := json.Marshal(o)
	if err != nil {
		return 0, err
	}
	if most := b.Conn().MaxPayload() - 1024; int64(len(data)) > most {
		return 0, invalid("The item makes %d bytes on the network; the server takes %d.", len(data), most).
			WithRemedy("Write the long part to a file and send its path.")
	}
	retry := wait.Backoff{Most: time.Second}
	for attempt := 1; ; attempt++ {
		ack, err := b.Publish(ctx, &nats.Msg{Subject: queueSubject + capability, Data: data},
			jetstream.WithMsgID(fmt.Sprintf("%s/%s/%d", itemKey(o.TaskID), o.SubmitterGUID, o.Generation)),
			jetstream.WithExpectStream(queuePrefix+capability))
		if err == nil {
			return ack.Sequence, nil
		}
		if attempt == sendAttempts || ctx.Err() != nil || !b.Conn().IsConnected() {
			n.queue.forget() // somebody may have removed the stream
			return 0, err
		}
		retry.Pause(ctx)
	}
}
