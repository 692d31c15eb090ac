package signedcard

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/registry"
)

// The rate limit of the statements of one key.
const (
	perSecond = 200
	burst     = 1000
)

// Ledger signs the statements of a hub and checks those of other hubs, for all its
// discovery sources: a statement that arrives by several counts once. Set the fields
// before the first use; it is then safe for concurrent use and never blocks.
type Ledger struct {
	// Author signs the hub's statements. They should be valid for as long as the
	// registry's RemoteTTL, so that both ends drop a card at the same time.
	Author *Author
	// Trusted reports whether cards of a key are accepted; see [Book]. Nil accepts none.
	Trusted func(identity.PublicKey) bool
	// Logger gets the refused statements; nil discards them.
	Logger *slog.Logger

	once sync.Once
	book *Book
	log  *slog.Logger

	mu      sync.Mutex
	mine    map[string]agent.Card          // announced
	found   wait.Signal                    // when a statement is accepted
	authors map[identity.PublicKey]*author // only trusted ones, so it is small
	warned  time.Time
}

// author is what is known of the owner of a key.
type author struct {
	rate    *rate.Limiter
	at      time.Time // of the last accepted statement
	refused error     // of a later one that was refused; nil if there was none
}

func (l *Ledger) init() {
	l.once.Do(func() {
		l.book = &Book{Trusted: l.Trusts}
		l.log = cmp.Or(l.Logger, slog.New(slog.DiscardHandler))
		l.mine = make(map[string]agent.Card)
		l.authors = make(map[identity.PublicKey]*author)
	})
}

// Trusts reports whether statements of a key are accepted.
func (l *Ledger) Trusts(key identity.PublicKey) bool { return l.Trusted != nil && l.Trusted(key) }

// Announce adds an agent of the hub and returns the statement about it. Its id is one of the hub's, such as "venus", or
// has the hub's key already. An agent that would have the id of another one between hubs is refused with [CodeTaken].
func (l *Ledger) Announce(card agent.Card) ([]byte, error) {
	l.init()
	if err := l.add(card); err != nil {
		return nil, err
	}
	data, err := l.Author.State(card)
	if err != nil { // it is not announced
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.mine, card.ID)
	}
	return data, err
}

func (l *Ledger) add(card agent.Card) error {
	other := l.Author.globalID(card.ID) // the only other id of this agent between hubs
	if other == card.ID {
		other, _ = agent.SplitID(card.ID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, taken := l.mine[other]; taken && other != card.ID {
		return &Error{Code: CodeTaken, Message: fmt.Sprintf("the agents %q and %q have one id between hubs: rename one", other, card.ID)}
	}
	l.mine[card.ID] = card.Clone()
	return nil
}

// AnnouncedID returns the id between hubs of an agent of the hub: NAME@KEY.
func (l *Ledger) AnnouncedID(id string) string { return l.Author.globalID(id) }

// Check returns an error if the ledger lacks what it needs to sign statements.
func (l *Ledger) Check() error {
	if l == nil || l.Author == nil {
		return &registry.Error{Code: registry.CodeNotConfigured, Message: "the source has no ledger with an author that signs its cards: set both"}
	}
	return nil
}

// Withdraw removes an agent of the hub and returns the statement about that.
func (l *Ledger) Withdraw(id string) ([]byte, error) {
	l.init()
	l.mu.Lock()
	delete(l.mine, id)
	l.mu.Unlock()
	return l.Author.Withdraw(id)
}

// Agents returns the agents that were announced and not withdrawn.
func (l *Ledger) Agents() []string {
	l.init()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.mine))
}

// Capabilities returns the ids of the capabilities of these agents, sorted and without duplicates.
func (l *Ledger) Capabilities() []string {
	l.init()
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []string
	for _, card := range l.mine {
		for _, c := range card.Capabilities {
			ids = append(ids, c.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Statement returns the current statement about an agent: its card, or that it was withdrawn.
func (l *Ledger) Statement(id string) ([]byte, error) {
	l.init()
	l.mu.Lock()
	card, here := l.mine[id]
	l.mu.Unlock()
	if !here {
		return l.Author.Withdraw(id)
	}
	return l.Author.State(card)
}

// Receive checks a statement that a source received from the owner of a key, and passes it to the sink. Refused
// statements, and those beyond the rate limit, change only the log and the result of [Ledger.LastSeen]. It reports
// whether the statement is genuine and recent, even if it is not new.
func (l *Ledger) Receive(from identity.PublicKey, data []byte, sink registry.Sink) bool {
	l.init()
	if from == l.Author.Key() || !l.Trusts(from) {
		return false
	}
	by := l.author(from)
	if !by.rate.Allow() {
		return false
	}
	s, err := l.book.Read(data)
	switch {
	case err != nil:
	case s.Key != from: // nobody may make statements for others
		err = &Error{Code: CodeForged, Message: "the statement is by " + s.Key.String()}
	case s.Withdrawn != "":
		sink.Lost(s.Withdrawn)
	default:
		err = sink.Found(s.Card)
	}
	if err != nil {
		l.refused(from, by, err)
		return CodeOf(err) == CodeOld && s.Key == from
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	by.at, by.refused = time.Now(), nil
	l.found.Send()
	return true
}

// LastSeen returns the time of the last accepted statement of a key, zero for none,
// and the error of a later one that was refused.
func (l *Ledger) LastSeen(key identity.PublicKey) (at time.Time, refused error) {
	l.init()
	l.mu.Lock()
	defer l.mu.Unlock()
	if by := l.authors[key]; by != nil {
		return by.at, by.refused
	}
	return time.Time{}, nil
}

// AllWithdrawn reports whether the owner of a key has withdrawn all its agents, as a hub does when it stops.
func (l *Ledger) AllWithdrawn(key identity.PublicKey) bool {
	l.init()
	return l.book.AllWithdrawn(key)
}

// Found returns a channel that is closed when the next statement is accepted.
func (l *Ledger) Found() <-chan struct{} { return l.found.Wait() }

// author returns the record of a trusted key.
func (l *Ledger) author(key identity.PublicKey) *author {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.authors[key] == nil {
		l.authors[key] = &author{rate: rate.NewLimiter(perSecond, burst)}
	}
	return l.authors[key]
}

// refused logs a refused statement, at most once a second.
func (l *Ledger) refused(key identity.PublicKey, by *author, err error) {
	level := slog.LevelWarn
	if CodeOf(err) == CodeOld {
		level = slog.LevelDebug // several sources, and clusters, repeat and reorder
	}
	l.mu.Lock()
	if CodeOf(err) != CodeOld {
		by.refused = err
	}
	quiet := time.Since(l.warned) < time.Second
	if !quiet {
		l.warned = time.Now()
	}
	l.mu.Unlock()
	if !quiet {
		l.log.Log(context.Background(), level, "a hub's statement about its agent was refused", "peer", key, "error", err)
	}
}
