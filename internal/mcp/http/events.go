package http

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// events is an event store that reports the end of a session, so that no goroutine has to wait for it, and keeps the events of a suspended
// session. The SDK holds locks when it calls: ended must not block.
type events struct {
	mcp.EventStore
	ended func(id string)

	mu     sync.Mutex
	recent [8][]byte        // stored last, each once; the latest first
	sent   map[string]*sent // by session
}

// sent is what is known of a session's events.
type sent struct {
	notifications int // events of the stream for notifications, which has no id
	phase         phase
	answering     int // calls that have returned, and whose answer is not stored: the SDK would lose it with the connection
}

// phase is what happens to a session whose connection begins or ends while it goes on.
type phase int

const (
	connected  phase = iota
	suspending       // the end of the connection is not that of the session
	restoring        // nor is it now; answers are not for the client
)

// maxShared is the size of the largest data that is kept to be shared, also when its session has ended: the answers to initialize
// and lists of tools are smaller.
const maxShared = 256 << 10

// Open implements [mcp.EventStore].
func (e *events) Open(ctx context.Context, sessionID, streamID string) error {
	if streamID != "" && e.phase(sessionID) == restoring {
		return nil
	}
	e.mu.Lock()
	if e.sent[sessionID] == nil {
		e.sent[sessionID] = &sent{}
	}
	e.mu.Unlock()
	return e.EventStore.Open(ctx, sessionID, streamID)
}

// SessionClosed implements [mcp.EventStore].
func (e *events) SessionClosed(ctx context.Context, id string) error {
	if e.phase(id) != connected {
		return nil
	}
	e.ended(id)
	return e.forget(ctx, id)
}

// forget removes the events of a session.
func (e *events) forget(ctx context.Context, id string) error {
	e.mu.Lock()
	delete(e.sent, id)
	e.mu.Unlock()
	return e.EventStore.SessionClosed(ctx, id)
}

// Append implements [mcp.EventStore].
func (e *events) Append(ctx context.Context, sessionID, streamID string, data []byte) error {
	if streamID == "" {
		e.count(sessionID)
	} else {
		defer e.answered(sessionID)
		if e.phase(sessionID) == restoring {
			return nil
		}
	}
	return e.EventStore.Append(ctx, sessionID, streamID, e.shared(data))
}

// count counts a notification.
func (e *events) count(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sent[id]; s != nil {
		s.notifications++
	}
}

// answering notes that a call of a session has returned.
func (e *events) answering(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sent[id]; s != nil {
		s.answering++
	}
}

// answered notes an answer to a call, or an event during one, which is in progress then.
func (e *events) answered(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sent[id]; s != nil {
		s.answering = max(s.answering-1, 0)
	}
}

// allAnswered reports whether the answers to all calls that have returned are stored.
func (e *events) allAnswered(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sent[id]
	return s == nil || s.answering == 0
}

// enter notes what happens to a session.
func (e *events) enter(id string, p phase) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sent[id]; s != nil {
		s.phase = p
	}
}

func (e *events) phase(id string) phase {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sent[id]; s != nil {
		return s.phase
	}
	return connected
}

// notifications returns how many notifications a session has had.
func (e *events) notifications(id string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sent[id]; s != nil {
		return s.notifications
	}
	return 0
}

// shared returns data, or equal data that was stored not long ago: the answers to initialize, with the instructions for a model, are the
// same in most sessions.
func (e *events) shared(data []byte) []byte {
	if len(data) > maxShared {
		return data
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.IndexFunc(e.recent[:], func(stored []byte) bool { return bytes.Equal(stored, data) })
	if i >= 0 {
		data = e.recent[i]
	} else {
		i = len(e.recent) - 1 // is forgotten
	}
	copy(e.recent[1:i+1], e.recent[:i])
	e.recent[0] = data
	return data
}
