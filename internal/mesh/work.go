package mesh

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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
	return &Error{Category: ConflictError, Message: fmt.Sprintf("There is another item of work with the id %s.", quote(o.TaskID)),
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
			remedy("Write the long part to a file and send its path.")
	}
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
		pause(ctx, bus.Backoff(attempt, time.Second))
	}
}

// Claim is an item that the caller holds until LeaseUntil.
type Claim struct {
	TaskID               string          `json:"taskId"`
	Token                int             `json:"claimToken"` // proves the claim
	Capability           string          `json:"capability"`
	Description          string          `json:"taskDescription"`
	RequiredCapabilities []string        `json:"requiredCapabilities"`
	Priority             *float64        `json:"priority,omitempty"`
	Deadline             string          `json:"deadline,omitempty"`
	ContextData          json.RawMessage `json:"contextData,omitempty"`
	SubmitterGUID        string          `json:"submitterGuid,omitempty"`
	SubmitterHandle      string          `json:"submitterHandle,omitempty"`
	SubmittedAt          string          `json:"submittedAt,omitempty"`
	Attempt              int             `json:"attempt"`
	MaxAttempts          int             `json:"maxAttempts"`
	LeaseUntil           string          `json:"leaseUntil"`
}

func (n *Network) claimOf(x *version) *Claim {
	return &Claim{x.TaskID, x.Token, x.Capability, x.Description, x.RequiredCapabilities, x.Priority, x.Deadline, x.ContextData,
		x.SubmitterGUID, x.SubmitterHandle, x.SubmittedAt, x.Deliveries, n.cfg.MaxAttempts, x.LeaseUntil}
}

// Claim takes the next item of the queues of the capabilities, the agent's own
// where none are named, and waits for one until ctx ends; then it returns nil.
// Of all who wait for an item one is given it (REQ-WORKQUEUE-001).
func (a *Agent) Claim(ctx context.Context, capabilities []string) (*Claim, error) {
	_, outage := a.ready()
	if outage != nil && (!isConnection(outage) || a.nearby() == nil) {
		return nil, outage
	}
	queues, err := a.queuesOf(capabilities)
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		claim, err := a.claimAnywhere(ctx, queues, first)
		if claim != nil {
			return claim, nil
		}
		if ctx.Err() != nil {
			return nil, nil
		}
		if err != nil {
			return nil, connectionError(err)
		}
	}
}

// claimAnywhere asks all queues once: first those of the hub's bus, where there is
// only what was submitted while the network could not be reached, and then those of
// the network.
func (a *Agent) claimAnywhere(ctx context.Context, queues []string, first bool) (*Claim, error) {
	_, outage := a.ready()
	if near := a.nearby(); near != nil {
		var patience time.Duration
		if outage != nil {
			patience = a.patience(ctx, len(queues), first)
		}
		claim, err := near.claimOnce(ctx, queues, patience)
		if claim != nil || outage != nil && isConnection(outage) {
			return claim, err
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("the queues on the hub's bus cannot be looked at", "error", err)
		}
	}
	if outage != nil {
		return nil, outage
	}
	claim, err := a.claimOnce(ctx, queues, a.patience(ctx, len(queues), first))
	if err != nil && a.nearby() != nil {
		if _, outage := a.ready(); outage != nil {
			return claim, nil // the link has just gone down: go on here
		}
	}
	return claim, err
}

// claimOnce asks the queues of this Agent's own bus, each as long as patience.
func (a *Agent) claimOnce(ctx context.Context, queues []string, patience time.Duration) (*Claim, error) {
	b, err := a.ready()
	if err != nil {
		return nil, err
	}
	for _, capability := range queues {
		claim, err := a.claimFrom(ctx, b, capability, patience)
		if claim != nil || err != nil {
			return claim, err
		}
	}
	return nil, nil
}

func (a *Agent) queuesOf(capabilities []string) ([]string, error) {
	explicit := len(capabilities) > 0
	if !explicit {
		capabilities = a.Entry().Capabilities
	}
	var queues []string
	for _, c := range capabilities {
		name, err := queueName(c)
		if err != nil && explicit {
			return nil, err
		}
		if err == nil && !slices.Contains(queues, name) {
			queues = append(queues, name)
		}
	}
	if len(queues) == 0 {
		return nil, invalid("There is no queue to claim from.").remedy("Name a capability, or register with some.")
	}
	return queues, nil
}

// patience is how long to wait at one queue: of several, each gets its turn.
func (a *Agent) patience(ctx context.Context, queues int, first bool) time.Duration {
	const (
		alone = 2 * time.Second // how long a cancelled call may linger
		shift = 250 * time.Millisecond
	)
	wait := alone
	switch {
	case queues > 1 && first:
		return 0
	case queues > 1:
		wait = shift
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, max(time.Until(deadline), 0))
	}
	return wait
}

// claimFrom asks one queue for an item. What comes and is not to be worked on,
// for it is done or has failed too often, is cleared away on the spot.
func (a *Agent) claimFrom(ctx context.Context, b *bus.Bus, capability string, wait time.Duration) (*Claim, error) {
	consumer, err := a.net.queueConsumer(ctx, b, capability)
	if err != nil {
		return nil, err
	}
	if consumer == nil {
		pause(ctx, min(wait, queueRetry))
		return nil, nil
	}
	for {
		msg, err := fetchOne(consumer, wait)
		if err != nil {
			a.net.queue.forget()
			return nil, err
		}
		if msg == nil {
			return nil, nil
		}
		if errors.Is(ctx.Err(), context.Canceled) { // nobody waits for it any more
			return nil, a.net.pass(ctx, b, capability, msg)
		}
		x, err := a.net.seize(ctx, b, a, capability, msg)
		if err != nil {
			return nil, err // the message comes again when its lease has ended
		}
		if x != nil {
			return a.net.claimOf(x), nil
		}
	}
}

// seize makes the agent the holder of the item that a message brings, or
// returns nil if the item is not to be had.
func (n *Network) seize(ctx context.Context, b *bus.Bus, a *Agent, capability string, msg jetstream.Msg) (*version, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, err
	}
	o, err := decodeOrder(msg.Data(), meta.Sequence.Stream, capability)
	if err != nil {
		n.log.Warn("an item of work cannot be read", "queue", capability, "error", err)
	}
	for range maxConflicts {
		x, readErr := n.item(ctx, b, o.TaskID)
		if readErr != nil {
			return nil, readErr
		}
		if x == nil { // the submitter has not come so far, or is another program
			x = &version{item: newItem(o, capability, meta.Sequence.Stream)}
		}
		if err == nil && o.isAnother(x.order) {
			err = fmt.Errorf("there is another item of work with the id %s", quote(o.TaskID))
			n.log.Warn("an item of work cannot be taken", "queue", capability, "error", err)
			o = unreadable(msg.Data(), meta.Sequence.Stream, capability)
			continue
		}
		if err != nil { // it can never be worked on
			return nil, n.bury(ctx, b, x, msg.Reply(), Refused, "the item is not of the queue's format: "+err.Error())
		}
		taken, seizeErr := n.trySeize(ctx, b, a, x, o, meta, msg)
		if errors.Is(seizeErr, errConflict) {
			continue
		}
		if !taken {
			return nil, seizeErr
		}
		return x, nil
	}
	return nil, errConflict
}

// pass gives a message back that nobody waits for any more. That was no attempt at
// its item.
func (n *Network) pass(ctx context.Context, b *bus.Bus, capability string, msg jetstream.Msg) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	if err := n.notePass(ctx, b, capability, msg); err != nil {
		n.log.Warn("a delivery that was no attempt counts as one", "queue", capability, "error", err)
	}
	return msg.Nak()
}

func (n *Network) notePass(ctx context.Context, b *bus.Bus, capability string, msg jetstream.Msg) error {
	meta, err := msg.Metadata()
	if err != nil {
		return err
	}
	o, err := decodeOrder(msg.Data(), meta.Sequence.Stream, capability)
	if err != nil {
		return nil //nolint:nilerr // whoever claims it next buries it
	}
	for range maxConflicts {
		x, err := n.item(ctx, b, o.TaskID)
		if err != nil {
			return err
		}
		if x == nil {
			x = &version{item: newItem(o, capability, meta.Sequence.Stream)}
		}
		if o.isAnother(x.order) || verdict(x.item, o, meta.Sequence.Stream, n.clock.now(), n.cfg.AckTimeout) != isFree {
			return nil
		}
		if o.Generation > x.Generation {
			x.renew(o)
			x.QueueSequence = meta.Sequence.Stream
		}
		x.Passes++
		if err := n.save(ctx, b, x); !errors.Is(err, errConflict) {
			return err
		}
	}
	return errConflict
}

// trySeize decides by the record what is to be done with a message.
func (n *Network) trySeize(ctx context.Context, b *bus.Bus, a *Agent, x *version, o order, meta *jetstream.MsgMetadata, msg jetstream.Msg) (bool, error) {
	switch verdict(x.item, o, meta.Sequence.Stream, n.clock.now(), n.cfg.AckTimeout) {
	case isDone, isDuplicate:
		return false, msg.DoubleAck(ctx)
	case isUnburied: // the process that buried it died half way
		return false, n.publishDead(ctx, b, x, msg.Reply())
	case isHeld: // its lease was extended meanwhile
		if x.State == Claimed {
			x.Passes++
			if err := n.save(ctx, b, x); err != nil {
				return false, err
			}
		}
		return false, msg.NakWithDelay(max(parseTime(x.LeaseUntil).Sub(n.clock.now()), time.Second))
	}
	if o.Generation > x.Generation { // a retry whose author has not come so far
		x.renew(o)
	}
	attempt := max(x.Deliveries+1, o.Attempts+int(meta.NumDelivered)-x.Passes) // REQ-DLQ-002
	if attempt > n.mostAttempts(x.order) {
		reason := n.whyFailed(ctx, b, x.item)
		x.Deliveries = attempt - 1
		return false, n.bury(ctx, b, x, msg.Reply(), reason, x.Detail)
	}
	x.Deliveries = attempt
	now := n.clock.now()
	x.State, x.Holder, x.HolderHandle, x.Token = Claimed, a.guid, a.Entry().Handle, x.Token+1
	x.ClaimedAt, x.LeaseUntil = timestamp(now), timestamp(now.Add(n.cfg.AckTimeout))
	x.AckSubject, x.QueueSequence = msg.Reply(), meta.Sequence.Stream
	if err := n.save(ctx, b, x); err != nil {
		return false, err
	}
	return true, nil
}

// What a queue's message means by the record of its item.
type meaning int

const (
	isFree      meaning = iota // it can be claimed
	isHeld                     // somebody has it
	isDone                     // it is finished
	isDuplicate                // another message brings the item
	isUnburied                 // it is dead, but not in the dead letters yet
)

// leaseTolerance is how much earlier than by the record a lease may end by the
// server's own timer, as a part of it.
const leaseTolerance = 10

func verdict(x item, o order, seq uint64, now time.Time, lease time.Duration) meaning {
	newer := o.Generation > x.Generation
	switch x.State {
	case Completed, Discarded, moved:
		return isDone
	case onItsWay:
		return isHeld
	case Dead:
		switch {
		case newer:
			return isFree
		case o.Generation == x.Generation && x.DeadSequence == 0:
			return isUnburied
		}
		return isDone
	case Claimed:
		switch {
		case seq != x.QueueSequence:
			return isDuplicate
		case parseTime(x.LeaseUntil).Sub(now) > min(lease/leaseTolerance, time.Second):
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
func (x *version) renew(o order) {
	x.order, x.State, x.Deliveries, x.Passes, x.DeadSequence = o, Queued, o.Attempts, 0, 0
	x.Reason, x.Detail, x.FinishedAt = "", "", ""
}

// mostAttempts is how often an item may be given to a worker. A retry that
// keeps the count has one more at least.
func (n *Network) mostAttempts(o order) int { return max(n.cfg.MaxAttempts, o.Attempts+1) }

// whyFailed says why the last attempt at an item came to nothing.
func (n *Network) whyFailed(ctx context.Context, b *bus.Bus, x item) FailureReason {
	if x.State != Claimed {
		return or(x.Reason, TimedOut)
	}
	if s, err := n.seat(ctx, b, x.Holder); err == nil && (s == nil || n.liveness(*s) == Gone) {
		return AgentOffline
	}
	return TimedOut
}

// decodeOrder reads a queue's message. What cannot be read has an order all the
// same, so that it can be put into the dead letters.
func decodeOrder(data []byte, seq uint64, capability string) (order, error) {
	var o order
	err := json.Unmarshal(data, &o)
	var object map[string]json.RawMessage
	switch {
	case err != nil:
	case len(data) > maxOrder:
		err = fmt.Errorf("it is %d bytes long, and at most %d are allowed; the first %d are kept", len(data), maxOrder, maxRaw)
	case isTaskID(o.TaskID) != "":
		err = errors.New("taskId " + isTaskID(o.TaskID))
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

// unreadable is the order of a message that brings none, or one that cannot be taken.
func unreadable(data []byte, seq uint64, capability string) order {
	raw, _ := json.Marshal(map[string]string{"raw": strings.ToValidUTF8(string(data[:min(len(data), maxRaw)]), "\uFFFD")}) // of text it cannot fail
	return order{TaskID: fmt.Sprintf("unreadable-%s-%d", capability, seq), ContextData: raw, Generation: 1}
}

// isAnother says that the item of another program, which says nothing of who submits
// it, is not the one that has its id already.
func (o order) isAnother(have order) bool {
	if o.Submission != "" {
		return false // its submitter was told
	}
	return o.content() != have.content()
}

// content is what there is to do, in one form.
func (o order) content() string {
	data, _ := json.Marshal(order{Description: o.Description, RequiredCapabilities: o.RequiredCapabilities, ContextData: o.ContextData}) // what was decoded can be encoded
	return string(data)
}

// held returns an item that the agent holds by a token, or why it does not.
func (a *Agent) held(ctx context.Context, b *bus.Bus, taskID string, token int) (*version, error) {
	x, err := a.net.item(ctx, b, taskID)
	switch {
	case err != nil:
		return nil, connectionError(err)
	case x == nil:
		return nil, noItem(taskID)
	case x.State == Claimed && x.Holder == a.guid && x.Token == token:
		return x, nil
	}
	e := &Error{Category: ConflictError, Remedy: "Do not go on with it; claim other work with claim_work_item."}
	switch {
	case x.State == Claimed && x.Holder == a.guid:
		e.Message = fmt.Sprintf("The claim %d of %s is over: you have claimed the item again since, with the token %d.", token, quote(taskID), x.Token)
		e.Remedy = "Use the newer token."
	case x.State == Claimed:
		e.Message = fmt.Sprintf("You do not hold %s any more: your lease ended, and %s has claimed it.", quote(taskID), or(x.HolderHandle, "another agent"))
	case x.State == Queued || x.State == onItsWay:
		e.Message = fmt.Sprintf("You do not hold %s: it waits in its queue for a worker.", quote(taskID))
	case x.State == Completed:
		e.Message = fmt.Sprintf("%s is completed already, by %s.", quote(taskID), or(x.HolderHandle, "another agent"))
	default:
		e.Message = fmt.Sprintf("You do not hold %s any more: it has failed too often, or was refused, and is in the dead letters.", quote(taskID))
	}
	return nil, e
}

func noItem(taskID string) *Error {
	return &Error{Category: NotFoundError, Message: fmt.Sprintf("There is no item of work %s.", quote(taskID)),
		Remedy: "Check the taskId; finished items are kept for some days only."}
}

// Extend lengthens the lease of an item that the agent holds to the full time
// from now, and returns when it ends.
func (a *Agent) Extend(ctx context.Context, taskID string, token int) (until string, err error) {
	if a, err = a.keeper(ctx, taskID); err != nil {
		return "", err
	}
	x, err := a.changeHeld(ctx, taskID, token, func(x *version) {
		x.LeaseUntil = timestamp(a.net.clock.now().Add(a.net.cfg.AckTimeout))
	})
	if err != nil {
		return "", err
	}
	return x.LeaseUntil, a.tell(x.AckSubject, "+WPI")
}

// Outcome is what came of an item.
type Outcome struct {
	Success bool
	Summary string
	Result  map[string]any
}

// Complete stores the outcome of an item that the agent holds, durably. Whoever
// does not hold it any more is refused. To complete an item a second time with
// the same token is no error and changes nothing.
func (a *Agent) Complete(ctx context.Context, taskID string, token int, o Outcome) error {
	if o.Summary == "" || len(o.Summary) > maxNote {
		return invalid("The result's summary has %d bytes.", len(o.Summary)).remedy("Say in 1 to %d bytes what came of the work.", maxNote)
	}
	var result json.RawMessage
	if o.Result != nil {
		data, err := json.Marshal(o.Result)
		if err != nil || len(data) > maxResult {
			return invalid("The result's data are not JSON of at most %d bytes.", maxResult).remedy("Write them to a file and give its path.")
		}
		result = data
	}
	a, err := a.keeper(ctx, taskID)
	if err != nil {
		return err
	}
	x, err := a.changeHeld(ctx, taskID, token, func(x *version) {
		x.State, x.Success, x.Summary, x.Result = Completed, o.Success, o.Summary, result
		x.FinishedAt = timestamp(a.net.clock.now())
	})
	if err != nil {
		if a.completed(ctx, taskID, token) {
			return nil
		}
		return err
	}
	return a.tell(x.AckSubject, "+ACK")
}

// completed says that this claim completed the item, though the agent was not
// told.
func (a *Agent) completed(ctx context.Context, taskID string, token int) bool {
	b, err := a.ready()
	if err != nil {
		return false
	}
	x, err := a.net.item(ctx, b, taskID)
	return err == nil && x != nil && x.State == Completed && x.Holder == a.guid && x.Token == token && b.Commit(ctx) == nil
}

// Reject gives an item back that the agent holds: to the queue for another
// worker, or, if final or after the last attempt, to the dead letters. dead says
// which.
func (a *Agent) Reject(ctx context.Context, taskID string, token int, reason string, final bool) (dead bool, err error) {
	if reason == "" || len(reason) > maxNote {
		return false, invalid("The reason has %d bytes.", len(reason)).remedy("Say in 1 to %d bytes why.", maxNote)
	}
	network := a.net
	if a, err = a.keeper(ctx, taskID); err != nil {
		return false, err
	}
	defer network.kickForward(network.items.kick) // it may be for others now
	b, err := a.ready()
	if err != nil {
		return false, err
	}
	x, err := a.changeHeld(ctx, taskID, token, func(x *version) {
		x.Reason, x.Detail = Refused, reason
		x.State = Queued
		if final || x.Deliveries >= a.net.mostAttempts(x.order) {
			x.State, x.FinishedAt = Dead, timestamp(a.net.clock.now())
		}
	})
	if err != nil {
		return false, err
	}
	if x.State == Dead {
		return true, connectionErrorOrNil(a.net.publishDead(ctx, b, x, x.AckSubject))
	}
	return false, a.tell(x.AckSubject, fmt.Sprintf(`-NAK {"delay": %d}`, rejectDelay))
}

// rejectDelay gives other workers the chance to be quicker than the one that
// has just refused an item.
const rejectDelay = 500 * time.Millisecond

func connectionErrorOrNil(err error) error {
	if err == nil {
		return nil
	}
	return connectionError(err)
}

// changeHeld changes the record of an item that the agent holds, and returns
// when that is durable.
func (a *Agent) changeHeld(ctx context.Context, taskID string, token int, change func(*version)) (*version, error) {
	b, err := a.ready()
	if err != nil {
		return nil, err
	}
	for range maxConflicts {
		x, err := a.held(ctx, b, taskID, token)
		if err != nil {
			return nil, err
		}
		change(x)
		err = a.net.save(ctx, b, x)
		if err == nil {
			return x, connectionErrorOrNil(b.Commit(ctx))
		}
		if !errors.Is(err, errConflict) {
			return nil, connectionError(err)
		}
	}
	return nil, connectionError(errConflict)
}

// tell says something about a message of a queue to the server. The record is
// what counts: if this is lost, the message comes again, and whoever gets it
// reads the record.
func (a *Agent) tell(ackSubject, what string) error {
	b, err := a.net.connected()
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	a.net.tell(b, ackSubject, what)
	return nil
}

func (n *Network) tell(b *bus.Bus, ackSubject, what string) {
	if !isAckSubject(ackSubject) {
		return
	}
	if err := b.Conn().Publish(ackSubject, []byte(what)); err != nil {
		n.log.Debug("the queue was not told", "error", err)
	}
}

// isAckSubject guards against a record that somebody has forged: we publish
// there with our own rights, and only about messages of queues.
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
	return strings.HasPrefix(token[at], queuePrefix) && token[at+1] == queueGroup
}

// ItemStatus is an item as its submitter and its worker see it. Others see
// neither offer nor result.
type ItemStatus struct {
	TaskID          string        `json:"taskId"`
	Capability      string        `json:"capability"`
	State           ItemState     `json:"state"`
	Description     string        `json:"taskDescription,omitempty"`
	SubmitterGUID   string        `json:"submitterGuid,omitempty"`
	SubmitterHandle string        `json:"submitterHandle,omitempty"`
	SubmittedAt     string        `json:"submittedAt,omitempty"`
	Attempts        int           `json:"attempts"`
	HolderGUID      string        `json:"holderGuid,omitempty"`
	HolderHandle    string        `json:"holderHandle,omitempty"`
	ClaimedAt       string        `json:"claimedAt,omitempty"`
	LeaseUntil      string        `json:"leaseUntil,omitempty"`
	FinishedAt      string        `json:"finishedAt,omitempty"`
	FailureReason   FailureReason `json:"failureReason,omitempty"`
	FailureDetail   string        `json:"failureDetail,omitempty"`

	Success       *bool           `json:"success,omitempty"`
	ResultSummary string          `json:"resultSummary,omitempty"`
	ResultData    json.RawMessage `json:"resultData,omitempty"`
}

func (x item) finished() bool {
	return x.State == Completed || x.State == Dead || x.State == Discarded || x.State == moved
}

func (x item) status(full bool) ItemStatus {
	s := ItemStatus{TaskID: x.TaskID, Capability: x.Capability, State: x.State, SubmitterGUID: x.SubmitterGUID,
		SubmitterHandle: x.SubmitterHandle, SubmittedAt: x.SubmittedAt, Attempts: x.Deliveries, ClaimedAt: x.ClaimedAt,
		HolderGUID: x.Holder, HolderHandle: x.HolderHandle, FinishedAt: x.FinishedAt, FailureReason: x.Reason}
	if x.State == Claimed {
		s.LeaseUntil = x.LeaseUntil
	}
	if x.State == onItsWay {
		s.State = Queued
	}
	if x.State == Completed {
		s.Success, s.FailureReason = &x.Success, ""
	}
	if full {
		s.Description, s.FailureDetail, s.ResultSummary, s.ResultData = x.Description, x.Detail, x.Summary, x.Result
	}
	return s
}

// Item says where an item stands. Where wait is set, it waits until the item is
// finished, or ctx ends, whichever is first.
func (a *Agent) Item(ctx context.Context, taskID string, wait bool) (ItemStatus, error) {
	for {
		at, err := a.keeper(context.WithoutCancel(ctx), taskID)
		if err != nil {
			return ItemStatus{}, err
		}
		s, err := at.itemOne(ctx, taskID, wait)
		if s.State != moved {
			return s, err
		}
	}
}

// itemOne is Item at this Agent's own bus.
func (a *Agent) itemOne(ctx context.Context, taskID string, wait bool) (ItemStatus, error) {
	b, err := a.ready()
	if err != nil {
		return ItemStatus{}, err
	}
	changed := make(chan *nats.Msg, 1)
	if wait {
		sub, err := b.Conn().ChanSubscribe(a.net.itemCell(taskID).subject, changed)
		if err != nil {
			return ItemStatus{}, connectionError(err)
		}
		defer func() { _ = sub.Unsubscribe() }() // the connection is gone, and the subscription with it
	}
	poll := time.NewTicker(mailPoll)
	defer poll.Stop()
	for {
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		x, err := a.net.item(look, b, taskID)
		cancel()
		if err != nil {
			return ItemStatus{}, connectionError(err)
		}
		if x == nil {
			return ItemStatus{}, noItem(taskID)
		}
		if !wait || x.finished() || ctx.Err() != nil {
			return x.status(a.guid == x.SubmitterGUID || a.guid == x.Holder), nil
		}
		select {
		case <-changed:
		case <-poll.C:
		case <-ctx.Done():
		}
	}
}

// Items lists the items of the network for people, the latest change last; of
// one state where it is not empty.
func (n *Network) Items(ctx context.Context, state ItemState) ([]ItemStatus, error) {
	var list []ItemStatus
	b, err := n.connected()
	if err == nil {
		list, err = n.itemsAt(ctx, b)
	}
	if n.near != nil && (err == nil || isConnection(err)) {
		if near, nearErr := n.near.connected(); nearErr == nil {
			var here []ItemStatus
			here, err = n.near.itemsAt(ctx, near)
			list = slices.Concat(list, slices.DeleteFunc(here, func(s ItemStatus) bool { return s.State == moved }))
		}
	}
	if err != nil {
		return nil, connectionError(err)
	}
	return slices.DeleteFunc(list, func(s ItemStatus) bool { return state != "" && s.State != state }), nil
}

// scanItems calls visit with the records of all items; with one that changes
// meanwhile perhaps twice.
func (n *Network) scanItems(ctx context.Context, b *bus.Bus, visit func(item) bool) error {
	return scan(ctx, b, itemStream, itemSubject+"*", 1, func(s stored) bool {
		var x item
		if isMark(s.header) || json.Unmarshal(s.data, &x) != nil {
			return true
		}
		return visit(x)
	})
}

func (n *Network) itemsAt(ctx context.Context, b *bus.Bus) ([]ItemStatus, error) {
	byID := map[string]int{}
	list := []ItemStatus{}
	err := n.scanItems(ctx, b, func(x item) bool {
		if at, twice := byID[x.TaskID]; twice {
			list = slices.Delete(list, at, at+1)
			byID = map[string]int{}
			for i, have := range list {
				byID[have.TaskID] = i
			}
		}
		byID[x.TaskID] = len(list)
		list = append(list, x.status(true))
		return true
	})
	return list, err
}
