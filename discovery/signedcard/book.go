package signedcard

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/identity"
)

// DefaultMaxAgents is the default of [Book].MaxAgents.
const DefaultMaxAgents = 256

// Book keeps the sequence of the last statement about each agent and refuses older
// ones. It holds at most MaxAgents agents of each trusted key, and nothing of other
// keys. Set the fields before the first use; it is then safe for concurrent use.
type Book struct {
	// Trusted reports whether statements of a key are accepted. Nil accepts none. It must not block.
	Trusted func(identity.PublicKey) bool
	// MaxAgents bounds the agents of one key; 0 means DefaultMaxAgents.
	MaxAgents int
	// Now returns the time; nil means time.Now.
	Now func() time.Time

	mu    sync.Mutex
	last  map[identity.PublicKey]map[string]entry // by agent
	swept time.Time
}

type entry struct {
	sequence uint64
	received time.Time
	gone     bool // it was withdrawn
}

// memory is how long a sequence is kept after its statement was received. All
// statements that were signed earlier have expired by then.
const memory = MaxLifetime + 2*MaxSkew

// Read opens a statement and accepts it if it is valid now and newer than the last one about its agent.
func (b *Book) Read(data []byte) (Statement, error) {
	s, err := Open(data, func(key identity.PublicKey) bool { return b.Trusted != nil && b.Trusted(key) })
	if err != nil {
		return Statement{}, err
	}
	now := time.Now()
	if b.Now != nil {
		now = b.Now()
	}
	if s.IssuedAt.After(now.Add(MaxSkew)) || !s.ExpiresAt.Add(MaxSkew).After(now) {
		return Statement{}, &Error{Code: CodeExpired, Message: fmt.Sprintf("the statement about %s is valid from %s to %s; do the clocks differ?",
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
	limit := cmp.Or(max(b.MaxAgents, 0), DefaultMaxAgents)
	switch {
	case ok && s.Sequence <= last.sequence:
		return &Error{Code: CodeOld, Message: fmt.Sprintf("statement %d about %s is older than statement %d", s.Sequence, s.AgentID(), last.sequence)}
	case !ok && len(known) >= limit:
		return &Error{Code: CodeTooMany, Message: fmt.Sprintf("%s already has %d agents, the most that are allowed", s.Key, len(known))}
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

// AllWithdrawn reports whether the owner of a key has withdrawn all its agents. It
// is false for a key without agents.
func (b *Book) AllWithdrawn(key identity.PublicKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.last[key] {
		if !e.gone {
			return false
		}
	}
	return len(b.last[key]) > 0
}

// sweep deletes entries older than memory. The caller holds b.mu.
func (b *Book) sweep(now time.Time) {
	if now.Sub(b.swept) < MaxSkew {
		return
	}
	b.swept = now
	for key, known := range b.last {
		for id, e := range known {
			if now.Sub(e.received) > memory {
				delete(known, id)
			}
		}
		if len(known) == 0 {
			delete(b.last, key)
		}
	}
}

// Author signs statements about the agents of one key with rising sequences, which follow the clock so that they
// rise across restarts too. It is safe for concurrent use.
type Author struct {
	pair *identity.Pair
	life time.Duration

	mu   sync.Mutex
	last uint64
}

// NewAuthor returns an author whose statements are valid for life, at most MaxLifetime.
func NewAuthor(pair *identity.Pair, life time.Duration) *Author {
	return &Author{pair: pair, life: min(life, MaxLifetime)}
}

// Key returns the key of the statements.
func (a *Author) Key() identity.PublicKey { return a.pair.Public() }

// State signs an agent's card. An id without a key gets the author's.
func (a *Author) State(card agent.Card) ([]byte, error) {
	card.ID = a.globalID(card.ID)
	return a.sign(Statement{Card: card})
}

// Withdraw signs that an agent has been withdrawn. An id without a key gets the author's.
func (a *Author) Withdraw(id string) ([]byte, error) {
	return a.sign(Statement{Withdrawn: a.globalID(id)})
}

// globalID returns the id of an agent between hubs. An id with another hub's key stays, and is refused when it is signed.
func (a *Author) globalID(id string) string {
	if _, key := agent.SplitID(id); key != "" || id == "" {
		return id
	}
	return ID(id, a.Key())
}

func (a *Author) sign(s Statement) ([]byte, error) {
	now := time.Now()
	a.mu.Lock()
	a.last = max(a.last+1, uint64(now.UnixMilli()))
	s.Sequence = a.last
	a.mu.Unlock()
	s.IssuedAt, s.ExpiresAt = now, now.Add(a.life)
	return Sign(a.pair, s)
}
