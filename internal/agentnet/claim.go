package agentnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

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
		return nil, invalid("There is no queue to claim from.").WithRemedy("Name a capability, or register with some.")
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
func (a *Agent) claimFrom(ctx context.Context, b *bus.Bus, capability string, patience time.Duration) (*Claim, error) {
	consumer, err := a.net.queueConsumer(ctx, b, capability)
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
			a.net.queue.forget()
			return nil, err
		}
		if msg == nil {
			return nil, nil
		}
		if errors.Is(ctx.Err(), context.Canceled) { // nobody waits for it any more
			return nil, a.net.pass(ctx, b, capability, msg)
		}
		// What has come is taken though the time to wait for it ends now: it would be
		// away for a lease.
		taking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*requestTimeout)
		x, err := a.net.seize(taking, b, a, capability, msg)
		cancel()
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
