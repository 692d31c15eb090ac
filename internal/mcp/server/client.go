package server

import (
	"cmp"
	"container/list"
	"crypto/rand"
	"sync"
)

// Session is one agent at its connection, or behind its token where the protocol
// knows no connections. It is safe for concurrent use.
type Session struct {
	mu     sync.Mutex
	handle string
	token  string // "" where the connection is the session
	values map[any]any
}

// Handle is what the agent calls itself, "" before it has said so
// (REQ-TOOL-005).
func (s *Session) Handle() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handle
}

// SetHandle changes what the agent calls itself (REQ-TOOL-004). The caller has
// checked it.
func (s *Session) SetHandle(handle string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handle = handle
}

// Value returns what a group keeps in the session under key, and makes it the
// first time. Keys are of a type of the group's own.
func (s *Session) Value(key any, fresh func() any) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.values[key]
	if !ok {
		if s.values == nil {
			s.values = map[any]any{}
		}
		v = fresh()
		s.values[key] = v
	}
	return v
}

// maxTokens bounds the sessions that clients hold by tokens.
const maxTokens = 4096

// tokens are the sessions of clients whose protocol revision has none: the
// server mints a token, the agent passes it with every call. The session that
// was not used for longest is forgotten first.
type tokens struct {
	max int // sessions; 0 means maxTokens

	mu      sync.Mutex
	byToken map[string]*list.Element
	used    list.List // of *Session, the latest in front
}

func (t *tokens) find(token string) (*Session, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.byToken[token]
	if !ok {
		return nil, false
	}
	t.used.MoveToFront(e)
	return e.Value.(*Session), true
}

// keep mints a token for s, unless it has one.
func (t *tokens) keep(s *Session) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token != "" {
		return s.token
	}
	s.token = rand.Text()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byToken == nil {
		t.byToken = map[string]*list.Element{}
	}
	if len(t.byToken) >= cmp.Or(t.max, maxTokens) {
		last := t.used.Back()
		delete(t.byToken, t.used.Remove(last).(*Session).token)
	}
	t.byToken[s.token] = t.used.PushFront(s)
	return s.token
}
