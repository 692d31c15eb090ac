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
)

// outbox keeps mail on this computer, durably, while the network cannot be
// reached, and forwards it in order when it can. Every process of the computer
// forwards what any of them has left; the message's id, which an inbox remembers
// for as long as it keeps messages, makes it arrive once.
type outbox struct {
	turn  chan struct{} // holds the token of who may use the local bus
	kick  chan struct{} // has a value when there may be something to forward
	local *bus.Bus      // nil until it is found

	mu      sync.Mutex
	waiting map[string]int // messages that this process has put there, by sender
}

func (o *outbox) init() {
	o.turn, o.kick = make(chan struct{}, 1), make(chan struct{}, 1)
	o.turn <- struct{}{}
	o.waiting = map[string]int{}
}

func (o *outbox) wake() {
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

func (o *outbox) count(guid string, by int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting[guid] += by
	return o.waiting[guid]
}

// use calls f with the local bus, alone.
func (n *Network) useOutbox(ctx context.Context, f func(*bus.Bus) error) error {
	o := &n.outbox
	select {
	case <-o.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { o.turn <- struct{}{} }()
	if o.local == nil {
		b, err := n.cfg.DialLocal(ctx)
		if err != nil {
			return err
		}
		if err := ensureOutbox(ctx, b); err != nil {
			n.closeBus(ctx, b)
			return err
		}
		o.local = b
	}
	return f(o.local)
}

func ensureOutbox(ctx context.Context, b *bus.Bus) error {
	_, err := b.JetStream().Stream(ctx, outboxStream)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	_, err = b.EnsureStream(ctx, jetstream.StreamConfig{
		Name: outboxStream, Description: "Mail that waits for the agents' network", Subjects: []string{outboxSubject + "*"},
		Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage, MaxMsgs: maxOutbox, MaxAge: inboxMaxAge, AllowDirect: true,
	})
	return err
}

// queued says whether a message has to go through the outbox: the network is
// away, or earlier ones of the sender wait there.
func (a *Agent) queued(err error) bool {
	if a.net.cfg.DialLocal == nil || (err != nil && !isConnection(err)) {
		return false
	}
	return err != nil || a.net.outbox.count(a.guid, 0) > 0
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
	err = a.net.useOutbox(ctx, func(local *bus.Bus) error {
		_, err := local.Publish(ctx, &nats.Msg{Subject: outboxSubject + a.guid, Data: data}, jetstream.WithMsgID(p.MessageID))
		return err
	})
	if err != nil {
		a.net.outbox.count(a.guid, -1)
		return Sent{}, &Error{Category: ConnectionError, Message: "The agents' network cannot be reached, and the message could not be kept on this computer.",
			Remedy: "Try again in a moment; a running hub (parley start) keeps messages meanwhile.", Err: err}
	}
	a.net.outbox.wake()
	return Sent{ID: p.MessageID, RecipientHandle: recipient, Timestamp: now, Queued: true,
		Warning: "The agents' network cannot be reached: the message is kept on this computer and forwarded, in order, when it can. Do not send it again."}, nil
}

// forward works the outbox off whenever the network can be reached, until the
// Network is closed.
func (n *Network) forward() {
	for attempt := 1; ; {
		changed := n.news.Wait()
		err := n.forwardAll(n.ctx)
		if err == nil {
			attempt = 1
		} else {
			n.log.Debug("the outbox was not worked off", "error", err)
		}
		wait := time.NewTimer(bus.Backoff(attempt, MaxBackoff))
		retry := wait.C
		if err == nil {
			retry = nil
		}
		select {
		case <-n.ctx.Done():
			wait.Stop()
			return
		case <-changed:
		case <-n.outbox.kick:
		case <-retry:
			attempt++
		}
		wait.Stop()
	}
}

// forwardAll forwards what waits, oldest first, and stops at the first message
// that cannot be forwarded now.
func (n *Network) forwardAll(ctx context.Context) error {
	b, err := n.connected()
	if err != nil {
		return err
	}
	return n.useOutbox(ctx, func(local *bus.Bus) error {
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
	})
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

// closeOutbox lets go of the local bus. What waits there stays for the next
// process.
func (n *Network) closeOutbox(ctx context.Context) {
	if n.outbox.local != nil {
		n.closeBus(ctx, n.outbox.local)
	}
}
