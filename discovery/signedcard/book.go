package signedcard

import (
	"fmt"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/identity"
)

// DefaultMaxAgents is how many agents of one key a Book knows unless told otherwise.
const DefaultMaxAgents = 256

// Book remembers what was said last of each agent, so that nothing older is believed.
// It holds at most MaxAgents agents of each key that Trusted lets in, and nothing of
// others. Set the fields before its first use; it is then safe for concurrent use.
type Book struct {
	// Trusted decides whose statements are read: of the keys that were paired with.
	// Nil trusts nobody. It must not block.
	Trusted func(identity.PublicKey) bool
	// MaxAgents bounds the agents of one key; 0 means DefaultMaxAgents.
	MaxAgents int
	// Now is the time; nil means time.Now.
	Now func() time.Time

	mu    sync.Mutex
	last  map[identity.PublicKey]map[string]entry // by agent
	swept time.Time
}

type entry struct {
	sequence uint64
	at       time.Time // when it came
	gone     bool      // it was withdrawn
}

// memory is how long a sequence is remembered after it came: whatever was signed
// before has expired by then.
const memory = MaxLifetime + 2*MaxSkew

func (b *Book) now() time.Time {
	if b.Now == nil {
		return time.Now()
	}
	return b.Now()
}

// Read opens a statement, and believes it if it holds now and is not older than the
// last one about its agent.
func (b *Book) Read(data []byte) (Statement, error) {
	trusted := b.Trusted
	if trusted == nil {
		trusted = func(identity.PublicKey) bool { return false }
	}
	s, err := Open(data, trusted)
	if err != nil {
		return Statement{}, err
	}
	now := b.now()
	if s.IssuedAt.After(now.Add(MaxSkew)) || !s.ExpiresAt.Add(MaxSkew).After(now) {
		return Statement{}, &Error{Code: CodeExpired, Message: fmt.Sprintf("what is said of %s holds from %s to %s; do the clocks differ?",
			s.AgentID(), s.IssuedAt.UTC().Format(time.RFC3339), s.ExpiresAt.UTC().Format(time.RFC3339))}
	}
	return s, b.note(&s, now)
}

func (b *Book) note(s *Statement, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweep(now)
	known := b.last[s.Key]
	last, ok := known[s.AgentID()]
	limit := b.MaxAgents
	if limit <= 0 {
		limit = DefaultMaxAgents
	}
	switch {
	case ok && s.Sequence <= last.sequence:
		return &Error{Code: CodeOld, Message: fmt.Sprintf("statement %d about %s comes after %d", s.Sequence, s.AgentID(), last.sequence)}
	case !ok && len(known) >= limit:
		return &Error{Code: CodeTooMany, Message: fmt.Sprintf("%s has %d agents already, as many as are allowed", s.Key, len(known))}
	}
	if known == nil {
		if b.last == nil {
			b.last = make(map[identity.PublicKey]map[string]entry)
		}
		known = make(map[string]entry)
		b.last[s.Key] = known
	}
	known[s.AgentID()] = entry{s.Sequence, now, s.Withdrawn != ""}
	return nil
}

// Left reports whether the owner of a key has withdrawn all its agents that are
// remembered, of which there is one at least: it has said goodbye.
func (b *Book) Left(key identity.PublicKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.last[key] {
		if !e.gone {
			return false
		}
	}
	return len(b.last[key]) > 0
}

// sweep forgets what was said so long ago that nothing older can hold; b.mu is held.
func (b *Book) sweep(now time.Time) {
	if now.Sub(b.swept) < MaxSkew {
		return
	}
	b.swept = now
	for key, known := range b.last {
		for id, e := range known {
			if now.Sub(e.at) > memory {
				delete(known, id)
			}
		}
		if len(known) == 0 {
			delete(b.last, key)
		}
	}
}

// Author signs statements about the agents of one key, each later than the one
// before, also after a restart as long as the clock goes on. It is safe for
// concurrent use.
type Author struct {
	pair *identity.Pair
	life time.Duration

	mu   sync.Mutex
	last uint64
}

// NewAuthor returns an author whose statements hold for a while, of MaxLifetime at
// most.
func NewAuthor(pair *identity.Pair, life time.Duration) *Author {
	return &Author{pair: pair, life: min(life, MaxLifetime)}
}

// Key returns whose statements they are.
func (a *Author) Key() identity.PublicKey { return a.pair.Public() }

// State signs that an agent is as its card says.
func (a *Author) State(card agent.Card) ([]byte, error) { return a.sign(Statement{Card: card}) }

// Withdraw signs that an agent is no more.
func (a *Author) Withdraw(id string) ([]byte, error) { return a.sign(Statement{Withdrawn: id}) }

func (a *Author) sign(s Statement) ([]byte, error) {
	now := time.Now()
	a.mu.Lock()
	a.last = max(a.last+1, uint64(now.UnixMilli()))
	s.Sequence = a.last
	a.mu.Unlock()
	s.IssuedAt, s.ExpiresAt = now, now.Add(a.life)
	return Sign(a.pair, s)
}
