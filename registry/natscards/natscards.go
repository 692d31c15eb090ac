// Package natscards lets hubs on one NATS server, cluster or leaf link discover each
// other's agents: a [Source] announces the cards of its own and finds those of others,
// as signed statements (Req 1.7, 1.8). See package signedcard for what is believed.
//
// Subjects, below the prefix:
//
//	PREFIX.cards.KEY   what the owner of a key says of its agents
//	PREFIX.ask         somebody would like to hear it now
package natscards

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/registry/signedcard"
	"github.com/parleyhub/parley/transport/hyperswarm/keys"
)

// Bounds of what others can make a source do.
const (
	maxPending   = 1024                   // statements that wait to be read; more are lost
	maxBytes     = 16 << 20               // of them
	perSecond    = 200                    // statements of one key that are read
	burst        = 1000                   // of them at once
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
	// Author signs what is announced. Its statements should hold for as long as the
	// registry's RemoteTTL, so that both ends forget at the same time.
	Author *signedcard.Author
	// Trusted decides whose cards are believed; see [signedcard.Book]. Nil: nobody's.
	Trusted func(keys.PublicKey) bool
	// Logger gets what nobody else learns of; nil discards it.
	Logger *slog.Logger

	once  sync.Once
	book  *signedcard.Book
	log   *slog.Logger
	asked chan struct{} // has room for one: somebody would like to hear

	mu     sync.Mutex
	mine   map[string]agent.Card // announced
	found  chan struct{}         // closed when a card was found
	rates  map[keys.PublicKey]*rate.Limiter
	warned time.Time
}

func (s *Source) init() {
	s.once.Do(func() {
		s.book = &signedcard.Book{Trusted: s.Trusted}
		s.log = s.Logger
		if s.log == nil {
			s.log = slog.New(slog.NewTextHandler(io.Discard, nil))
		}
		s.asked = make(chan struct{}, 1)
		s.mine = make(map[string]agent.Card)
		s.found = make(chan struct{})
		s.rates = make(map[keys.PublicKey]*rate.Limiter)
	})
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
	if err := s.ask(); err != nil {
		return discoveryError(err)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-states:
			if err := s.ask(); err != nil {
				return discoveryError(err)
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

func (s *Source) wake() {
	select {
	case s.asked <- struct{}{}:
	default:
	}
}

// answer announces all cards again, for whoever asked, and then pauses: a flood of
// questions gets few answers.
func (s *Source) answer(ctx context.Context) {
	s.mu.Lock()
	cards := slices.Collect(maps.Values(s.mine))
	s.mu.Unlock()
	for _, card := range cards {
		if err := s.publish(card); err != nil {
			s.log.Debug("a card could not be announced", "agent", card.ID, "error", err)
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
	key, err := keys.ParsePublicKey(text)
	if err != nil || key == s.Author.Key() || !s.may(key) {
		return
	}
	said, err := s.book.Read(m.Data)
	if err == nil && said.Key != key {
		return // it is said where another's is; NATS may let nobody speak for others
	}
	switch {
	case err != nil:
	case said.Withdrawn != "":
		sink.Lost(said.Withdrawn)
	default:
		err = sink.Found(said.Card)
	}
	if err != nil {
		s.refused(key, err)
		return
	}
	s.mu.Lock()
	close(s.found)
	s.found = make(chan struct{})
	s.mu.Unlock()
}

func cutLast(subject string) (before, token string, ok bool) {
	i := strings.LastIndexByte(subject, '.')
	if i < 0 {
		return "", subject, false
	}
	return subject[:i], subject[i+1:], true
}

// may decides, before anything is read, whether a key is one that is listened to and
// says not too much.
func (s *Source) may(key keys.PublicKey) bool {
	if s.Trusted == nil || !s.Trusted(key) {
		return false
	}
	s.mu.Lock()
	l := s.rates[key]
	if l == nil { // of trusted keys only, which are few
		l = rate.NewLimiter(perSecond, burst)
		s.rates[key] = l
	}
	s.mu.Unlock()
	return l.Allow()
}

// refused tells of what is not believed, at most once a second.
func (s *Source) refused(key keys.PublicKey, err error) {
	level := slog.LevelWarn
	if signedcard.CodeOf(err) == signedcard.CodeOld {
		level = slog.LevelDebug // NATS clusters may repeat and reorder
	}
	s.mu.Lock()
	quiet := time.Since(s.warned) < time.Second
	if !quiet {
		s.warned = time.Now()
	}
	s.mu.Unlock()
	if !quiet {
		s.log.Log(context.Background(), level, "what a hub says of its agent is not believed", "peer", key, "error", err)
	}
}

// Announce implements [registry.Announcer].
func (s *Source) Announce(_ context.Context, card agent.Card) error {
	s.init()
	s.mu.Lock()
	s.mine[card.ID] = card.Clone()
	s.mu.Unlock()
	return s.publish(card)
}

func (s *Source) publish(card agent.Card) error {
	data, err := s.Author.State(card)
	if err != nil {
		return err
	}
	return s.say(data)
}

func (s *Source) say(data []byte) error {
	if err := s.Conn.Publish(s.subject("cards."+s.Author.Key().String()), data); err != nil {
		return discoveryError(err)
	}
	return nil
}

// Withdraw implements [registry.Announcer].
func (s *Source) Withdraw(ctx context.Context, id string) error {
	s.init()
	s.mu.Lock()
	delete(s.mine, id)
	s.mu.Unlock()
	data, err := s.Author.Withdraw(id)
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
	s.init()
	s.mu.Lock()
	found := s.found
	s.mu.Unlock()
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
