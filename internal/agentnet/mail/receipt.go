package mail

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// Receipt is a stage of a message's delivery.
type Receipt string

// The receipts, in order.
const (
	Stored    Receipt = "stored"    // in the recipient's inbox
	Delivered Receipt = "delivered" // in an answer to the recipient that was written
	Read      Receipt = "read"      // by the agent
	Handled   Receipt = "handled"   // the agent reported that it is done with it
)

var receiptOrder = []Receipt{Stored, Delivered, Read, Handled}

func (r Receipt) rank() int { return slices.Index(receiptOrder, r) }

// MessageStatus is the delivery status of a message. Times are ISO 8601, empty for stages not reached.
type MessageStatus struct {
	MessageID     string  `json:"messageId"`
	RecipientGUID string  `json:"recipientGuid"`
	Status        Receipt `json:"status"`
	StoredAt      string  `json:"storedAt,omitempty"`
	DeliveredAt   string  `json:"deliveredAt,omitempty"`
	ReadAt        string  `json:"readAt,omitempty"`
	HandledAt     string  `json:"handledAt,omitempty"`
	// Note is the recipient's remark when it was done.
	Note string `json:"note,omitempty"`
	// Attention is what is known of the recipient's session. It is stored apart.
	Attention
}

// reach sets the status unless it is a later one, and the empty times of the stages up to it. No time is before that of an
// earlier stage, also if the clocks that measured them differ.
func (s *MessageStatus) reach(r Receipt, now string) {
	if s.Status.rank() < r.rank() {
		s.Status = r
	}
	for rank, at := range []*string{&s.StoredAt, &s.DeliveredAt, &s.ReadAt, &s.HandledAt} {
		if *at == "" && rank <= r.rank() {
			*at = now
		}
		now = max(now, *at) // all have the same format
	}
}

func receiptKey(m Mail) store.Key {
	return store.Key{Stream: store.MailStream, Subject: store.ReceiptSubject + m.SenderGUID + "." + m.Recipient + "." + m.ID}
}

// writeReceipt writes a receipt with a note, unless the message has reached a later stage.
func (s *Service) writeReceipt(ctx context.Context, b *bus.Bus, m Mail, r Receipt, note string) error {
	_, err := receiptKey(m).Update(ctx, b, func(v store.Value) (any, error) {
		st := MessageStatus{MessageID: m.ID, RecipientGUID: m.Recipient, StoredAt: store.Timestamp(m.Timestamp)}
		if v.Exists() && json.Unmarshal(v.Data, &st) == nil && st.Status.rank() >= r.rank() {
			return nil, nil
		}
		st.reach(r, store.Timestamp(s.reg.Now()))
		st.Note = note
		return st, nil
	})
	return err
}

// Status returns the delivery status of a message that the agent sent on this bus.
func (x *Box) Status(ctx context.Context, messageID string) (MessageStatus, error) {
	b, err := x.agent.Ready()
	if err != nil {
		return MessageStatus{}, err
	}
	if uuid.Validate(messageID) != nil || len(messageID) != 36 {
		return MessageStatus{}, store.Invalid("%s is not the id of a message.", store.Quote(messageID)).
			WithRemedy("Use the messageId that send_direct_message returned.")
	}
	var status MessageStatus
	err = store.Scan(ctx, b, store.MailStream, store.ReceiptSubject+x.agent.GUID()+".*."+messageID, 1, func(m store.Message) bool {
		err = json.Unmarshal(m.Data, &status)
		return false
	})
	if err != nil {
		return MessageStatus{}, store.AsError(err)
	}
	if status.MessageID == "" {
		return MessageStatus{}, &store.Error{Code: store.NotFoundError, Message: fmt.Sprintf("You have sent no message %s.", messageID),
			Remedy: "Receipts are kept for two days; use the messageId that send_direct_message returned."}
	}
	status.Attention, err = x.svc.AttentionOf(ctx, b, x.agent.GUID(), status.RecipientGUID, messageID)
	return status, err
}

// MarkHandled reports to the sender of a message in the inbox on this bus that the agent is done with it.
func (x *Box) MarkHandled(ctx context.Context, messageID, note string) (Mail, error) {
	b, err := x.agent.Ready()
	if err != nil {
		return Mail{}, err
	}
	if len(note) > maxNote {
		return Mail{}, store.Invalid("The note is %d bytes long; at most %d are allowed.", len(note), maxNote).WithRemedy("Send a message instead.")
	}
	var found *Mail
	err = x.scan(ctx, b, 0, readMarks{}, func(m Mail) bool {
		if m.ID == messageID {
			found = &m
		}
		return found == nil
	})
	if err != nil {
		return Mail{}, store.AsError(err)
	}
	if found == nil {
		return Mail{}, &store.Error{Code: store.NotFoundError, Message: fmt.Sprintf("There is no message %s in your inbox.", store.Quote(messageID)),
			Remedy: "Use the messageId that read_direct_messages returned."}
	}
	if err := x.svc.writeReceipt(ctx, b, *found, Handled, note); err != nil {
		return Mail{}, store.AsError(err)
	}
	return *found, nil
}
