package mail

import (
	"context"
	"encoding/json"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// TaskNotice is a message of a hub to one of its sessions about a task.
type TaskNotice struct {
	ID           string // a UUID: the same at every attempt, so that the message is stored once
	SenderGUID   string // of the hub
	SenderHandle string
	Recipient    string
	Type         MessageType // Task, TaskCanceled or TaskAnswer
	Text         string
	Metadata     map[string]any
}

// PostTask stores a notice in a session's inbox, and returns when it is durable. The error is a ConflictError while the
// inbox is full.
func (s *Service) PostTask(ctx context.Context, b *bus.Bus, n TaskNotice) error {
	sent := s.reg.Now()
	metadata, err := json.Marshal(n.Metadata)
	if err != nil {
		return &store.Error{Code: store.InternalError, Message: "The task cannot be encoded.", Err: err}
	}
	data, err := json.Marshal(payload{MessageID: n.ID, SenderGUID: n.SenderGUID, SenderHandle: n.SenderHandle, RecipientGUID: n.Recipient,
		Message: n.Text, MessageType: n.Type, Metadata: metadata, Timestamp: store.Timestamp(sent)})
	if err != nil {
		return &store.Error{Code: store.InternalError, Message: "The task cannot be encoded.", Err: err}
	}
	_, err = s.post(ctx, b, n.Recipient, n.ID, data)
	if IsFull(err) {
		return &store.Error{Code: store.ConflictError, Message: "The inbox of the session is full.", Remedy: "The task waits until the session reads its mail.", Err: err}
	}
	if err != nil {
		return store.AsError(err)
	}
	m := Mail{ID: n.ID, SenderGUID: n.SenderGUID, Recipient: n.Recipient, Timestamp: sent}
	if err := s.writeReceipt(ctx, b, m, Stored, ""); err != nil {
		s.reg.Log().Warn("a task is stored in the inbox, but its receipt is not", "messageId", n.ID, "error", err)
	}
	return nil
}

// StatusOf returns the delivery status of a message; nil if there is no receipt.
func (s *Service) StatusOf(ctx context.Context, b *bus.Bus, sender, recipient, messageID string) (*MessageStatus, error) {
	v, err := receiptKey(Mail{ID: messageID, SenderGUID: sender, Recipient: recipient}).Get(ctx, b)
	if err != nil || !v.Exists() {
		return nil, store.AsError(err)
	}
	var st MessageStatus
	if err := json.Unmarshal(v.Data, &st); err != nil {
		return nil, &store.Error{Code: store.InternalError, Message: "A receipt cannot be read.", Err: err}
	}
	return &st, nil
}

// Seen returns when the agent got the message; zero if it has not.
func (s MessageStatus) Seen() time.Time { return store.ParseTime(s.ReadAt) }
