package drivers

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

// Bounds of what is passed to the SDK's connection at once.
const (
	// maxLine is just below the length of a line at which the connection fails.
	maxLine = 10<<20 - 2
	// maxNotifications is below the size of the connection's queue (1024). The
	// connection closes when the queue overflows.
	maxNotifications = 512
	// maxRequests bounds the goroutines of the connection, one for each request.
	maxRequests = 128
)

// gate filters what an agent sends to the SDK's connection, which trusts agents more
// than this program does. It passes whole lines of JSON objects only, only the
// notifications that are read, and no more at a time than the connection can
// queue: beyond that the agent waits. It passes the end of the stream only after
// the answer before it was received.
type gate struct {
	lines *process.Lines
	w     io.Writer
	rest  []byte // of the line that is being read

	mu            sync.Mutex
	cond          sync.Cond
	notifications int             // passed, not yet handled
	requests      map[string]bool // of the agent, not yet answered
	calls         map[string]bool // of the hub, not yet answered
	answered      bool            // an answer was passed and not yet received; one call runs at a time
	closed        bool
	err           error // why the stream ended
	writeErr      error
}

func newGate(pipes duplex.Pipes) *gate {
	g := &gate{
		lines:    process.NewLines(pipes.Stdout, min(pipes.MaxLine, maxLine)),
		w:        pipes.Stdin,
		requests: make(map[string]bool),
		calls:    make(map[string]bool),
	}
	g.cond.L = &g.mu
	return g
}

// rpcHeader is the part of a message that the gate reads.
type rpcHeader struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
}

// Read implements io.Reader for the connection: at most one line at a time.
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

// end records why the stream ended, and waits until everything passed was received:
// at the end of the stream the connection drops calls that have an answer.
func (g *gate) end(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for (g.answered || g.notifications > 0) && !g.closed {
		g.cond.Wait()
	}
	g.err = readError(err)
	return io.EOF
}

// admit counts a line and returns it for the connection, nil to drop it. It blocks
// while too many messages are in progress.
func (g *gate) admit(line []byte) []byte {
	var e rpcHeader
	if len(line) == 0 || json.Unmarshal(line, &e) != nil {
		return nil // such as a warning of a wrapper script
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case e.Method != "" && isID(e.ID):
		return g.admitRequest(line, e)
	case e.Method == cancelRequest:
		// The connection handles it immediately.
	case e.Method == sdk.ClientMethodSessionUpdate:
		g.waitWhile(func() bool { return g.notifications >= maxNotifications })
		g.notifications++
	case e.Method == "" && isID(e.ID) && g.calls[string(e.ID)]:
		delete(g.calls, string(e.ID))
		g.answered = true
	default:
		return nil // another notification, an answer to no call, or a second answer
	}
	return append(bytes.Clone(line), '\n')
}

func (g *gate) admitRequest(line []byte, e rpcHeader) []byte {
	if g.requests[string(e.ID)] {
		return nil // a repeated request: one answer is enough
	}
	g.waitWhile(func() bool { return len(g.requests) >= maxRequests })
	g.requests[string(e.ID)] = true
	if e.Method == sdk.ClientMethodSessionUpdate {
		// The handler would count it as a notification.
		line = []byte(`{"jsonrpc":"2.0","id":` + string(e.ID) + `,"method":"` + updateRequest + `"}`)
	}
	return append(bytes.Clone(line), '\n')
}

// updateRequest replaces the method of an update that arrived as a request. It is
// no method, so that the agent receives an error.
const updateRequest = "session/update as a request"

func (g *gate) waitWhile(full func() bool) {
	for full() && !g.closed {
		g.cond.Wait()
	}
}

// cancelRequest is a notification that the SDK handles outside of its queue.
const cancelRequest = "$/cancel_request"

// Write implements io.Writer: one message of the connection.
func (g *gate) Write(b []byte) (int, error) {
	var e rpcHeader
	if json.Unmarshal(b, &e) == nil && isID(e.ID) {
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

// broken returns the error of a failed write, nil if there was none.
func (g *gate) broken() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.writeErr
}

// handled ends a notification that Read has passed.
func (g *gate) handled() {
	g.mu.Lock()
	g.notifications--
	g.mu.Unlock()
	g.cond.Broadcast()
}

// received ends a call: its caller has the answer, or no longer waits.
func (g *gate) received() {
	g.mu.Lock()
	g.answered = false
	g.mu.Unlock()
	g.cond.Broadcast()
}

// cause returns why the stream ended, ErrClosed if that is unknown.
func (g *gate) cause() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		return duplex.ErrClosed
	}
	return g.err
}

// close ends all waiting.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cond.Broadcast()
}
