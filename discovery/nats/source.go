// Package nats lets hubs on one NATS server, cluster or leaf link discover each
// other's agents. A [Source] announces its own hub's cards and finds those of other
// hubs, as signed statements; package signedcard says which are accepted.
//
// Subjects, below the prefix:
//
//	PREFIX.cards.KEY   statements of the owner of a key
//	PREFIX.ask         a request that all hubs repeat their statements now
package nats

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/registry"
)

// Bounds of what other hubs can make a source do; see also package signedcard.
const (
	maxPending   = 1024                   // unread statements; more are lost
	maxBytes     = 16 << 20               // of them
	answerPause  = 200 * time.Millisecond // between two answers to requests
	findTimeout  = time.Second
	flushTimeout = 2 * time.Second // for a withdrawal
)

// Source is a [registry.Source], [registry.Announcer] and [registry.Finder]. Set the fields before the first use; it
// is then safe for concurrent use. One Source serves one registry.
type Source struct {
	// Conn is the connection to NATS. The caller closes it.
	Conn *nats.Conn
	// Prefix starts all subjects, as for the transport; "" means "parley".
	Prefix string
	// Ledger signs and checks the statements.
	Ledger *signedcard.Ledger

	once  sync.Once
	asked chan struct{} // buffers one request

	mu       sync.Mutex
	lastSeen map[identity.PublicKey]time.Time // of trusted keys, so it is small
}

func (s *Source) init() {
	s.once.Do(func() { s.asked, s.lastSeen = make(chan struct{}, 1), make(map[identity.PublicKey]time.Time) })
}

func (s *Source) subject(of string) string { return cmp.Or(s.Prefix, "parley") + "." + of }

// Check implements [registry.Checker].
func (s *Source) Check() error {
	if s == nil || s.Conn == nil || s.Conn.IsClosed() {
		return &registry.Error{Code: registry.CodeNotConfigured, Message: "the source has no open connection to NATS: set Conn"}
	}
	return s.Ledger.Check()
}

// Discover implements [registry.Source]. It requests all statements now, so that
// present hubs are known within a round trip, and after each reconnection to NATS.
func (s *Source) Discover(ctx context.Context, sink registry.Sink) error {
	s.init()
	cards, err := s.Conn.Subscribe(s.subject("cards.*"), func(m *nats.Msg) { s.receive(m, sink) })
	if err != nil {
		return discoveryError(err)
	}
	defer unsubscribe(cards)
	if err := cards.SetPendingLimits(maxPending, maxBytes); err != nil {
		return discoveryError(err)
	}
	asks, err := s.Conn.Subscribe(s.subject("ask"), func(*nats.Msg) { wait.Nudge(s.asked) })
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
			wait.Nudge(s.asked)
		case <-s.asked:
			s.answer(ctx)
		}
	}
}

// unsubscribe ends a subscription. It fails only if the connection is closed.
func unsubscribe(sub *nats.Subscription) { _ = sub.Unsubscribe() }

func discoveryError(err error) error {
	return &registry.Error{Code: registry.CodeDiscovery, Message: "the cards on NATS cannot be read or announced", Err: err}
}

func (s *Source) ask() error { return s.Conn.Publish(s.subject("ask"), nil) }

// askAll requests all statements. A lost connection is no error: Discover asks again after the reconnection.
func (s *Source) askAll() error {
	if err := s.ask(); err != nil && (s.Conn.IsConnected() || s.Conn.IsClosed()) {
		return discoveryError(err)
	}
	return nil
}

// answer repeats all statements and then pauses, which bounds the answers to a flood of requests.
func (s *Source) answer(ctx context.Context) {
	for _, id := range s.Ledger.Agents() {
		if data, err := s.Ledger.Statement(id); err == nil {
			_ = s.publish(data) // after a reconnection Discover answers again
		}
	}
	wait.Pause(ctx, answerPause)
}

// receive handles one statement. NATS calls it for one message at a time.
func (s *Source) receive(m *nats.Msg, sink registry.Sink) {
	key, err := identity.ParsePublicKey(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	if err != nil || !s.Ledger.Receive(key, m.Data, sink) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Ledger.AllWithdrawn(key) { // the hub stops
		delete(s.lastSeen, key)
		return
	}
	s.lastSeen[key] = time.Now()
}

// LastSeen returns the time of the last statement from the owner of a key over NATS. It is zero if there was none,
// or if all its agents have been withdrawn since, as when a hub stops.
func (s *Source) LastSeen(key identity.PublicKey) time.Time {
	s.init() // Discover may just begin
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastSeen[key]
}

// AnnouncedID implements [registry.Namer].
func (s *Source) AnnouncedID(id string) string { return s.Ledger.AnnouncedID(id) }

// Announce implements [registry.Announcer].
func (s *Source) Announce(_ context.Context, card agent.Card) error {
	data, err := s.Ledger.Announce(card)
	if err != nil {
		return err
	}
	return s.publish(data)
}

func (s *Source) publish(data []byte) error {
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
	if err := s.publish(data); err != nil {
		return err
	}
	if !s.Conn.IsConnected() {
		return nil // the last statement expires
	}
	flushing, cancel := context.WithTimeout(ctx, flushTimeout) // NATS requires a deadline
	defer cancel()
	return s.Conn.FlushWithContext(flushing)
}

// Find implements [registry.Finder]. It requests all statements and waits up to a
// second for the first. Discover reports the cards; Find itself returns none.
func (s *Source) Find(ctx context.Context, _ registry.Query) ([]agent.Card, error) {
	found := s.Ledger.Found()
	if err := s.ask(); err != nil {
		return nil, discoveryError(err)
	}
	select {
	case <-found:
	case <-time.After(findTimeout):
	case <-ctx.Done():
	}
	return nil, nil
}
