// Package nats lets hubs on one NATS server, cluster or leaf link discover each
// other's agents: a [Source] announces the cards of its own and finds those of others,
// as signed statements (Req 1.7, 1.8). See package signedcard for what is believed.
//
// Subjects, below the prefix:
//
//	PREFIX.cards.KEY   what the owner of a key says of its agents
//	PREFIX.ask         somebody would like to hear it now
package nats

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/registry"
)

// Bounds of what others can make a source do; see also package signedcard.
const (
	maxPending   = 1024                   // statements that wait to be read; more are lost
	maxBytes     = 16 << 20               // of them
	answerPause  = 200 * time.Millisecond // between two answers to those who ask
	findPatience = time.Second            // for answers
)

// Source is a [registry.Source], [registry.Announcer] and [registry.Finder]. Set the
// fields before its first use, which makes it safe for concurrent use; one Source
// serves one registry.
type Source struct {
	// Conn is the connection to NATS. It is the caller's.
	Conn *nats.Conn
	// Prefix is what subjects begin with, as for the transport.
	Prefix string
	// Ledger has what is said and heard.
	Ledger *signedcard.Ledger

	once  sync.Once
	asked chan struct{} // has room for one: somebody would like to hear

	mu    sync.Mutex
	heard map[identity.PublicKey]time.Time // of keys that the ledger trusts, which are few
}

func (s *Source) init() {
	s.once.Do(func() { s.asked, s.heard = make(chan struct{}, 1), make(map[identity.PublicKey]time.Time) })
}

func (s *Source) subject(of string) string {
	prefix := s.Prefix
	if prefix == "" {
		prefix = "parley"
	}
	return prefix + "." + of
}

// Discover implements [registry.Source]. It asks at once, so that those who are there
// are known within a round trip, and again when the connection to NATS is back.
func (s *Source) Discover(ctx context.Context, sink registry.Sink) error {
	s.init()
	cards, err := s.Conn.Subscribe(s.subject("cards.*"), func(m *nats.Msg) { s.hear(m, sink) })
	if err != nil {
		return discoveryError(err)
	}
	defer unsubscribe(cards)
	if err := cards.SetPendingLimits(maxPending, maxBytes); err != nil {
		return discoveryError(err)
	}
	asks, err := s.Conn.Subscribe(s.subject("ask"), func(*nats.Msg) { s.wake() })
	if err != nil {
		return discoveryError(err)
	}
	defer unsubscribe(asks)
	states := s.Conn.StatusChanged(nats.CONNECTED)
	defer s.Conn.RemoveStatusListener(states)
	if err := s.askAll(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-states:
			if err := s.askAll(); err != nil {
				return err
			}
			s.wake()
		case <-s.asked:
			s.answer(ctx)
		}
	}
}

// unsubscribe ends a subscription, which fails only where the connection is closed.
func unsubscribe(sub *nats.Subscription) { _ = sub.Unsubscribe() }

func discoveryError(err error) error {
	return &registry.Error{Code: registry.CodeDiscovery, Message: "the cards on NATS cannot be read or announced", Err: err}
}

func (s *Source) ask() error { return s.Conn.Publish(s.subject("ask"), nil) }

// askAll asks unless the connection is away: when it is back it is done again.
func (s *Source) askAll() error {
	if err := s.ask(); err != nil && (s.Conn.IsConnected() || s.Conn.IsClosed()) {
		return discoveryError(err)
	}
	return nil
}

func (s *Source) wake() {
	select {
	case s.asked <- struct{}{}:
	default:
	}
}

// answer announces all cards again, for whoever asked, and then pauses: a flood of
// questions gets few answers.
func (s *Source) answer(ctx context.Context) {
	for _, id := range s.Ledger.Agents() {
		if data, err := s.Ledger.Statement(id); err == nil {
			_ = s.say(data) // a connection that is back asks and answers again
		}
	}
	t := time.NewTimer(answerPause)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// hear takes what somebody says. NATS calls it with one message after the other.
func (s *Source) hear(m *nats.Msg, sink registry.Sink) {
	_, text, _ := cutLast(m.Subject)
	key, err := identity.ParsePublicKey(text)
	if err != nil || !s.Ledger.Hear(key, m.Data, sink) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Ledger.Left(key) {
		delete(s.heard, key) // that was its goodbye
		return
	}
	s.heard[key] = time.Now()
}

// Heard returns when the owner of a key was heard last this way; zero for never, and for
// one that has withdrawn all its agents since, as a hub does when it stops.
func (s *Source) Heard(key identity.PublicKey) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard[key]
}

func cutLast(subject string) (before, token string, ok bool) {
	i := strings.LastIndexByte(subject, '.')
	if i < 0 {
		return "", subject, false
	}
	return subject[:i], subject[i+1:], true
}

// Announce implements [registry.Announcer].
func (s *Source) Announce(_ context.Context, card agent.Card) error {
	data, err := s.Ledger.Announce(card)
	if err != nil {
		return err
	}
	return s.say(data)
}

func (s *Source) say(data []byte) error {
	if err := s.Conn.Publish(s.subject("cards."+s.Ledger.Author.Key().String()), data); err != nil {
		return discoveryError(err)
	}
	return nil
}

// Withdraw implements [registry.Announcer].
func (s *Source) Withdraw(ctx context.Context, id string) error {
	data, err := s.Ledger.Withdraw(id)
	if err != nil {
		return err
	}
	if err := s.say(data); err != nil {
		return err
	}
	if !s.Conn.IsConnected() {
		return nil // what cannot be taken back expires
	}
	return s.Conn.FlushWithContext(ctx)
}

// Find implements [registry.Finder]: it asks, and waits for up to a second until
// something was found. What it finds goes through Discover: it returns none itself.
func (s *Source) Find(ctx context.Context, _ registry.Query) ([]agent.Card, error) {
	found := s.Ledger.Found()
	if err := s.ask(); err != nil {
		return nil, discoveryError(err)
	}
	t := time.NewTimer(findPatience)
	defer t.Stop()
	select {
	case <-found:
	case <-t.C:
	case <-ctx.Done():
	}
	return nil, nil
}
