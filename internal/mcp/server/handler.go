package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	mcphttp "github.com/parleyhub/parley/internal/mcp/http"
)

// Path is where the hub serves MCP.
const Path = "/mcp"

// A request names its project by the absolute path of its directory. Without one it uses the channels outside of all
// projects.
const (
	projectQuery  = "project"
	projectHeader = "Parley-Project"
)

// TokenHeader carries the token that identifies an agent of the hub.
const TokenHeader = "Parley-Task-Token"

// Limits of a [Handler]. A session is one of the MCP specification, with an Mcp-Session-Id.
const (
	DefaultMaxProjects = 64  // open projects
	DefaultMaxSessions = 256 // sessions of a project

	idleProject = 10 * time.Minute // after which a project without sessions is closed
	idleSession = 24 * time.Hour   // after which a session without requests ends; users may be away overnight
	maxEvents   = 4 << 20          // bytes of events for resumed streams, for each project
)

// HandlerOptions configure a [Handler].
type HandlerOptions struct {
	// Open opens the project in a directory; "" means outside of all projects. It must not block. An error is reported to
	// the client as its mistake.
	Open func(dir string) (*Project, error)
	// Identify returns the agent of the token in the header TokenHeader. An error is reported to the client. Nil rejects
	// all tokens.
	Identify func(token string) (Caller, error)
	// MaxProjects and MaxSessions (of each project) default to DefaultMaxProjects and DefaultMaxSessions.
	MaxProjects, MaxSessions int
	// SuspendAfter is the time without requests after which a session takes little memory; 0 means mcphttp.DefaultSuspendAfter.
	SuspendAfter time.Duration
	// GoneAfter is the time without requests after which a client that has closed its stream is gone; 0 means mcphttp.DefaultGoneAfter.
	GoneAfter time.Duration
	Logger    *slog.Logger // nil discards
}

// Handler serves MCP over streamable HTTP, in all revisions of the protocol at one URL, for many projects. The first
// request for a project opens it; it is closed after a time without use. The caller has checked access.
//
// Each session of the revisions up to 2025-11-25 has its own server, so that a client that does not read blocks no other.
// Since 2026-07-28 there are no sessions: agents pass the token that set_handle returned.
type Handler struct {
	opts HandlerOptions

	mu       sync.Mutex
	projects map[string]*openProject
	closed   bool
}

// openProject is a project that a Handler has opened or is opening.
type openProject struct {
	opening sync.Once
	err     error
	project *Project
	shared  *Server // for requests of the user without a session
	http    *mcphttp.Handler
	own     servers
	unwatch []func() // for the lists of groups

	// The Handler's lock guards the rest.
	requests int
	used     time.Time // end of the last request
}

// NewHandler returns a Handler. Close ends it.
func NewHandler(opts HandlerOptions) *Handler {
	opts.MaxProjects = cmp.Or(opts.MaxProjects, DefaultMaxProjects)
	opts.MaxSessions = cmp.Or(opts.MaxSessions, DefaultMaxSessions)
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	return &Handler{opts: opts, projects: map[string]*openProject{}}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	dir := r.Header.Get(projectHeader)
	if query := r.URL.Query(); query.Has(projectQuery) {
		dir = query.Get(projectQuery)
	}
	if dir != "" {
		if !filepath.IsAbs(dir) {
			refuse(w, r, http.StatusBadRequest, fmt.Sprintf("the project %.200q is no absolute path: use %s?project=/path/of/the/project", dir, Path))
			return
		}
		dir = filepath.Clean(dir)
	}
	caller, err := h.identify(r.Header)
	if err != nil {
		refuse(w, r, http.StatusForbidden, err.Error())
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), callerKey{}, caller))
	p, err := h.acquire(dir)
	if err != nil {
		status := http.StatusBadRequest
		if errors.Is(err, errBusy) {
			status = http.StatusServiceUnavailable
			w.Header().Set("Retry-After", "60")
		}
		refuse(w, r, status, err.Error())
		return
	}
	p.http.Serve(w, r, func() { h.release(p) })
}

// callerKey is the context key of a request's Caller.
type callerKey struct{}

func callerOf(r *http.Request) Caller {
	caller, _ := r.Context().Value(callerKey{}).(Caller)
	return caller
}

// identify returns the caller of a request. An invalid token is an error: its sender does not count as the user.
func (h *Handler) identify(header http.Header) (Caller, error) {
	tokens := header.Values(TokenHeader)
	switch {
	case len(tokens) == 0:
		return Caller{}, nil
	case len(tokens) > 1 || h.opts.Identify == nil:
		return Caller{}, errors.New("the token of " + TokenHeader + " cannot be used here")
	}
	return h.opts.Identify(tokens[0])
}

// refuse answers with an HTTP error whose body is a JSON-RPC error with the request's id.
func refuse(w http.ResponseWriter, r *http.Request, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(refusal(requestID(w, r), jsonrpc.CodeInvalidRequest, message)) // fails if the client has disconnected
}

// requestID returns the id of the request in a body; nil if there is none.
func requestID(w http.ResponseWriter, r *http.Request) any {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mcphttp.DefaultMaxBody))
	if err != nil {
		return nil
	}
	message, err := jsonrpc.DecodeMessage(body)
	if err != nil {
		return nil
	}
	request, ok := message.(*jsonrpc.Request)
	if !ok {
		return nil
	}
	return request.ID.Raw()
}

var errBusy = errors.New("the hub cannot serve another project now")

// acquire returns the open project of a directory. The caller releases it.
func (h *Handler) acquire(dir string) (*openProject, error) {
	p, closing, err := h.begin(dir)
	h.closeProjects(closing)
	if err != nil {
		return nil, err
	}
	p.opening.Do(func() {
		if p.project, p.err = h.opts.Open(dir); p.err == nil {
			p.serve(h.opts)
		}
	})
	if p.err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		p.requests--
		if h.projects[dir] == p {
			delete(h.projects, dir)
		}
		return nil, p.err
	}
	return p, nil
}

// begin counts a request of a project. It returns the projects to close, which are no longer in the map.
func (h *Handler) begin(dir string) (p *openProject, closing []*openProject, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, fmt.Errorf("%w: it is stopping", errBusy)
	}
	if p = h.projects[dir]; p == nil {
		closing = h.evict()
		if len(h.projects) >= h.opts.MaxProjects {
			return nil, closing, fmt.Errorf("%w: %d are in use", errBusy, len(h.projects))
		}
		p = &openProject{}
		h.projects[dir] = p
	}
	p.requests++
	return p, closing, nil
}

// evict removes projects that have been idle for idleProject. At the limit it also removes the least recently used
// project without requests, even one with sessions, whose clients then begin new ones.
func (h *Handler) evict() (closing []*openProject) {
	oldest := ""
	for dir, p := range h.projects {
		if p.requests > 0 {
			continue
		}
		if oldest == "" || p.used.Before(h.projects[oldest].used) {
			oldest = dir
		}
		if p.sessions() == 0 && time.Since(p.used) > idleProject {
			closing = append(closing, p)
			delete(h.projects, dir)
		}
	}
	if p := h.projects[oldest]; p != nil && len(h.projects) >= h.opts.MaxProjects {
		closing = append(closing, p)
		delete(h.projects, oldest)
	}
	return closing
}

// release ends a request.
func (h *Handler) release(p *openProject) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p.requests--
	p.used = time.Now()
}

func (p *openProject) sessions() int {
	if p.http == nil {
		return 0
	}
	return p.http.Sessions()
}

func (p *openProject) serve(opts HandlerOptions) {
	p.shared = p.project.NewStatelessServer(Caller{})
	events := mcp.NewMemoryEventStore(nil)
	events.SetMaxBytes(maxEvents)
	own := &p.own
	keep := own.add
	var served atomic.Pointer[mcphttp.Handler]
	lists := p.watchLists(func() {
		if h := served.Load(); h != nil { // else it has no sessions yet
			h.ListsChanged()
		}
	})
	p.http = mcphttp.New(mcphttp.Options{
		Refuse:  refuse,
		Session: func(r *http.Request) *mcp.Server { return keep(p.project.NewServer(callerOf(r))) },
		Request: func(r *http.Request) *mcp.Server {
			if caller := callerOf(r); caller != (Caller{}) || r.Header.Get("Mcp-Method") == "subscriptions/listen" {
				return keep(p.project.NewStatelessServer(caller)) // of an agent, or of a long-lived stream
			}
			return p.shared.mcp
		},
		Release: own.end,
		Suspend: own.suspend, SuspendAfter: opts.SuspendAfter, Lists: lists,
		Gone: own.gone, GoneAfter: opts.GoneAfter,
		SessionTimeout: idleSession, MaxSessions: opts.MaxSessions, HostChecked: true, Events: events, Logger: quieter(opts.Logger),
	})
	served.Store(p.http)
}

// closeProjectTimeout bounds the end of a project.
const closeProjectTimeout = 10 * time.Second

func (h *Handler) closeProjects(closing []*openProject) {
	for _, p := range closing {
		ctx, cancel := context.WithTimeout(context.Background(), closeProjectTimeout)
		if err := p.close(ctx); err != nil {
			h.opts.Logger.Warn("a project's channels were not closed cleanly", "error", err)
		}
		cancel()
	}
}

func (p *openProject) close(ctx context.Context) error {
	p.opening.Do(func() { p.err = fmt.Errorf("%w: it is stopping", errBusy) })
	if p.err != nil {
		return nil
	}
	p.project.endWaits()
	for _, stop := range p.unwatch {
		stop()
	}
	errs := []error{p.http.Close()}
	p.shared.End()
	lost, err := p.project.Close(ctx)
	if lost > 0 {
		errs = append(errs, fmt.Errorf("%d messages could not be stored", lost))
	}
	return errors.Join(append(errs, err)...)
}

// Close ends all sessions and closes all projects; queued messages are stored if the bus can be reached before ctx ends.
// Blocking requests are answered first, and later requests refused.
func (h *Handler) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	projects := h.projects
	h.projects = nil
	h.mu.Unlock()
	var errs []error
	for _, p := range projects {
		errs = append(errs, p.close(ctx))
	}
	return errors.Join(errs...)
}
