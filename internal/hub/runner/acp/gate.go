package acp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	sdk "github.com/coder/acp-go-sdk"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// Bounds of what the SDK's connection is given at once.
const (
	// maxLine is just below the line at which the connection gives up.
	maxLine = 10<<20 - 2
	// maxNotifications is below the queue of the connection (1024), which it
	// closes when one more comes.
	maxNotifications = 512
	// maxRequests bounds the goroutines that the connection starts, one a
	// request.
	maxRequests = 128
)

// gate stands between an agent's pipes and the SDK's connection, which trusts
// its peer more than this program does. It lets through whole lines of JSON
// objects only, of the notifications only those that are read, no more at a time
// than the connection can take (above that the agent waits), and the end of the
// stream not before the answer ahead of it was taken.
type gate struct {
	lines *process.Lines
	w     io.Writer
	rest  []byte // of the line that is being read

	mu            sync.Mutex
	cond          sync.Cond
	notifications int             // passed on, not yet handled
	requests      map[string]bool // of the agent, not yet answered
	calls         map[string]bool // of ours, not yet answered
	answered      bool            // an answer was passed on and not yet taken; there is one call at a time
	closed        bool
	err           error // why the stream ended
	writeErr      error
}

func newGate(conn duplex.Conn) *gate {
	g := &gate{
		lines:    process.NewLines(conn.Stdout, min(conn.MaxLine, maxLine)),
		w:        conn.Stdin,
		requests: make(map[string]bool),
		calls:    make(map[string]bool),
	}
	g.cond.L = &g.mu
	return g
}

// envelope is what the gate reads of a message.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
}

func (e envelope) hasID() bool { return len(e.ID) > 0 && !bytes.Equal(e.ID, []byte("null")) }

// Read gives the connection at most one line at a time.
func (g *gate) Read(b []byte) (int, error) {
	for len(g.rest) == 0 {
		line, err := g.lines.Next()
		if err != nil {
			return 0, g.end(err)
		}
		g.rest = g.admit(line)
	}
	n := copy(b, g.rest)
	g.rest = g.rest[n:]
	return n, nil
}

// end remembers why there is nothing more, and waits until what was passed on
// has been taken: the connection would let go of callers whose answer is there.
func (g *gate) end(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for (g.answered || g.notifications > 0) && !g.closed {
		g.cond.Wait()
	}
	g.err = duplex.ReadError(err)
	return io.EOF
}

// admit decides about a line and counts it in; it returns what the connection
// gets, and blocks while too much is on the way.
func (g *gate) admit(line []byte) []byte {
	var e envelope
	if len(line) == 0 || json.Unmarshal(line, &e) != nil {
		return nil // a warning of a wrapper script, say
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case e.Method != "" && e.hasID():
		return g.admitRequest(line, e)
	case e.Method == cancelRequest:
		// The connection handles it at once.
	case e.Method == sdk.ClientMethodSessionUpdate:
		g.waitWhile(func() bool { return g.notifications >= maxNotifications })
		g.notifications++
	case e.Method == "" && e.hasID() && g.calls[string(e.ID)]:
		delete(g.calls, string(e.ID))
		g.answered = true
	default:
		// Another notification, or an answer that nobody waits for, or a second
		// one.
		return nil
	}
	return append(bytes.Clone(line), '\n')
}

func (g *gate) admitRequest(line []byte, e envelope) []byte {
	if g.requests[string(e.ID)] {
		return nil // the same request again: one answer is enough
	}
	g.waitWhile(func() bool { return len(g.requests) >= maxRequests })
	g.requests[string(e.ID)] = true
	if e.Method == sdk.ClientMethodSessionUpdate {
		// The handler cannot tell it from a notification, which it counts out.
		line = []byte(`{"jsonrpc":"2.0","id":` + string(e.ID) + `,"method":"` + updateRequest + `"}`)
	}
	return append(bytes.Clone(line), '\n')
}

// updateRequest stands for an update that came as a request. It is no method, so
// that the agent is told.
const updateRequest = "session/update as a request"

func (g *gate) waitWhile(full func() bool) {
	for full() && !g.closed {
		g.cond.Wait()
	}
}

// cancelRequest is a notification that the SDK handles outside of its queue.
const cancelRequest = "$/cancel_request"

// Write takes one message of the connection.
func (g *gate) Write(b []byte) (int, error) {
	var e envelope
	if json.Unmarshal(b, &e) == nil && e.hasID() {
		g.mu.Lock()
		if e.Method != "" {
			g.calls[string(e.ID)] = true
		} else {
			delete(g.requests, string(e.ID))
			g.cond.Broadcast()
		}
		g.mu.Unlock()
	}
	n, err := g.w.Write(b)
	if err != nil {
		g.mu.Lock()
		g.writeErr = fmt.Errorf("%w: %w", duplex.ErrClosed, err)
		g.mu.Unlock()
	}
	return n, err
}

// broken is why nothing more can be written, nil if it can.
func (g *gate) broken() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.writeErr
}

// handled counts a notification out.
func (g *gate) handled() {
	g.mu.Lock()
	g.notifications--
	g.mu.Unlock()
	g.cond.Broadcast()
}

// taken says that the caller has got the answer, or has given up.
func (g *gate) taken() {
	g.mu.Lock()
	g.answered = false
	g.mu.Unlock()
	g.cond.Broadcast()
}

// cause is why the stream ended, ErrClosed if that is not known.
func (g *gate) cause() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		return duplex.ErrClosed
	}
	return g.err
}

// close lets nothing wait any more.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cond.Broadcast()
}
