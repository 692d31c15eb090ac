package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

const (
	outboxStream  = "GLOBAL_OUTBOX"
	outboxSubject = "global.outbox."
	maxOutbox     = 10_000 // messages of this computer that wait for the network

	maxForwardPause = 5 * time.Second // between attempts to forward
)

// outbox keeps mail on this computer, durably, while the network cannot be
// reached, and forwards it in order when it can. Every process of the computer
// forwards what any of them has left; the message's id, which an inbox remembers
// for as long as it keeps messages, makes it arrive once.
type outbox struct {
	kick chan struct{} // has a value when there may be something to forward

	mu      sync.Mutex
	waiting map[string]int  // messages that this process has put there, by sender
	empty   map[string]bool // senders who had left nothing there before this process
}

func (o *outbox) init() {
	o.kick = make(chan struct{}, 1)
	o.waiting, o.empty = map[string]int{}, map[string]bool{}
}

// wake puts a value into a channel that has none.
func wake(kick chan<- struct{}) {
	select {
	case kick <- struct{}{}:
	default:
	}
}

func (o *outbox) workedOff(guid string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.empty[guid] = true
}

func (o *outbox) isWorkedOff(guid string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.empty[guid]
}

func (o *outbox) count(guid string, by int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting[guid] += by
	return o.waiting[guid]
}

func ensureOutbox(ctx context.Context, b *bus.Bus) error {
	_, err := b.JetStream().Stream(ctx, outboxStream)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	_, err = b.EnsureStream(ctx, jetstream.StreamConfig{
		Name: outboxStream, Description: "Mail that waits for the agents' network", Subjects: []string{outboxSubject + "*"},
		Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage, MaxMsgs: maxOutbox, AllowDirect: true,
	})
	return err
}

// queued says whether a message has to go through the outbox: the network is
// away, or earlier ones of the sender wait there, perhaps of a process that has
// died.
func (a *Agent) queued(ctx context.Context, outage error) (bool, error) {
	n := a.net
	if n.near == nil || (outage != nil && !isConnection(outage)) {
		return false, outage
	}
	if outage != nil || n.outbox.count(a.guid, 0) > 0 {
		return true, nil
	}
	near := a.nearPlace()
	if near == nil || n.outbox.isWorkedOff(a.guid) {
		return false, nil
	}
	b, err := near.ready()
	if err != nil {
		return false, err
	}
	left, err := latest(ctx, b, outboxStream, outboxSubject+a.guid)
	if err != nil {
		return false, connectionError(err)
	}
	if left == nil {
		n.outbox.workedOff(a.guid)
	}
	return left != nil, nil
}

// enqueue stores a message on this computer. Nobody knows yet whether the
// recipient exists.
func (a *Agent) enqueue(ctx context.Context, recipient string, p mailPayload) (Sent, error) {
	now := a.net.clock.now()
	p.MessageID, p.RecipientGUID, p.Timestamp = uuid.NewString(), recipient, timestamp(now)
	p.SenderGUID, p.SenderHandle = a.guid, a.Entry().Handle
	data, err := json.Marshal(p)
	if err != nil {
		return Sent{}, err
	}
	a.net.outbox.count(a.guid, 1)
	b, err := a.net.near.connected()
	if err == nil {
		_, err = b.Publish(ctx, &nats.Msg{Subject: outboxSubject + a.guid, Data: data}, jetstream.WithMsgID(p.MessageID))
	}
	if err != nil {
		a.net.outbox.count(a.guid, -1)
		return Sent{}, &Error{Category: ConnectionError, Message: "The agents' network cannot be reached, and the message could not be kept on this computer.",
			Remedy: "Try again in a moment; a running hub (parley start) keeps messages meanwhile.", Err: err}
	}
	wake(a.net.outbox.kick)
	return Sent{ID: p.MessageID, RecipientHandle: recipient, Timestamp: now, Queued: true,
		Warning: "The agents' network cannot be reached: the message is kept on this computer and forwarded, in order, when it can. Do not send it again."}, nil
}

// forward does something whenever the network or the hub's bus can be reached
// again, or there is a kick, until the Network is closed. After a failure it
// tries again with growing pauses.
func (n *Network) forward(kick <-chan struct{}, do func(context.Context) error) {
	for attempt := 1; ; {
		changed, nearChanged := n.news.Wait(), n.near.news.Wait()
		err := do(n.ctx)
		var retry <-chan time.Time
		wait := time.NewTimer(bus.Backoff(attempt, maxForwardPause))
		if err != nil {
			n.log.Debug("what waits on the hub's bus was not forwarded", "error", err)
			retry = wait.C
		} else {
			attempt = 1
		}
		select {
		case <-n.ctx.Done():
			wait.Stop()
			return
		case <-changed:
		case <-nearChanged:
		case <-kick:
		case <-retry:
			attempt++
		}
		wait.Stop()
	}
}

// forwardMail forwards what waits in the outbox, oldest first, and stops at the
// first message that cannot be forwarded now.
func (n *Network) forwardMail(ctx context.Context) error {
	b, err := n.connected()
	if err != nil {
		return err
	}
	local, err := n.near.connected()
	if err != nil {
		return err
	}
	stream, err := local.JetStream().Stream(ctx, outboxStream)
	if err != nil {
		return err
	}
	var failed error
	err = scan(ctx, local, outboxStream, outboxSubject+"*", 1, func(s stored) bool {
		if failed = n.forwardOne(ctx, b, s); failed == nil {
			failed = stream.DeleteMsg(ctx, s.sequence)
			if isGone(failed) {
				failed = nil // another process was quicker
			}
		}
		return failed == nil
	})
	return errors.Join(err, failed)
}

func (n *Network) forwardOne(ctx context.Context, b *bus.Bus, s stored) error {
	m, err := decodeMail(s.data, s.header)
	if err != nil {
		n.log.Error("a message of the outbox is dropped: it is not of the network's format", "error", err)
		return nil
	}
	ack, err := b.Publish(ctx, &nats.Msg{Subject: inboxSubject + m.Recipient, Data: s.data},
		jetstream.WithMsgID(m.ID), jetstream.WithExpectStream(n.inboxStream(m.Recipient)))
	if isUndeliverable(err) {
		if err := n.giveBack(ctx, b, m); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if n.outbox.count(m.SenderGUID, -1) < 0 { // of another process
		n.outbox.count(m.SenderGUID, 1)
	}
	if err := n.receipt(ctx, b, m, Stored); err != nil {
		n.log.Warn("a forwarded message's receipt was not written", "messageId", m.ID, "error", err)
	}
	if ack != nil {
		n.log.Info("a message that waited was forwarded", "messageId", m.ID, "duplicate", ack.Duplicate)
	}
	return nil
}

// isUndeliverable says that there is no such inbox, or that it is full.
func isUndeliverable(err error) bool {
	return inboxFull(err) || errors.Is(err, jetstream.ErrNoStreamResponse)
}

// giveBack tells the sender, in its own inbox, of a message that could not be
// forwarded.
func (n *Network) giveBack(ctx context.Context, b *bus.Bus, m Mail) error {
	n.log.Warn("a message that waited cannot be delivered", "messageId", m.ID, "recipient", m.Recipient)
	data, err := json.Marshal(mailPayload{MessageID: uuid.NewSHA1(uuid.NameSpaceOID, []byte(m.ID)).String(), SenderGUID: m.SenderGUID,
		SenderHandle: m.SenderHandle, RecipientGUID: m.SenderGUID, MessageType: ErrorReport, Timestamp: timestamp(n.clock.now()),
		Message: "Your message " + m.ID + " to " + m.Recipient + " could not be delivered: there is no such inbox, or it is full. It was:\n" + m.Text})
	if err != nil {
		return err
	}
	_, err = b.Publish(ctx, &nats.Msg{Subject: inboxSubject + m.SenderGUID, Data: data}, jetstream.WithMsgID(m.ID+"/undeliverable"))
	return err
}
