package mail

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// An inbox costs its server 50 KB, and most agents get no mail. A hub therefore makes the inbox of an agent that it admits on
// its own bus with the agent's first message: that is published to a subject without a stream, so the hub makes the stream,
// stores the message for its sender, and passes the acknowledgement on.

const (
	// firstWindow is how long messages to a new inbox are stored by the hub, too: they may have been published before it was there.
	firstWindow = 2 * store.RequestTimeout
	// madeAge is how long an inbox is taken to exist without a look: it is removed when its agent is forgotten.
	madeAge = time.Minute
	// maxMade bounds the inboxes that are known to exist.
	maxMade = 10_000
)

// firstMail remembers which inboxes exist.
type firstMail struct {
	mu      sync.Mutex
	inboxes map[string]*madeInbox // by GUID
}

// madeInbox is an inbox that exists.
type madeInbox struct {
	seen   time.Time
	until  time.Time           // the end of its firstWindow, zero if it was there before
	stored map[string]struct{} // ids of the messages that the hub has stored
}

// claim reports whether a message is to be stored by the hub: known is false for an inbox of which nothing is known.
func (f *firstMail) claim(guid, id string, now time.Time) (known, needed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.inboxes[guid]
	if x == nil || now.Sub(x.seen) > madeAge {
		return false, false
	}
	if now.After(x.until) {
		x.stored = nil
		return true, false
	}
	if id == "" {
		return true, false
	}
	_, again := x.stored[id]
	x.stored[id] = struct{}{}
	return true, !again
}

// add records an inbox that exists, until the end of its window for one that is new.
func (f *firstMail) add(guid string, until time.Time, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inboxes == nil || len(f.inboxes) >= maxMade {
		f.inboxes = map[string]*madeInbox{}
	}
	f.inboxes[guid] = &madeInbox{time.Now(), until, map[string]struct{}{id: {}}}
}

func (f *firstMail) forget(guid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.inboxes, guid)
}

// AwaitFirst makes the inboxes of agents of the registry with their first mail, until the connection ends. It calls arrived with the
// GUID of the recipient of each message, which may not be stored yet; arrived must not block.
func (s *Service) AwaitFirst(ctx context.Context, b *bus.Bus, arrived func(guid string)) error {
	_, err := b.Conn().Subscribe(store.InboxSubject+"*", func(m *nats.Msg) {
		arrived(strings.TrimPrefix(m.Subject, store.InboxSubject))
		if err := s.storeFirst(ctx, b, m); err != nil && ctx.Err() == nil {
			s.reg.Log().Warn("a message to an agent without an inbox was not stored; its sender tries again", "subject", m.Subject, "error", err)
		}
	})
	return err
}

// ForgetInbox has the next message to an agent checked again. The agent may come back after its inbox was removed.
func (s *Service) ForgetInbox(guid string) { s.first.forget(guid) }

// storeFirst stores a message whose recipient has no inbox yet, and answers its sender as the server would.
func (s *Service) storeFirst(ctx context.Context, b *bus.Bus, m *nats.Msg) error {
	guid := strings.TrimPrefix(m.Subject, store.InboxSubject)
	id := m.Header.Get(jetstream.MsgIDHeader)
	known, needed := s.first.claim(guid, id, time.Now())
	if known && !needed {
		return nil
	}
	if !known {
		made, err := s.makeFirst(ctx, b, guid)
		if err != nil {
			return err
		}
		if !made {
			return nil
		}
		s.first.add(guid, time.Now().Add(firstWindow), id)
	}
	again := &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}
	ctx, cancel := context.WithTimeout(ctx, store.RequestTimeout)
	defer cancel()
	answer, err := b.Conn().RequestMsgWithContext(ctx, again)
	if err != nil || m.Reply == "" {
		return err
	}
	return b.Conn().Publish(m.Reply, answer.Data)
}

// makeFirst makes the inbox of an agent of the registry. made is false if it was there, or there is no such agent.
func (s *Service) makeFirst(ctx context.Context, b *bus.Bus, guid string) (made bool, err error) {
	if _, err := store.CheckGUID("guid", guid); err != nil {
		return false, nil // not of this network
	}
	exists, err := s.hasInbox(ctx, b, guid)
	if err != nil {
		return false, err
	}
	if exists {
		s.first.add(guid, time.Time{}, "")
		if err := s.dropMarks(ctx, b, guid); err != nil && !errors.Is(err, store.ErrConflict) { // a reader has just looked itself
			s.reg.Log().Warn("whether the read marks are those of this inbox is not known", "agent", guid, "error", err)
		}
		return false, nil
	}
	if _, err := s.reg.Addressee(ctx, b, guid); err != nil {
		if store.IsNotFound(err) {
			err = nil
		}
		return false, err
	}
	return true, s.EnsureInbox(ctx, b, guid)
}

// hasInbox reports whether the stream of an agent's mail exists.
func (s *Service) hasInbox(ctx context.Context, b *bus.Bus, guid string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, store.RequestTimeout)
	defer cancel()
	_, err := b.JetStream().Stream(ctx, s.inboxStream(guid))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return false, nil
	}
	return err == nil, err
}

// scanInbox is store.Scan of an agent's mail. An inbox that does not exist yet is empty.
func (s *Service) scanInbox(ctx context.Context, b *bus.Bus, guid string, from uint64, visit func(store.Message) bool) error {
	err := store.Scan(ctx, b, s.inboxStream(guid), store.InboxSubject+guid, from, visit)
	if !errors.Is(err, jetstream.ErrStreamNotFound) && !errors.Is(err, nats.ErrNoResponders) {
		return err
	}
	if exists, infoErr := s.hasInbox(ctx, b, guid); infoErr == nil && !exists {
		return nil
	}
	return err
}
