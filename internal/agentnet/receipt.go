package agentnet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/bus"
)

// Receipt says how far a message has come.
type Receipt string

// The receipts, each after the ones before it.
const (
	Stored    Receipt = "stored"    // in the recipient's inbox
	Delivered Receipt = "delivered" // to the recipient's process
	Read      Receipt = "read"      // by the agent
	Handled   Receipt = "handled"   // the agent says that it is done with it
)

var receiptOrder = []Receipt{Stored, Delivered, Read, Handled}

func (r Receipt) rank() int { return slices.Index(receiptOrder, r) }

// MessageStatus is what became of a message (all times ISO 8601, empty before).
type MessageStatus struct {
	MessageID     string  `json:"messageId"`
	RecipientGUID string  `json:"recipientGuid"`
	Status        Receipt `json:"status"`
	StoredAt      string  `json:"storedAt,omitempty"`
	DeliveredAt   string  `json:"deliveredAt,omitempty"`
	ReadAt        string  `json:"readAt,omitempty"`
	HandledAt     string  `json:"handledAt,omitempty"`
	// Note is what the recipient said when it was done.
	Note string `json:"note,omitempty"`
}

// reach sets the status and the times up to it that are still empty.
func (s *MessageStatus) reach(r Receipt, now string) {
	s.Status = r
	for rank, at := range []*string{&s.StoredAt, &s.DeliveredAt, &s.ReadAt, &s.HandledAt} {
		if *at == "" && rank <= r.rank() {
			*at = now
		}
	}
}

func receiptCell(m Mail) cell {
	return cell{mailStream, receiptSubject + m.SenderGUID + "." + m.Recipient + "." + m.ID}
}

// receipt notes how far a message has come, unless it has come further.
func (a *Agent) receipt(ctx context.Context, b *bus.Bus, m Mail, r Receipt) error {
	return a.net.receipt(ctx, b, m, r)
}

func (n *Network) receipt(ctx context.Context, b *bus.Bus, m Mail, r Receipt) error {
	return n.receiptNote(ctx, b, m, r, "")
}

func (n *Network) receiptNote(ctx context.Context, b *bus.Bus, m Mail, r Receipt, note string) error {
	_, err := receiptCell(m).change(ctx, b, func(v value) ([]byte, error) {
		s := MessageStatus{MessageID: m.ID, RecipientGUID: m.Recipient, StoredAt: timestamp(m.Timestamp)}
		if v.there() && json.Unmarshal(v.data, &s) == nil && s.Status.rank() >= r.rank() {
			return nil, nil
		}
		s.reach(r, timestamp(n.clock.now()))
		s.Note = note
		return json.Marshal(s)
	})
	return err
}

// receipts notes that messages were read, all at once. Only the recipient
// writes receipts from here on, so nothing is overwritten.
func (a *Agent) receipts(ctx context.Context, b *bus.Bus, mail []Mail) {
	batch := b.NewBatch()
	now := timestamp(a.net.clock.now())
	for _, m := range mail {
		s := MessageStatus{MessageID: m.ID, RecipientGUID: a.guid, StoredAt: timestamp(m.Timestamp)}
		s.reach(Read, now)
		data, err := json.Marshal(s)
		if err == nil {
			err = batch.Add(ctx, &nats.Msg{Subject: receiptCell(m).subject, Data: data})
		}
		if err != nil {
			a.log.Warn("a receipt was not written", "messageId", m.ID, "error", err)
		}
	}
	if _, err := batch.Wait(ctx); err != nil {
		a.log.Warn("receipts were not written", "error", err)
	}
}

// MessageStatus says what became of a message that this agent sent.
func (a *Agent) MessageStatus(ctx context.Context, messageID string) (MessageStatus, error) {
	if near := a.nearby(); near != nil {
		if status, err := near.MessageStatus(ctx, messageID); !isNotFound(err) {
			return status, err
		}
	}
	b, err := a.ready()
	if err != nil {
		return MessageStatus{}, err
	}
	if uuid.Validate(messageID) != nil || len(messageID) != 36 {
		return MessageStatus{}, invalid("%s is not the id of a message.", quote(messageID)).
			WithRemedy("Use the messageId that send_direct_message returned.")
	}
	var status MessageStatus
	err = scan(ctx, b, mailStream, receiptSubject+a.guid+".*."+messageID, 1, func(s stored) bool {
		err = json.Unmarshal(s.data, &status)
		return false
	})
	if err != nil {
		return MessageStatus{}, connectionError(err)
	}
	if status.MessageID == "" {
		return MessageStatus{}, &Error{Code: NotFoundError, Message: fmt.Sprintf("You have sent no message %s.", messageID),
			Remedy: "Receipts are kept for two days; use the messageId that send_direct_message returned."}
	}
	return status, nil
}

// MarkHandled tells the sender of a message in this agent's inbox that the agent
// is done with it.
func (a *Agent) MarkHandled(ctx context.Context, messageID, note string) (Mail, error) {
	if near := a.nearby(); near != nil {
		if mail, err := near.MarkHandled(ctx, messageID, note); !isNotFound(err) {
			return mail, err
		}
	}
	b, err := a.ready()
	if err != nil {
		return Mail{}, err
	}
	if len(note) > maxNote {
		return Mail{}, invalid("The note is %d bytes long; at most %d are allowed.", len(note), maxNote).WithRemedy("Send a message instead.")
	}
	var found *Mail
	err = a.look(ctx, b, 0, readMarks{}, func(m Mail) bool {
		if m.ID == messageID {
			found = &m
		}
		return found == nil
	})
	if err != nil {
		return Mail{}, connectionError(err)
	}
	if found == nil {
		return Mail{}, &Error{Code: NotFoundError, Message: fmt.Sprintf("There is no message %s in your inbox.", quote(messageID)),
			Remedy: "Use the messageId that read_direct_messages returned."}
	}
	if err := a.net.receiptNote(ctx, b, *found, Handled, note); err != nil {
		return Mail{}, connectionError(err)
	}
	return *found, nil
}

// maxNote bounds a recipient's or worker's remark, in bytes.
const maxNote = 4 << 10
