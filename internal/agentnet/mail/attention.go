package mail

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// Sign is what is known of an open session's attention for a message. Signs are no stages: each has its own time, or none.
type Sign string

// The signs.
const (
	Woken   Sign = "woken"   // the session began a turn because of the message
	Shown   Sign = "shown"   // the session was told in a turn that the message is there
	Held    Sign = "held"    // the session's program waits for its user before it lets the message wake the session
	Refused Sign = "refused" // the program or its user did not let the message wake the session
)

// Attention is when each sign came first. Times are ISO 8601, empty for what is not known to have happened.
type Attention struct {
	WokenAt   string `json:"wokenAt,omitempty" jsonschema:"When the recipient's session began a turn because of the message"`
	ShownAt   string `json:"shownAt,omitempty" jsonschema:"When the session was told in a turn that the message is there"`
	HeldAt    string `json:"heldAt,omitempty" jsonschema:"When the session's program began to wait for its user before it lets the message wake the session"`
	RefusedAt string `json:"refusedAt,omitempty" jsonschema:"When the program or its user did not let the message wake the session"`
}

// time returns the place of a sign's time, nil for an unknown sign.
func (a *Attention) time(s Sign) *string {
	switch s {
	case Woken:
		return &a.WokenAt
	case Shown:
		return &a.ShownAt
	case Held:
		return &a.HeldAt
	case Refused:
		return &a.RefusedAt
	}
	return nil
}

// attentionSuffix makes of the subject of a message's receipt that of its attention. They are apart because the recipient's
// process writes receipts without reading them.
const attentionSuffix = "_attention"

func attentionKey(m Mail) store.Key {
	k := receiptKey(m)
	k.Subject += attentionSuffix
	return k
}

// DecodeAttention reads the signs of a message from what was published on a subject of receipts. ok is false for a receipt.
func DecodeAttention(subject string, data []byte) (messageID string, a Attention, ok bool) {
	id, ok := strings.CutSuffix(subject[strings.LastIndexByte(subject, '.')+1:], attentionSuffix)
	ok = ok && json.Unmarshal(data, &a) == nil
	return id, a, ok
}

// Note records that a sign came at a time. A sign that is recorded stays as it is.
func (s *Service) Note(ctx context.Context, b *bus.Bus, m Mail, sign Sign, at time.Time) (Attention, error) {
	var a Attention
	_, err := attentionKey(m).Update(ctx, b, func(v store.Value) (any, error) {
		a = Attention{}
		if v.Exists() && json.Unmarshal(v.Data, &a) != nil {
			a = Attention{}
		}
		field := a.time(sign)
		if field == nil || *field != "" {
			return nil, nil
		}
		*field = store.Timestamp(at)
		return a, nil
	})
	return a, store.AsError(err)
}

// AttentionOf returns the signs of a message.
func (s *Service) AttentionOf(ctx context.Context, b *bus.Bus, sender, recipient, messageID string) (a Attention, err error) {
	v, err := attentionKey(Mail{ID: messageID, SenderGUID: sender, Recipient: recipient}).Get(ctx, b)
	if err != nil || !v.Exists() {
		return a, store.AsError(err)
	}
	_ = json.Unmarshal(v.Data, &a) // damaged signs are no signs
	return a, nil
}

// Waiting returns the oldest mail of an agent that was not read, without texts and metadata but those of tasks, at most limit
// messages, and whether there is more. It marks nothing.
func (s *Service) Waiting(ctx context.Context, b *bus.Bus, guid string, limit int) (list []Mail, more bool, err error) {
	v, err := store.Key{Stream: store.MailStream, Subject: store.ReadSubject + guid}.Get(ctx, b)
	if err != nil {
		return nil, false, store.AsError(err)
	}
	var marks readMarks
	if v.Exists() {
		if err := json.Unmarshal(v.Data, &marks); err != nil {
			return nil, false, store.AsError(err)
		}
	}
	list, more, err = s.waiting(ctx, b, guid, marks, limit)
	if err == nil && len(list) == 0 && marks.Floor > 0 { // the inbox may have been made again: its numbers are new then
		ctx, cancel := context.WithTimeout(ctx, store.RequestTimeout)
		defer cancel()
		stream, serr := b.JetStream().Stream(ctx, s.inboxStream(guid))
		if serr == nil && stream.CachedInfo().State.LastSeq < marks.Floor {
			list, more, err = s.waiting(ctx, b, guid, readMarks{}, limit)
		}
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, nats.ErrNoResponders) {
		return nil, false, nil
	}
	return list, more, store.AsError(err)
}

func (s *Service) waiting(ctx context.Context, b *bus.Bus, guid string, marks readMarks, limit int) (list []Mail, more bool, err error) {
	err = store.Scan(ctx, b, s.inboxStream(guid), store.InboxSubject+guid, marks.Floor+1, func(msg store.Message) bool {
		m, err := Decode(msg.Data, msg.Header)
		if err != nil || m.Recipient != guid || marks.contain(msg.Sequence) {
			return true
		}
		if more = len(list) == limit; more {
			return false
		}
		m.Text, m.Sequence = "", msg.Sequence
		if m.Type != Task && m.Type != TaskCanceled && m.Type != TaskAnswer {
			m.Metadata = nil
		}
		list = append(list, m)
		return true
	})
	return list, more, err
}
