package signedcard

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/registry"
)

// Bounds of what one key can make a ledger do.
const (
	perSecond = 200  // statements that are read
	burst     = 1000 // of them at once
)

// Ledger is what a hub says of its agents and hears of others', whatever carries it.
// Several carriers share one, so that what comes twice counts once. Set the fields
// before its first use; it is then safe for concurrent use and never blocks.
type Ledger struct {
	// Author signs what the hub says. Its statements should hold for as long as the
	// registry's RemoteTTL, so that both ends forget at the same time.
	Author *Author
	// Trusted decides whose cards are believed; see [Book]. Nil: nobody's.
	Trusted func(identity.PublicKey) bool
	// Logger gets what nobody else learns of; nil discards it.
	Logger *slog.Logger

	once sync.Once
	book *Book
	log  *slog.Logger

	mu     sync.Mutex
	mine   map[string]agent.Card // announced
	found  chan struct{}         // closed when something is heard
	rates  map[identity.PublicKey]*rate.Limiter
	heard  map[identity.PublicKey]hearing
	warned time.Time
}

// hearing is how a key was heard last.
type hearing struct {
	at      time.Time // when it was believed
	refused error     // why it was not since; nil if it was
}

func (l *Ledger) init() {
	l.once.Do(func() {
		l.book = &Book{Trusted: l.Trusts}
		l.log = l.Logger
		if l.log == nil {
			l.log = slog.New(slog.DiscardHandler)
		}
		l.mine = make(map[string]agent.Card)
		l.found = make(chan struct{})
		l.rates = make(map[identity.PublicKey]*rate.Limiter)
		l.heard = make(map[identity.PublicKey]hearing)
	})
}

// Trusts reports whether what the owner of a key says is believed.
func (l *Ledger) Trusts(key identity.PublicKey) bool { return l.Trusted != nil && l.Trusted(key) }

// Announce notes an agent of the hub and returns what to say of it.
func (l *Ledger) Announce(card agent.Card) ([]byte, error) {
	l.init()
	l.mu.Lock()
	l.mine[card.ID] = card.Clone()
	l.mu.Unlock()
	return l.Author.State(card)
}

// Withdraw forgets an agent of the hub and returns what to say then.
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

// Capabilities returns the ids of what the agents can do that were announced and not
// withdrawn, in order and each once.
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

// Statement returns what to say of an agent now: that it is as its card, or is no
// more.
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

// Hear takes what the owner of a key says, as a carrier has it. What is not believed,
// or comes too fast, changes nothing but the log and what [Ledger.Heard] returns. It
// reports whether the owner of the key said it, and not long ago, be it news or not.
func (l *Ledger) Hear(from identity.PublicKey, data []byte, sink registry.Sink) bool {
	l.init()
	if from == l.Author.Key() || !l.may(from) {
		return false
	}
	said, err := l.book.Read(data)
	switch {
	case err != nil:
	case said.Key != from: // who carries it may let nobody speak for others
		err = &Error{Code: CodeForged, Message: "it is of " + said.Key.String()}
	case said.Withdrawn != "":
		sink.Lost(said.Withdrawn)
	default:
		err = sink.Found(said.Card)
	}
	if err != nil {
		l.refused(from, err)
		return CodeOf(err) == CodeOld && said.Key == from
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard[from] = hearing{at: time.Now()}
	close(l.found)
	l.found = make(chan struct{})
	return true
}

// Heard returns when something that the owner of a key said was believed last, the zero
// time for never, and why what came since was not.
func (l *Ledger) Heard(key identity.PublicKey) (at time.Time, refused error) {
	l.init()
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.heard[key]
	return h.at, h.refused
}

// Left reports whether the owner of a key has withdrawn all its agents: it has left.
func (l *Ledger) Left(key identity.PublicKey) bool {
	l.init()
	return l.book.Left(key)
}

// Found is closed when the next statement is believed.
func (l *Ledger) Found() <-chan struct{} {
	l.init()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.found
}

// may decides, before anything is read, whether a key is one that is listened to and
// says not too much.
func (l *Ledger) may(key identity.PublicKey) bool {
	if !l.Trusts(key) {
		return false
	}
	l.mu.Lock()
	r := l.rates[key]
	if r == nil { // of trusted keys only, which are few
		r = rate.NewLimiter(perSecond, burst)
		l.rates[key] = r
	}
	l.mu.Unlock()
	return r.Allow()
}

// refused tells of what is not believed, at most once a second.
func (l *Ledger) refused(key identity.PublicKey, err error) {
	level := slog.LevelWarn
	if CodeOf(err) == CodeOld {
		level = slog.LevelDebug // several carriers, and clusters, repeat and reorder
	}
	l.mu.Lock()
	if CodeOf(err) != CodeOld { // of trusted keys only, see may
		l.heard[key] = hearing{at: l.heard[key].at, refused: err}
	}
	quiet := time.Since(l.warned) < time.Second
	if !quiet {
		l.warned = time.Now()
	}
	l.mu.Unlock()
	if !quiet {
		l.log.Log(context.Background(), level, "what a hub says of its agent is not believed", "peer", key, "error", err)
	}
}
