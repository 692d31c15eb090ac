package agentnet

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

const (
	outboxStream  = "GLOBAL_OUTBOX"
	outboxSubject = "global.outbox."

	maxOutbox      = 10_000   // messages of this computer that wait for the network
	maxOutboxBytes = 64 << 20 // and their size

	maxStuck        = 16              // recipients whose mail cannot be forwarded, of one attempt
	maxForwardPause = 5 * time.Second // between attempts to forward
)

// outbox keeps mail on this computer, durably, while the network cannot be
// reached, and forwards it in order when it can. Every process of the computer
// forwards what any of them has left; the message's id, which an inbox remembers
// for as long as it keeps messages, makes it arrive once.
type outbox struct {
	kick chan struct{} // has a value when there may be something to forward

	mu    sync.Mutex
	empty map[string]bool // senders of whom nothing waits, as far as this process knows
}

func (o *outbox) init() {
	o.kick = make(chan struct{}, 1)
	o.empty = map[string]bool{}
}

// wake puts a value into a channel that has none.
func wake(kick chan<- struct{}) {
	select {
	case kick <- struct{}{}:
	default:
	}
}

// note says whether nothing of a sender waits any more. Other processes forward,
// too, so what was put there may wait until somebody looks.
func (o *outbox) note(guid string, empty bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.empty[guid] = empty
}

func (o *outbox) isEmpty(guid string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.empty[guid]
}

func ensureOutbox(ctx context.Context, b *bus.Bus) error {
	have, err := b.JetStream().Stream(ctx, outboxStream)
	switch {
	case err == nil && have.CachedInfo().Config.MaxBytes == maxOutboxBytes:
		return nil
	case err != nil && !errors.Is(err, jetstream.ErrStreamNotFound):
		return err
	}
	_, err = b.EnsureStream(ctx, jetstream.StreamConfig{
		Name: outboxStream, Description: "Mail that waits for the agents' network", Subjects: []string{outboxSubject + "*"},
		Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage, MaxMsgs: maxOutbox, MaxBytes: maxOutboxBytes, AllowDirect: true,
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
	if outage != nil {
		return true, nil
	}
	near := a.nearPlace()
	if near == nil || n.outbox.isEmpty(a.guid) {
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
		n.outbox.note(a.guid, true)
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
	b, err := a.net.near.connected()
	if err == nil {
		if most := b.Conn().MaxPayload() - 1024; int64(len(data)) > most {
			return Sent{}, tooLarge(len(data), most)
		}
		_, err = b.Publish(ctx, &nats.Msg{Subject: outboxSubject + a.guid, Data: data}, jetstream.WithMsgID(p.MessageID))
		a.net.outbox.note(a.guid, false) // also after an error: it may be there all the same
	}
	if inboxFull(err) {
		return Sent{}, &Error{Code: ConflictError, Message: "The agents' network cannot be reached, and what waits for it on this computer is all that there is room for.",
			Remedy: "Try again when the network can be reached.", Err: err}
	}
	if err != nil {
		return Sent{}, &Error{Code: ConnectionError, Message: "The agents' network cannot be reached, and the message could not be kept on this computer.",
			Remedy: "Try again in a moment; a running hub (parley start) keeps messages meanwhile.", Err: err}
	}
	a.net.kickForward(a.net.outbox.kick)
	return Sent{ID: p.MessageID, RecipientHandle: recipient, Timestamp: now, Queued: true,
		Warning: "The agents' network cannot be reached, or earlier messages of yours still wait for it: the message is kept on this computer and " +
			"forwarded, in order, when it can. Do not send it again."}, nil
}

// forward does something whenever the network or the hub's bus can be reached
// again, or there is a kick, until the Network is closed. After a failure it
// tries again with growing pauses.
func (n *Network) forward(kick <-chan struct{}, do func(context.Context) error) {
	backoff := wait.Backoff{Most: maxForwardPause}
	for {
		changed, nearChanged := n.news.Wait(), n.near.news.Wait()
		err := do(n.ctx)
		var retry <-chan time.Time
		if err != nil {
			n.log.Debug("what waits on the hub's bus was not forwarded", "error", err)
			retry = time.After(backoff.Next())
		} else {
			backoff.Reset()
		}
		select {
		case <-n.ctx.Done():
			return
		case <-changed:
		case <-nearChanged:
		case <-kick:
		case <-retry:
		}
	}
}

// forwardMail forwards what waits in the outbox, oldest first. Behind a message that
// cannot be forwarded now those for the same recipient wait, and no others.
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
	stuck := map[string]error{} // by recipient
	for from := uint64(1); ; {
		waiting, err := outboxPage(ctx, local, from)
		if err != nil || len(waiting) == 0 {
			return errors.Join(err, errors.Join(slices.Collect(maps.Values(stuck))...))
		}
		for _, s := range waiting {
			from = s.sequence + 1
			recipient, err := n.forwardStored(ctx, b, local, stream, s, stuck)
			if err == nil {
				continue
			}
			stuck[recipient] = err
			if len(stuck) == maxStuck || !b.Conn().IsConnected() || !local.Conn().IsConnected() || ctx.Err() != nil {
				return errors.Join(slices.Collect(maps.Values(stuck))...)
			}
		}
	}
}

// forwardStored forwards one message of the outbox and takes it out, unless its
// recipient is one that cannot be written to now.
func (n *Network) forwardStored(ctx context.Context, b, local *bus.Bus, outbox jetstream.Stream, s stored, stuck map[string]error) (recipient string, err error) {
	m, err := decodeMail(s.data, s.header)
	if err != nil {
		n.log.Error("a message of the outbox is dropped: it is not of the network's format", "error", err)
	} else if stuck[m.Recipient] != nil {
		return m.Recipient, nil
	} else if err := n.forwardOne(ctx, b, local, m, s.data); err != nil {
		return m.Recipient, err
	}
	err = outbox.DeleteMsg(ctx, s.sequence)
	if isGone(err) { // another process was quicker
		err = nil
	}
	return m.Recipient, err
}

// outboxPage is what waits from a sequence number on, of bounded size. It is read
// first and forwarded then: to forward takes its time.
func outboxPage(ctx context.Context, local *bus.Bus, from uint64) (page []stored, err error) {
	size := 0
	err = scan(ctx, local, outboxStream, outboxSubject+"*", from, func(s stored) bool {
		page = append(page, s)
		size += len(s.data)
		return len(page) < scanBatch && size < scanBytes
	})
	return page, err
}

func (n *Network) forwardOne(ctx context.Context, b, local *bus.Bus, m Mail, data []byte) error {
	ack, err := b.Publish(ctx, &nats.Msg{Subject: inboxSubject + m.Recipient, Data: data},
		jetstream.WithMsgID(m.ID), jetstream.WithExpectStream(n.inboxStream(m.Recipient)))
	switch {
	case isUndeliverable(err):
		return n.giveBack(ctx, local, m, err)
	case err != nil:
		return err
	}
	if err := n.receipt(ctx, b, m, Stored); err != nil {
		n.log.Warn("a forwarded message's receipt was not written", "messageId", m.ID, "error", err)
	}
	n.log.Info("a message that waited was forwarded", "messageId", m.ID, "duplicate", ack.Duplicate)
	return nil
}

// isUndeliverable says that there is no such inbox, that it is full, or that the
// network takes no message as long as this.
func isUndeliverable(err error) bool {
	return inboxFull(err) || errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrMaxPayload)
}

// maxReturned is how much of a message that could not be forwarded comes back, in
// bytes.
const maxReturned = 64 << 10

// giveBack tells the sender of a message that could not be forwarded. Its inbox on
// the hub's bus is there, that in the network may not be yet.
func (n *Network) giveBack(ctx context.Context, local *bus.Bus, m Mail, why error) error {
	n.log.Warn("a message that waited cannot be delivered", "messageId", m.ID, "recipient", m.Recipient, "error", why)
	reason := "there is no such inbox, or it is full"
	if errors.Is(why, nats.ErrMaxPayload) {
		reason = "it is too long for the network's server; write the long part to a file and send its path"
	}
	text := m.Text
	if len(text) > maxReturned {
		text = strings.ToValidUTF8(text[:maxReturned], "") + "…"
	}
	data, err := json.Marshal(mailPayload{MessageID: uuid.NewSHA1(uuid.NameSpaceOID, []byte(m.ID)).String(), SenderGUID: m.SenderGUID,
		SenderHandle: m.SenderHandle, RecipientGUID: m.SenderGUID, MessageType: ErrorReport, Timestamp: timestamp(n.clock.now()),
		Message: "Your message " + m.ID + " to " + m.Recipient + " could not be delivered: " + reason + ". It was:\n" + text})
	if err != nil {
		return err
	}
	_, err = local.Publish(ctx, &nats.Msg{Subject: inboxSubject + m.SenderGUID, Data: data}, jetstream.WithMsgID(m.ID+"/undeliverable"))
	if isUndeliverable(err) { // nobody is left to be told but who reads the log
		n.log.Error("the sender of a message that cannot be delivered cannot be told either", "messageId", m.ID, "sender", m.SenderGUID, "error", err)
		return nil
	}
	return err
}
