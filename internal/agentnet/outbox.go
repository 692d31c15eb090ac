package agentnet

import (
	"context"
	"errors"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/bus"
)

const (
	outboxStream  = "GLOBAL_OUTBOX"
	outboxSubject = "global.outbox."

	maxOutbox      = 10_000   // messages of this computer that wait for the network
	maxOutboxBytes = 64 << 20 // and their size
)

// The outbox stores mail on the hub's bus, durably, while the network cannot be reached.
// Every process of the computer forwards, in order, what any of them has left. An inbox
// remembers the ids of its messages, so each arrives once.
type outbox struct {
	kick  chan struct{} // has a value when there may be something to forward
	empty sync.Map      // true for the GUIDs of senders that have no message waiting, as far as this process knows
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

// mustQueue reports whether a message must be stored in the outbox: the network cannot be
// reached, or earlier messages of the sender wait there, perhaps from another process.
func (a *Agent) mustQueue(ctx context.Context, at *member) (bool, error) {
	_, outage := at.Ready()
	if at != a.main || a.net.local == nil || (outage != nil && !store.IsUnreachable(outage)) {
		return false, outage
	}
	if outage != nil {
		return true, nil
	}
	local := a.localMember()
	if empty, _ := a.net.outbox.empty.Load(a.GUID()); local == nil || empty == true {
		return false, nil
	}
	b, err := local.Ready()
	if err != nil {
		return false, err
	}
	left, err := store.Latest(ctx, b, outboxStream, outboxSubject+a.GUID())
	if err != nil {
		return false, store.AsError(err)
	}
	if left == nil {
		a.net.outbox.empty.Store(a.GUID(), true)
	}
	return left != nil, nil
}

// enqueue stores a message in the outbox. The recipient may not exist.
func (a *Agent) enqueue(ctx context.Context, recipient string, draft mail.Draft) (mail.Sent, error) {
	var l mail.Letter
	b, err := a.net.connectedLocal()
	if err == nil {
		if l, err = a.main.box.Letter(b, recipient, draft); err != nil {
			return mail.Sent{}, err
		}
		_, err = b.Publish(ctx, &nats.Msg{Subject: outboxSubject + a.GUID(), Data: l.Data}, jetstream.WithMsgID(l.ID))
		a.net.outbox.empty.Store(a.GUID(), false) // also after an error: the message may be stored
	}
	if mail.IsFull(err) {
		return mail.Sent{}, &store.Error{Code: store.ConflictError, Message: "The agents' network cannot be reached, and the outbox of this computer is full.",
			Remedy: "Try again when the network can be reached.", Err: err}
	}
	if err != nil {
		return mail.Sent{}, &store.Error{Code: store.ConnectionError, Message: "The agents' network cannot be reached, and the message could not be stored on this computer.",
			Remedy: "Try again in a moment; a running hub (" + local.Program() + " start) stores messages meanwhile.", Err: err}
	}
	a.net.kickForward(a.net.outbox.kick)
	return mail.Sent{ID: l.ID, RecipientHandle: recipient, Timestamp: l.Sent, Queued: true,
		Warning: "The agents' network cannot be reached, or earlier messages of yours still wait for it: the message is stored on this computer and " +
			"forwarded, in order, when it can be. Do not send it again."}, nil
}

// forwardMail forwards what waits in the outbox, oldest first. A message that cannot be
// forwarded now delays those for the same recipient, and no others.
func (n *Network) forwardMail(ctx context.Context) error {
	b, err := n.main.store.Connected()
	if err != nil {
		return err
	}
	local, err := n.connectedLocal()
	if err != nil {
		return err
	}
	recipients := stuck{}
	for from := uint64(1); ; {
		waiting, err := outboxPage(ctx, local, from)
		if err != nil || len(waiting) == 0 {
			return errors.Join(err, recipients.err())
		}
		for _, msg := range waiting {
			from = msg.Sequence + 1
			recipient, err := n.forwardMessage(ctx, b, local, msg, recipients)
			if err == nil {
				continue
			}
			recipients[recipient] = err
			if n.hopeless(ctx, recipients) {
				return recipients.err()
			}
		}
	}
}

// forwardMessage forwards one message of the outbox and removes it there, unless its recipient is stuck.
func (n *Network) forwardMessage(ctx context.Context, b, local *bus.Bus, msg store.Message, recipients stuck) (recipient string, err error) {
	m, err := mail.Decode(msg.Data, msg.Header)
	switch {
	case err != nil:
		n.log.Error("a message of the outbox that has the wrong format is dropped", "error", err)
	case recipients[m.Recipient] != nil:
		return m.Recipient, nil
	default:
		err = n.main.mail.Forward(ctx, b, m, msg.Data)
		if mail.IsUndeliverable(err) { // the sender's inbox on the hub's bus exists, that in the network may not
			err = n.local.mail.Return(ctx, local, m, err)
		}
		if err != nil {
			return m.Recipient, err
		}
	}
	return m.Recipient, store.DeleteMessage(ctx, local, outboxStream, msg.Sequence)
}

// outboxPage returns waiting messages from a sequence number on, of bounded size. They are
// read before any is forwarded, because forwarding is slow.
func outboxPage(ctx context.Context, local *bus.Bus, from uint64) (page []store.Message, err error) {
	size := 0
	err = store.Scan(ctx, local, outboxStream, outboxSubject+"*", from, func(m store.Message) bool {
		page = append(page, m)
		size += len(m.Data)
		return len(page) < store.ScanBatch && size < store.ScanBytes
	})
	return page, err
}
