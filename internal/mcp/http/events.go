package http

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// events is an event store that reports the end of a session, so that no goroutine has to wait for it. The SDK holds locks then: ended
// must not block.
type events struct {
	mcp.EventStore
	ended func(id string)

	mu     sync.Mutex
	recent [8][]byte // stored last, each once; the latest first
}

// maxShared is the size of the largest data that is kept to be shared, also when its session has ended: the answers to initialize
// and lists of tools are smaller.
const maxShared = 256 << 10

// SessionClosed implements [mcp.EventStore].
func (e *events) SessionClosed(ctx context.Context, id string) error {
	e.ended(id)
	return e.EventStore.SessionClosed(ctx, id)
}

// Append implements [mcp.EventStore].
func (e *events) Append(ctx context.Context, sessionID, streamID string, data []byte) error {
	return e.EventStore.Append(ctx, sessionID, streamID, e.shared(data))
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
