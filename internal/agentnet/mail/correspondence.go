package mail

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// Correspondence is the mail of two agents, as its receipts tell of it.
type Correspondence struct {
	A, B     string // GUIDs, the smaller one first
	Messages int
	Unread   int
	Newest   time.Time
}

// maxReceipts bounds the receipts that are read for a list.
const maxReceipts = 20_000

// Correspondences returns which agents have written to each other, the newest first, except for the mail of one sender. Receipts
// are kept for two days.
func (s *Service) Correspondences(ctx context.Context, b *bus.Bus, except string) ([]Correspondence, error) {
	found, read := map[[2]string]*Correspondence{}, 0
	err := store.Scan(ctx, b, store.MailStream, store.ReceiptSubject+"*.*.*", 1, func(m store.Message) bool {
		read++
		names := strings.Split(strings.TrimPrefix(m.Subject, store.ReceiptSubject), ".")
		var st MessageStatus
		if len(names) != 3 || names[0] == except || strings.HasSuffix(names[2], attentionSuffix) || json.Unmarshal(m.Data, &st) != nil {
			return read < maxReceipts
		}
		pair := [2]string{min(names[0], names[1]), max(names[0], names[1])}
		c := found[pair]
		if c == nil {
			c = &Correspondence{A: pair[0], B: pair[1]}
			found[pair] = c
		}
		c.Messages++
		if st.ReadAt == "" {
			c.Unread++
		}
		if at := store.ParseTime(st.StoredAt); at.After(c.Newest) {
			c.Newest = at
		}
		return read < maxReceipts
	})
	if err != nil {
		return nil, missing(err)
	}
	list := make([]Correspondence, 0, len(found))
	for _, c := range found {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b Correspondence) int { return b.Newest.Compare(a.Newest) })
	return list, nil
}

// Receipted is a message with its receipt and the signs of its recipient's session.
type Receipted struct {
	Mail
	Status MessageStatus

	stored time.Time // by the server's clock: senders' clocks may differ by more than a question and its answer
}

// Between returns the last limit messages of two agents to each other that are still in their inboxes, the oldest first, and
// whether there are more. It marks nothing as read.
func (s *Service) Between(ctx context.Context, b *bus.Bus, x, y string, limit int) (list []Receipted, more bool, err error) {
	for _, way := range [][2]string{{x, y}, {y, x}} {
		sender, recipient := way[0], way[1]
		err := store.Scan(ctx, b, s.inboxStream(recipient), store.InboxSubject+recipient, 1, func(msg store.Message) bool {
			m, err := Decode(msg.Data, msg.Header)
			if err != nil || m.SenderGUID != sender || m.Recipient != recipient {
				return true
			}
			if list = append(list, Receipted{Mail: m, stored: msg.Time}); len(list) > 2*limit { // so that memory is bounded
				list, more = newest(list, limit), true
			}
			return true
		})
		if err = missing(err); err != nil {
			return nil, false, err
		}
		if x == y {
			break
		}
	}
	more = more || len(list) > limit
	list = newest(list, limit)
	for i := range list {
		m := &list[i]
		st, err := s.StatusOf(ctx, b, m.SenderGUID, m.Recipient, m.ID)
		if err != nil {
			return nil, false, err
		}
		m.Status = MessageStatus{MessageID: m.ID, RecipientGUID: m.Recipient, Status: Stored, StoredAt: store.Timestamp(m.Timestamp)}
		if st != nil {
			m.Status = *st
		}
		if m.Status.Attention, err = s.AttentionOf(ctx, b, m.SenderGUID, m.Recipient, m.ID); err != nil {
			return nil, false, err
		}
	}
	return list, more, nil
}

// newest returns the newest messages, the oldest of them first.
func newest(list []Receipted, limit int) []Receipted {
	slices.SortStableFunc(list, func(a, b Receipted) int { return a.stored.Compare(b.stored) })
	return slices.Clone(list[max(len(list)-limit, 0):])
}

// missing returns nil for the error of a stream that does not exist, any other as one of the agents' network.
func missing(err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, nats.ErrNoResponders) {
		return nil
	}
	return store.AsError(err)
}
