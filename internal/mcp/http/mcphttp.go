// Package http serves MCP over streamable HTTP for both eras of the protocol
// on one URL: with sessions for the revisions up to 2025-11-25, without for
// 2026-07-28 and later. The SDK has a handler for either, not for both.
package http

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// firstStateless is the first revision of the protocol without sessions.
// Revisions are dates, which sort as text.
const firstStateless = "2026-07-28"

// The headers that tell the eras apart.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
	headerMethod  = "Mcp-Method"
)

// Limits where [Options] says nothing.
const (
	// DefaultMaxBody has room for a message of 1 MB whose every byte is escaped.
	DefaultMaxBody = 8 << 20
	// DefaultSessionTimeout closes a session whose client has gone without a word.
	DefaultSessionTimeout = 30 * time.Minute
	// DefaultMaxSessions is far above what the agents of one machine open.
	DefaultMaxSessions = 256
	// DefaultSpareAfter is longer than an agent takes between two calls of a task.
	DefaultSpareAfter = 10 * time.Minute
)

// Options configure a [Handler].
type Options struct {
	// Session returns the server for a session that begins: one of its own, or
	// one that sessions share. Nil answers 400. Required.
	Session func(*http.Request) *mcp.Server
	// Request returns the server for a request without a session. It is asked for
	// every such request, so it must be a look-up. Nil answers 400. Required.
	Request func(*http.Request) *mcp.Server
	// Release is called with every server that Session or Request returned: when its
	// session has ended, or its request is answered. Nil does nothing.
	Release func(*mcp.Server)
	// MaxBody bounds a request's body, in bytes; 0 means DefaultMaxBody.
	MaxBody int64
	// SessionTimeout ends a session without requests; 0 means
	// DefaultSessionTimeout. Clients then get 404 and begin anew.
	SessionTimeout time.Duration
	// MaxSessions bounds the sessions; 0 means DefaultMaxSessions. For one more the
	// one goes that was without a request for longest, SpareAfter at least: most
	// clients end without ending their session. Where there is none it is refused
	// with 503.
	MaxSessions int
	// SpareAfter is 0 for DefaultSpareAfter.
	SpareAfter time.Duration
	// HostChecked says that the Host header has been checked already. Otherwise
	// requests to a loopback address must name one, against DNS rebinding.
	HostChecked bool
	// Events keeps what the streams of sessions carry, so that a client whose
	// connection broke can resume one; nil keeps nothing. The SDK's store in
	// memory has an entry for every request until its session ends.
	Events mcp.EventStore
	Logger *slog.Logger // nil discards
}

// Handler is the HTTP endpoint. It is safe for concurrent use. [Handler.Close]
// ends it.
type Handler struct {
	opts                Options
	stateful, stateless *mcp.StreamableHTTPHandler

	closed context.Context // of every request
	close  context.CancelFunc

	mu       sync.Mutex
	opening  int // sessions that are not in the map yet
	sessions map[string]*session
	watching sync.WaitGroup // one for each session
}

type session struct {
	*mcp.ServerSession
	server   *mcp.Server
	requests int       // under way; a stream that is open is one
	used     time.Time // the last request's end
}

// New returns the endpoint.
func New(opts Options) *Handler {
	if opts.MaxBody == 0 {
		opts.MaxBody = DefaultMaxBody
	}
	if opts.SessionTimeout == 0 {
		opts.SessionTimeout = DefaultSessionTimeout
	}
	if opts.MaxSessions == 0 {
		opts.MaxSessions = DefaultMaxSessions
	}
	if opts.SpareAfter == 0 {
		opts.SpareAfter = DefaultSpareAfter
	}
	shared := mcp.StreamableHTTPOptions{
		Logger:                     opts.Logger,
		SessionTimeout:             opts.SessionTimeout,
		MaxRequestBodyBytes:        opts.MaxBody,
		DisableLocalhostProtection: opts.HostChecked,
		// Nothing can be delivered to a client that has gone: a tool that waits
		// must not wait on.
		PropagateRequestCancellation: true,
	}
	stateless := shared
	stateless.Stateless = true
	shared.EventStore = opts.Events
	h := &Handler{
		opts:      opts,
		stateful:  mcp.NewStreamableHTTPHandler(serverOf, &shared),
		stateless: mcp.NewStreamableHTTPHandler(serverOf, &stateless),
		sessions:  map[string]*session{},
	}
	h.closed, h.close = context.WithCancel(context.Background())
	return h
}

// serverKey is where a request's context has its server. The SDK asks for the
// server several times, and each time it must be the same.
type serverKey struct{}

func serverOf(r *http.Request) *mcp.Server {
	server, _ := r.Context().Value(serverKey{}).(*mcp.Server)
	return server
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.closed, cancel)()
	serve := func(w http.ResponseWriter, handler http.Handler, server *mcp.Server) {
		handler.ServeHTTP(w, r.WithContext(context.WithValue(ctx, serverKey{}, server)))
	}
	id := r.Header.Get(headerSession)
	switch {
	case isStateless(r.Header):
		server := h.opts.Request(r)
		defer h.release(server)
		serve(w, h.stateless, server)
	case r.Method != http.MethodPost || id != "":
		server := h.enter(id)
		defer h.leave(id)
		serve(w, h.stateful, server)
	case !h.reserve():
		w.Header().Set("Retry-After", "60")
		http.Error(w, fmt.Sprintf("no more than %d sessions are served: end one, or try again later", h.opts.MaxSessions), http.StatusServiceUnavailable)
	default:
		h.begin(w, h.opts.Session(r), serve)
	}
}

// begin serves a request that may begin a session.
func (h *Handler) begin(w http.ResponseWriter, server *mcp.Server, serve func(http.ResponseWriter, http.Handler, *mcp.Server)) {
	first := &answer{ResponseWriter: w}
	var id string
	first.begins = func() {
		if id = w.Header().Get(headerSession); !h.opened(server, id) {
			id = ""
		}
	}
	serve(first, h.stateful, server)
	first.once.Do(first.begins)
	if id != "" {
		h.leave(id)
		return
	}
	if late := sessionOf(server, w.Header().Get(headerSession)); late != nil {
		_ = late.Close() // that of the handler did not see it, and it ends in any case
	}
	h.release(server)
}

// answer has something done before its first byte is on the way to the client.
type answer struct {
	http.ResponseWriter
	once   sync.Once
	begins func()
}

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) {
	a.once.Do(a.begins)
	a.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (a *answer) Write(data []byte) (int, error) {
	a.once.Do(a.begins)
	return a.ResponseWriter.Write(data)
}

// Unwrap is for [http.ResponseController].
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// isStateless tells the eras apart. A request that names its method in a header
// is of the later one even if it says nothing else; one that has a session is of
// the earlier one whatever it says.
func isStateless(h http.Header) bool {
	if h.Get(headerSession) != "" {
		return false
	}
	return h.Get(headerVersion) >= firstStateless || h.Get(headerMethod) != ""
}

// enter counts a session's request in. It returns the session's server, nil if there
// is none: the SDK answers then that it knows no such session.
func (h *Handler) enter(id string) *mcp.Server {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	if s == nil {
		return nil
	}
	s.requests++
	return s.server
}

// leave counts a session's request out.
func (h *Handler) leave(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[id]; s != nil {
		s.requests--
		s.used = time.Now()
	}
}

// reserve takes a place for a session that is about to begin, if need be that of one
// that can be spared.
func (h *Handler) reserve() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed.Err() != nil {
		return false
	}
	if len(h.sessions)+h.opening >= h.opts.MaxSessions && !h.spare() {
		return false
	}
	h.opening++
	return true
}

// spare ends the session that was without a request for longest, if that is long
// enough. The caller holds the lock.
func (h *Handler) spare() bool {
	oldest := ""
	for id, s := range h.sessions {
		if s.requests == 0 && (oldest == "" || s.used.Before(h.sessions[oldest].used)) {
			oldest = id
		}
	}
	s := h.sessions[oldest]
	if s == nil || time.Since(s.used) < h.opts.SpareAfter {
		return false
	}
	delete(h.sessions, oldest)
	h.watching.Go(func() { _ = s.Close() }) // it ends in any case
	return true
}

func (h *Handler) release(server *mcp.Server) {
	if server != nil && h.opts.Release != nil {
		h.opts.Release(server)
	}
}

// opened gives the place to the session that a request began, which is then one of its
// requests, or back if it began none. It reports whether the server is in use. The
// client must not know of the session before: what it asks next is counted.
func (h *Handler) opened(server *mcp.Server, id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.opening--
	begun := sessionOf(server, id)
	if begun == nil || h.closed.Err() != nil {
		return false
	}
	h.sessions[id] = &session{ServerSession: begun, server: server, requests: 1, used: time.Now()}
	h.watching.Go(func() {
		_ = begun.Wait() // how it ended does not matter
		h.mu.Lock()
		delete(h.sessions, id)
		h.mu.Unlock()
		h.release(server)
	})
	return true
}

// sessionOf is a server's session, nil if there is none, or no server.
func sessionOf(server *mcp.Server, id string) *mcp.ServerSession {
	if server == nil || id == "" {
		return nil
	}
	for s := range server.Sessions() {
		if s.ID() == id {
			return s
		}
	}
	return nil
}

// Sessions is how many sessions there are.
func (h *Handler) Sessions() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.sessions) + h.opening
}

// Close ends every session, and every request that still runs; new sessions are
// refused. It waits for the calls of tools in sessions, whose owner should end
// those that wait for something before.
func (h *Handler) Close() error {
	h.mu.Lock()
	h.close()
	var open []*session
	for _, s := range h.sessions {
		open = append(open, s)
	}
	h.mu.Unlock()
	var errs []error
	for _, s := range open {
		errs = append(errs, s.Close())
	}
	h.watching.Wait()
	return errors.Join(errs...)
}
