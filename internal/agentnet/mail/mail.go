// Package mail is the mail of the agents' network on one bus: inboxes, receipts, read
// marks, and the messages by which agents hand off work.
package mail

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// The limits of mail.
const (
	MaxMail          = 512 << 10 // a message's text, in bytes
	DefaultMailLimit = 50        // messages of one read
	MaxMailLimit     = 1000
	PollInterval     = 10 * time.Second // between checks for mail whose notification was lost

	maxMailRead  = 4 << 20 // bytes of one read
	maxNote      = 4 << 10 // a recipient's remark, in bytes
	maxAnnounced = 200     // messages whose receipts are completed when an agent connects
	sendAttempts = 3
	// maxReturned bounds how much of an undeliverable message is returned, in bytes.
	maxReturned = 64 << 10
)

// payload is a message on the bus.
type payload struct {
	MessageID     string          `json:"messageId"`
	SenderGUID    string          `json:"senderGuid"`
	SenderHandle  string          `json:"senderHandle"`
	RecipientGUID string          `json:"recipientGuid"`
	Message       string          `json:"message"`
	MessageType   MessageType     `json:"messageType"`
	Metadata      json.RawMessage `json:"metadata,omitempty"`
	Timestamp     string          `json:"timestamp"`
}

// Mail is a message in an agent's inbox. The sender's GUID and handle are what the sender says.
type Mail struct {
	ID           string          `json:"messageId" jsonschema:"For mark_message_handled"`
	SenderGUID   string          `json:"senderGuid" jsonschema:"Whom to answer"`
	SenderHandle string          `json:"senderHandle"`
	Recipient    string          `json:"-"`
	Type         MessageType     `json:"messageType"`
	Text         string          `json:"message"`
	Metadata     json.RawMessage `json:"metadata,omitempty"` // an object, or nil
	Timestamp    time.Time       `json:"timestamp"`          // when it was sent
	Sequence     uint64          `json:"-"`
	Read         bool            `json:"-"` // before
	// Repeated is set if an answer with it was written before by a process that ended before it was known to be received.
	Repeated bool `json:"repeated,omitempty" jsonschema:"It was sent to you before your program ended: you may know it already"`
}

// Decode reads a message of any program.
func Decode(data []byte, header nats.Header) (Mail, error) {
	var p payload
	if !utf8.Valid(data) {
		return Mail{}, errors.New("not UTF-8")
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return Mail{}, err
	}
	sender, err := uuid.Parse(p.SenderGUID)
	if err != nil {
		return Mail{}, fmt.Errorf("the sender: %w", err)
	}
	recipient, err := uuid.Parse(p.RecipientGUID)
	if err != nil {
		return Mail{}, fmt.Errorf("the recipient: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, p.Timestamp)
	if err != nil {
		return Mail{}, err
	}
	m := Mail{ID: p.MessageID, SenderGUID: sender.String(), SenderHandle: p.SenderHandle, Recipient: recipient.String(),
		Text: p.Message, Type: cmp.Or(p.MessageType, Direct), Metadata: p.Metadata, Timestamp: at}
	if uuid.Validate(m.ID) != nil { // of another program: the id must be one token of a subject
		m.ID = store.Digest(cmp.Or(m.ID, header.Get(jetstream.MsgIDHeader)), p.Timestamp, p.Message)
	}
	if !slices.Contains(ReceivedTypes, m.Type) {
		return Mail{}, fmt.Errorf("the message type %s", store.Quote(string(m.Type)))
	}
	var object map[string]json.RawMessage
	if len(m.Metadata) > 0 && json.Unmarshal(m.Metadata, &object) != nil {
		return Mail{}, errors.New("the metadata is not an object")
	}
	if object == nil {
		m.Metadata = nil
	}
	return m, nil
}

// Message is a message to send. The jsonschema tags of this and other types describe the fields to models.
type Message struct {
	Recipient string         `json:"recipientGuid" jsonschema:"The recipient's GUID, from discover_agents or from a message that it sent you"`
	Text      string         `json:"message" jsonschema:"What to say: any text, up to 512 KB"`
	Type      MessageType    `json:"messageType,omitempty" jsonschema:"What the message is for; direct by default. The others belong to the hand-off of work: an offer is answered with a claim, that with accept or reject; then come progress updates, and a completion or an error."`
	Metadata  map[string]any `json:"metadata,omitempty" jsonschema:"Data that belong to the type. work-offer: taskId, taskDescription, requiredCapabilities; optional priority, deadline, contextData. work-claim: taskId; optional estimatedDuration. work-accept, work-reject: taskId. progress-update: taskId, statusMessage; optional progressPercent. completion: taskId, success, resultSummary; optional resultData. Times of now are filled in."`
}

// Draft is a valid message without its recipient.
type Draft struct {
	text     string
	kind     MessageType
	metadata json.RawMessage
}

// NewDraft checks a message.
func NewDraft(m Message, now time.Time) (Draft, error) {
	switch {
	case m.Text == "":
		return Draft{}, store.Invalid("The message is empty.").WithRemedy("Give it a text.")
	case !utf8.ValidString(m.Text):
		return Draft{}, store.Invalid("The message is not valid UTF-8.").WithRemedy("Send text only; encode binary data, for example with base64.")
	case len(m.Text) > MaxMail:
		return Draft{}, store.Invalid("The message is %d bytes long; at most %d are allowed.", len(m.Text), MaxMail).
			WithRemedy("Write the long part to a file and send its path, or split the message.")
	}
	kind := cmp.Or(m.Type, Direct)
	metadata, err := checkMetadata(kind, m.Metadata, now)
	return Draft{m.Text, kind, metadata}, err
}

// Sent is a message that was sent.
type Sent struct {
	ID              string    `json:"messageId" jsonschema:"For get_message_status"`
	RecipientHandle string    `json:"recipientHandle"`
	Timestamp       time.Time `json:"timestamp"`
	// Warning says that the recipient is offline, busy or not to be disturbed, or that the message is queued.
	Warning string `json:"warning,omitempty" jsonschema:"Set if the recipient is offline, busy or not to be disturbed; the message is stored all the same"`
	// Queued says that the network cannot be reached and the message is stored on this
	// computer, durably; RecipientHandle is the GUID then.
	Queued bool `json:"queued" jsonschema:"True if the network cannot be reached: the message is kept on this computer and forwarded later. Do not send it again."`
}

// Letter is an encoded message.
type Letter struct {
	ID        string
	Recipient string
	Sent      time.Time
	Data      []byte
}

// Letter encodes a message of the agent. It fails where b does not accept its size.
func (x *Box) Letter(b *bus.Bus, recipient string, d Draft) (Letter, error) {
	l := Letter{ID: uuid.NewString(), Recipient: recipient, Sent: x.svc.reg.Now()}
	data, err := json.Marshal(payload{MessageID: l.ID, SenderGUID: x.agent.GUID(), SenderHandle: x.agent.Entry().Handle, RecipientGUID: recipient,
		Message: d.text, MessageType: d.kind, Metadata: d.metadata, Timestamp: store.Timestamp(l.Sent)})
	if err != nil {
		return Letter{}, &store.Error{Code: store.InternalError, Message: "The message cannot be encoded.", Err: err}
	}
	if most := store.MaxPayload(b); int64(len(data)) > most {
		return Letter{}, store.Invalid("The encoded message is %d bytes long; the server accepts %d.", len(data), most).
			WithRemedy("Write the long part to a file and send its path.")
	}
	l.Data = data
	return l, nil
}

// Post stores a message in an inbox of this bus, exactly once however often it has to
// retry, and returns when it is durable.
func (x *Box) Post(ctx context.Context, recipient string, d Draft) (Sent, error) {
	b, err := x.agent.Ready()
	if err != nil {
		return Sent{}, err
	}
	l, err := x.Letter(b, recipient, d)
	if err != nil {
		return Sent{}, err
	}
	retry := wait.Backoff{Most: time.Second}
	for attempt := 1; ; attempt++ {
		_, err = x.svc.post(ctx, b, recipient, l.ID, l.Data)
		if err == nil {
			break
		}
		if IsFull(err) {
			return Sent{}, &store.Error{Code: store.ConflictError, Message: "The recipient's inbox is full.",
				Remedy: "Try again when it has read its mail.", Err: err}
		}
		if attempt == sendAttempts || ctx.Err() != nil || !b.Conn().IsConnected() {
			return Sent{}, store.AsError(err)
		}
		if errors.Is(err, jetstream.ErrNoStreamResponse) {
			if err := x.svc.EnsureInbox(ctx, b, recipient); err != nil {
				return Sent{}, err
			}
		}
		retry.Pause(ctx)
	}
	m := Mail{ID: l.ID, SenderGUID: x.agent.GUID(), Recipient: recipient, Timestamp: l.Sent}
	if err := x.svc.writeReceipt(ctx, b, m, Stored, ""); err != nil {
		x.agent.Log().Warn("a message is stored, but its receipt is not", "messageId", l.ID, "error", err)
	}
	return Sent{ID: l.ID, Timestamp: l.Sent}, nil
}

// post is publish to a registered agent, whose inbox may not be there yet. The hub of a confined sender makes it.
func (s *Service) post(ctx context.Context, b *bus.Bus, recipient, id string, data []byte) (duplicate bool, err error) {
	if known, _ := s.first.claim(recipient, "", time.Now()); !known && !s.cfg.Confined() {
		if err := s.EnsureInbox(ctx, b, recipient); err != nil {
			return false, err
		}
		s.first.add(recipient, time.Now().Add(firstWindow), "")
	}
	duplicate, err = s.publish(ctx, b, recipient, id, data)
	if err != nil {
		s.first.forget(recipient)
	}
	return duplicate, err
}

func (s *Service) publish(ctx context.Context, b *bus.Bus, recipient, id string, data []byte) (duplicate bool, err error) {
	ack, err := b.Publish(ctx, &nats.Msg{Subject: store.InboxSubject + recipient, Data: data},
		jetstream.WithMsgID(id), jetstream.WithExpectStream(s.inboxStream(recipient)))
	return err == nil && ack.Duplicate, err
}

// Forward stores a message of another bus in its recipient's inbox. Its id makes a repeated attempt store it once.
func (s *Service) Forward(ctx context.Context, b *bus.Bus, m Mail, data []byte) error {
	duplicate, err := s.publish(ctx, b, m.Recipient, m.ID, data)
	if err != nil {
		return err
	}
	if err := s.writeReceipt(ctx, b, m, Stored, ""); err != nil {
		s.reg.Log().Warn("a forwarded message's receipt was not written", "messageId", m.ID, "error", err)
	}
	s.reg.Log().Info("a queued message was forwarded", "messageId", m.ID, "duplicate", duplicate)
	return nil
}

// IsUndeliverable reports whether there is no such inbox, it is full, or the server accepts no message of this size.
func IsUndeliverable(err error) bool {
	return IsFull(err) || errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrMaxPayload)
}

// Return stores an error report in the inbox of the sender of an undeliverable message.
func (s *Service) Return(ctx context.Context, b *bus.Bus, m Mail, why error) error {
	log := s.reg.Log().With("messageId", m.ID, "sender", m.SenderGUID, "recipient", m.Recipient)
	log.Warn("a queued message cannot be delivered", "error", why)
	reason := "there is no such inbox, or it is full"
	if errors.Is(why, nats.ErrMaxPayload) {
		reason = "it is too long for the network's server; write the long part to a file and send its path"
	}
	text := m.Text
	if len(text) > maxReturned {
		text = strings.ToValidUTF8(text[:maxReturned], "") + "…"
	}
	data, err := json.Marshal(payload{MessageID: uuid.NewSHA1(uuid.NameSpaceOID, []byte(m.ID)).String(), SenderGUID: m.SenderGUID,
		SenderHandle: m.SenderHandle, RecipientGUID: m.SenderGUID, MessageType: ErrorReport, Timestamp: store.Timestamp(s.reg.Now()),
		Message: "Your message " + m.ID + " to " + m.Recipient + " could not be delivered: " + reason + ". It was:\n" + text})
	if err != nil {
		return err
	}
	_, err = b.Publish(ctx, &nats.Msg{Subject: store.InboxSubject + m.SenderGUID, Data: data}, jetstream.WithMsgID(m.ID+"/undeliverable"))
	if IsUndeliverable(err) {
		log.Error("an undeliverable message cannot be returned to its sender either", "error", err)
		return nil
	}
	return err
}
