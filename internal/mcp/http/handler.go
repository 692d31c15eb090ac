// Package http serves MCP over streamable HTTP in all revisions of the protocol on one URL: with sessions for those up
// to 2025-11-25, without for 2026-07-28 and later. The SDK has a handler for either, not for both.
package http

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// firstStateless is the first revision without sessions. Revisions are dates, which sort as text.
const firstStateless = "2026-07-28"

// Headers of requests: the first three distinguish those with and without sessions.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
	headerMethod  = "Mcp-Method"

	headerLastEvent = "Last-Event-ID"
)

// Default limits.
const (
	DefaultMaxBody        = 8 << 20          // bytes: a message of 1 MB with every byte escaped
	DefaultSessionTimeout = 30 * time.Minute // without requests
	DefaultMaxSessions    = 256              // far more than the agents of one machine open
	DefaultWriteTimeout   = 30 * time.Second // as for the hub's other answers
	DefaultSpareAfter     = 10 * time.Minute // longer than an agent pauses between two calls of a task
	DefaultSuspendAfter   = 10 * time.Second // longer than most pauses while an agent works
	DefaultGoneAfter      = 2 * time.Minute  // longer than clients and proxies take to open a broken stream again
)

// Options configure a [Handler].
type Options struct {
	// Session returns the server for a new session: its own, or a shared one. Nil answers 400. Required.
	Session func(*http.Request) *mcp.Server
	// Request returns the server for a request without a session. It is called for every such request and must be fast.
	// Nil answers 400. Required.
	Request func(*http.Request) *mcp.Server
	// Release is called with every server that Session or Request returned, when its session has ended or its request is
	// answered. It may be nil.
	Release func(*mcp.Server)
	// Refuse answers a request that the Handler itself refuses; nil answers with the message as plain text.
	Refuse func(w http.ResponseWriter, r *http.Request, status int, message string)
	// MaxBody bounds a request's body, in bytes; 0 means DefaultMaxBody.
	MaxBody int64
	// SessionTimeout ends a session without requests; 0 means DefaultSessionTimeout. Clients then get 404 and begin a new
	// session.
	SessionTimeout time.Duration
	// MaxSessions bounds the sessions; 0 means DefaultMaxSessions. At the limit a new session replaces the least recently
	// used one that has had no request for SpareAfter, because most clients do not end their sessions. Without such a
	// session the new one is refused with 503.
	MaxSessions int
	// SpareAfter defaults to DefaultSpareAfter.
	SpareAfter time.Duration
	// WriteTimeout ends a session's stream whose client reads nothing for so long; 0 means DefaultWriteTimeout.
	WriteTimeout time.Duration
	// HostChecked disables the check of the Host header against DNS rebinding, for callers that do it themselves.
	HostChecked bool
	// Events stores the events of sessions' streams, so that a client can resume a broken one; nil stores nothing. The
	// SDK's in-memory store grows: it keeps an entry for each request until the MCP session ends.
	Events mcp.EventStore
	// Suspend is called for the server of a session that has had no request for SuspendAfter. The function that it returns is called
	// when the server has no connection any more, and drops it; nil leaves the session as it is, until later. Nil, or no Events:
	// sessions are not suspended. Servers of sessions that can be suspended have one session each.
	Suspend func(*mcp.Server) (drop func() Suspended)
	// SuspendAfter defaults to DefaultSuspendAfter.
	SuspendAfter time.Duration
	// Gone is called for the server of a new session and returns where the Handler notes that the session's client is gone, and a function
	// that is called in the background after each change of that. The client is gone if it has closed the stream for notifications and makes
	// no request for GoneAfter; its next request shows that it is back. The server may be suspended meanwhile. Gone may be nil.
	Gone func(*mcp.Server) (gone *atomic.Bool, changed func())
	// GoneAfter defaults to DefaultGoneAfter.
	GoneAfter time.Duration
	// Lists counts the changes of which clients are notified; ListsChanged is to be called after each. Nil: there are none.
	Lists  func() Lists
	Logger *slog.Logger // nil discards
}

// Handler is the HTTP endpoint. It is safe for concurrent use. [Handler.Close] ends it.
type Handler struct {
	opts                Options
	stateful, stateless *mcp.StreamableHTTPHandler
	events              *events // nil if nothing is stored

	closed context.Context // of every request
	close  context.CancelFunc

	mu       sync.Mutex
	opening  int // sessions that are not in the map yet
	sessions map[string]*session
	early    map[string]bool // sessions that ended before they were in the map; empty unless some are opening
	watching sync.WaitGroup  // one for each session
	suspensions
}

type session struct {
	id       string
	current  *mcp.ServerSession // nil while it is suspended
	server   *mcp.Server        // likewise
	requests int                // in progress, including open streams
	used     time.Time          // end of the last request
	suspension
	presence
}

// New returns a Handler.
func New(opts Options) *Handler {
	opts.MaxBody = cmp.Or(opts.MaxBody, DefaultMaxBody)
	opts.SessionTimeout = cmp.Or(opts.SessionTimeout, DefaultSessionTimeout)
	opts.MaxSessions = cmp.Or(opts.MaxSessions, DefaultMaxSessions)
	opts.WriteTimeout = cmp.Or(opts.WriteTimeout, DefaultWriteTimeout)
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	opts.SpareAfter = cmp.Or(opts.SpareAfter, DefaultSpareAfter)
	opts.SuspendAfter = cmp.Or(opts.SuspendAfter, DefaultSuspendAfter)
	opts.GoneAfter = cmp.Or(opts.GoneAfter, DefaultGoneAfter)
	if opts.Refuse == nil {
		opts.Refuse = func(w http.ResponseWriter, _ *http.Request, status int, message string) {
			http.Error(w, message, status)
		}
	}
	shared := mcp.StreamableHTTPOptions{
		Logger:                       opts.Logger,
		SessionTimeout:               opts.SessionTimeout,
		MaxRequestBodyBytes:          opts.MaxBody,
		DisableLocalhostProtection:   opts.HostChecked,
		PropagateRequestCancellation: true, // a blocking tool ends when its client disconnects
	}
	stateless := shared
	stateless.Stateless = true
	h := &Handler{
		opts:      opts,
		stateless: mcp.NewStreamableHTTPHandler(serverOf, &stateless),
		sessions:  map[string]*session{},
		early:     map[string]bool{},
	}
	if opts.Events != nil {
		h.events = &events{EventStore: opts.Events, ended: func(id string) { go h.ended(id) }, sent: map[string]*sent{}}
		shared.EventStore = h.events
	}
	h.stateful = mcp.NewStreamableHTTPHandler(serverOf, &shared)
	h.closed, h.close = context.WithCancel(context.Background())
	return h
}

// serverKey is the context key of a request's server. The SDK asks for the server several times and must get the same.
type serverKey struct{}

func serverOf(r *http.Request) *mcp.Server {
	server, _ := r.Context().Value(serverKey{}).(*mcp.Server)
	return server
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.Serve(w, r, func() {}) }

// Serve is ServeHTTP, and calls ended at the end of the request: the stream of a session goes on after Serve has returned.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request, ended func()) {
	if id := r.Header.Get(headerSession); r.Method == http.MethodGet && id != "" {
		h.serveStream(w, r, id, ended)
		return
	}
	defer ended()
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
		server := h.beginRequest(id)
		defer h.endRequest(id)
		if r.Method == http.MethodDelete && server != nil {
			w = &answer{w, func() { h.deleted(id, server) }}
		}
		serve(w, h.stateful, server)
	case !h.reserve():
		w.Header().Set("Retry-After", "60")
		h.opts.Refuse(w, r, http.StatusServiceUnavailable, fmt.Sprintf("no more than %d sessions are served: end one, or try again later", h.opts.MaxSessions))
	default:
		s := &session{server: h.opts.Session(r)}
		if h.opts.Gone != nil && s.server != nil {
			s.gone, s.changed = h.opts.Gone(s.server)
		}
		r = h.prepare(s, r)
		h.begin(w, s, serve)
	}
}

// begin serves a request that may begin a session. The session is registered before the client receives its id, so that
// the client's next request is counted.
func (h *Handler) begin(w http.ResponseWriter, s *session, serve func(http.ResponseWriter, http.Handler, *mcp.Server)) {
	var opened bool
	server := s.server
	register := sync.OnceFunc(func() { opened = h.opened(s, w.Header().Get(headerSession)) })
	serve(&answer{w, register}, h.stateful, server)
	register()
	if opened {
		h.endRequest(s.id)
		return
	}
	if late := sessionOf(server, w.Header().Get(headerSession)); late != nil {
		_ = late.Close() // it began while the Handler was closed
	}
	h.release(server)
}

// answer calls before, which must be idempotent, before the answer is sent.
type answer struct {
	http.ResponseWriter
	before func()
}

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) {
	a.before()
	a.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (a *answer) Write(data []byte) (int, error) {
	a.before()
	return a.ResponseWriter.Write(data)
}

// Unwrap is for [http.ResponseController].
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// isStateless reports whether a request is of a revision without sessions: it has no session, and names such a revision
// or its method in a header.
func isStateless(h http.Header) bool {
	if h.Get(headerSession) != "" {
		return false
	}
	return h.Get(headerVersion) >= firstStateless || h.Get(headerMethod) != ""
}

// beginRequest counts a request of a session and returns the session's server; nil for an unknown session, which the SDK
// answers with an error. It restores a suspended session.
func (h *Handler) beginRequest(id string) *mcp.Server {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		s := h.sessions[id]
		switch {
		case s == nil || s.suspended != nil && h.closed.Err() != nil:
			return nil
		case s.changing != nil:
			h.awaitChange(s)
		case s.suspended != nil:
			h.beginChange(s)
			h.mu.Unlock()
			h.restore(s)
			h.mu.Lock()
		default:
			s.requests++
			h.present(s)
			return s.server
		}
	}
}

// endRequest counts the end of a session's request.
func (h *Handler) endRequest(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[id]; s != nil {
		s.requests--
		s.used = time.Now()
	}
}

// reserve counts a session that is about to begin. At the limit it ends another one; it reports false if that is not
// possible.
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

// spare ends the least recently used session, if it was unused for SpareAfter and no request waits until it is restored. The lock is
// held.
func (h *Handler) spare() bool {
	oldest := ""
	for id, s := range h.sessions {
		if s.requests == 0 && (s.changing == nil || s.suspended == nil) && (oldest == "" || s.used.Before(h.sessions[oldest].used)) {
			oldest = id
		}
	}
	s := h.sessions[oldest]
	if s == nil || time.Since(s.used) < h.opts.SpareAfter {
		return false
	}
	delete(h.sessions, oldest)
	go func() { _ = h.end(s) }() // it also ends after an error
	return true
}

func (h *Handler) release(server *mcp.Server) {
	if server != nil && h.opts.Release != nil {
		h.opts.Release(server)
	}
}

// opened ends a reservation and registers the session that the request began under an id, with the request in progress. It
// reports false if there is none.
func (h *Handler) opened(s *session, id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	early := h.early[id]
	if h.opening--; h.opening == 0 {
		clear(h.early)
	}
	begun := sessionOf(s.server, id)
	if begun == nil || h.closed.Err() != nil {
		return false
	}
	s.id, s.current, s.requests, s.used = id, begun, 1, time.Now()
	h.sessions[id] = s
	h.watching.Add(1) // until end
	switch {
	case early:
		go h.ended(id)
	case h.opts.Events == nil: // nothing reports the end
		go func() {
			_ = begun.Wait()
			h.ended(id)
		}()
	case s.first != nil:
		h.sweepWithin(h.opts.SuspendAfter)
	}
	return true
}

// ended removes a session that is about to end, and releases its server when it has.
func (h *Handler) ended(id string) {
	if s := h.remove(id); s != nil { // nobody else ends it
		_ = h.end(s) // the reason does not matter
	}
}

// remove removes a session from the map, and returns it to whoever ends it; nil if somebody else does.
func (h *Handler) remove(id string) *session {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	delete(h.sessions, id)
	if s == nil && h.opening > 0 {
		h.early[id] = true
	}
	return s
}

// deleted is ended before a client learns that the SDK has ended its session: the session that it opens next is not refused.
func (h *Handler) deleted(id string, server *mcp.Server) {
	if sessionOf(server, id) != nil {
		return // it goes on
	}
	if s := h.remove(id); s != nil {
		go func() { _ = h.end(s) }() // Close waits for it
	}
}

// end ends a session that the caller has removed from the map, and releases what is left of it.
func (h *Handler) end(s *session) error {
	defer h.watching.Done()
	h.mu.Lock()
	for s.changing != nil {
		h.awaitChange(s)
	}
	h.mu.Unlock()
	if s.suspended != nil {
		h.endSuspended(s)
		return nil
	}
	err := s.current.Close()
	h.release(s.server)
	return err
}

// sessionOf returns a server's session, nil if there is none or no server.
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

// Sessions returns the number of sessions.
func (h *Handler) Sessions() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.sessions) + h.opening
}

// Close ends all sessions and requests and refuses new ones. It waits for the tool calls of sessions; their owner should
// interrupt blocking ones first.
func (h *Handler) Close() error {
	h.mu.Lock()
	h.close()
	if h.timer != nil {
		h.timer.Stop()
	}
	open := slices.Collect(maps.Values(h.sessions))
	clear(h.sessions)
	h.mu.Unlock()
	var errs []error
	for _, s := range open {
		errs = append(errs, h.end(s))
	}
	h.watching.Wait()
	return errors.Join(errs...)
}
