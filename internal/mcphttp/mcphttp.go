// Package mcphttp serves MCP over streamable HTTP for both eras of the protocol
// on one URL: with sessions for the revisions up to 2025-11-25, without for
// 2026-07-28 and later. The SDK has a handler for either, not for both.
package mcphttp

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
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
)

// Options configure a [Handler].
type Options struct {
	// Server returns the server for a request, nil to answer 400. It is asked
	// once or twice for each request, so it must be a look-up. Required.
	Server func(*http.Request) *mcp.Server
	// MaxBody bounds a request's body, in bytes; 0 means DefaultMaxBody.
	MaxBody int64
	// SessionTimeout ends a session without requests; 0 means
	// DefaultSessionTimeout. Clients then get 404 and begin anew.
	SessionTimeout time.Duration
	// MaxSessions bounds the sessions of each server; 0 means
	// DefaultMaxSessions. One more is refused with 503.
	MaxSessions int
	// HostChecked says that the Host header has been checked already. Otherwise
	// requests to a loopback address must name one, against DNS rebinding.
	HostChecked bool
	// Events keeps what the streams of sessions carry, so that a client whose
	// connection broke can resume one; nil keeps nothing. The SDK's store in
	// memory has an entry for every request until its session ends.
	Events mcp.EventStore
	Logger *slog.Logger // nil discards
}

// Handler is the HTTP endpoint. It is safe for concurrent use.
type Handler struct {
	opts                Options
	stateful, stateless *mcp.StreamableHTTPHandler
}

// New returns the endpoint. Who owns the servers ends their sessions, with
// [CloseSessions].
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
	return &Handler{
		opts:      opts,
		stateful:  mcp.NewStreamableHTTPHandler(opts.Server, &shared),
		stateless: mcp.NewStreamableHTTPHandler(opts.Server, &stateless),
	}
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case isStateless(r.Header):
		h.stateless.ServeHTTP(w, r)
	case r.Method == http.MethodPost && r.Header.Get(headerSession) == "" && h.full(r):
		w.Header().Set("Retry-After", "60")
		http.Error(w, fmt.Sprintf("there are %d sessions already: end one, or try again later", h.opts.MaxSessions), http.StatusServiceUnavailable)
	default:
		h.stateful.ServeHTTP(w, r)
	}
}

// isStateless tells the eras apart. A request that names its method in a header
// is of the later one even if it says nothing else; one that has a session is of
// the earlier one whatever it says.
func isStateless(h http.Header) bool {
	if h.Get(headerSession) != "" {
		return false
	}
	return h.Get(headerVersion) >= firstStateless || h.Get(headerMethod) != ""
}

// full reports whether the request's server has all the sessions it may have.
func (h *Handler) full(r *http.Request) bool {
	server := h.opts.Server(r)
	if server == nil {
		return false // the SDK refuses it
	}
	n := 0
	for session := range server.Sessions() {
		if session.ID() != "" { // one for a single request, or not over HTTP
			n++
		}
	}
	return n >= h.opts.MaxSessions
}

// CloseSessions ends all sessions of a server, and with them the requests that
// hang on them. It waits for the calls that run.
func CloseSessions(server *mcp.Server) error {
	var errs []error
	for session := range server.Sessions() {
		errs = append(errs, session.Close())
	}
	return errors.Join(errs...)
}
