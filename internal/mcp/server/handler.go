package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	mcphttp "github.com/parleyhub/parley/internal/mcp/http"
)

// Path is where the hub serves MCP.
const Path = "/mcp"

// How a request names its project: the directory's absolute path. Without one it
// gets the channels that belong to no project.
const (
	projectQuery  = "project"
	projectHeader = "Parley-Project"
)

// TokenHeader carries the token by which an agent of the hub proves who it is.
const TokenHeader = "Parley-Task-Token"

// The limits of a Handler.
const (
	// DefaultMaxProjects is how many projects are open at once.
	DefaultMaxProjects = 64
	// DefaultMaxSessions is how many sessions a project has at once.
	DefaultMaxSessions = 256
	// idleProject is how long a project without sessions stays open.
	idleProject = 10 * time.Minute
	// idleSession is how long a session lives without a request: agents wait for
	// their users over night.
	idleSession = 24 * time.Hour
	// maxEvents bounds what is kept for clients that come back, in bytes for each
	// project.
	maxEvents = 4 << 20
)

// HandlerOptions are what a Handler is made of.
type HandlerOptions struct {
	// Open opens the project in a directory, or, of "", what belongs to no
	// project. It returns at once. Its error is the client's mistake.
	Open func(dir string) (*Project, error)
	// Identify returns the agent whose token a request presents in the header
	// TokenHeader. Its error is told to the client. Nil knows no tokens.
	Identify func(token string) (Caller, error)
	// MaxProjects and MaxSessions (for each project) default to
	// DefaultMaxProjects and DefaultMaxSessions.
	MaxProjects, MaxSessions int
	Logger                   *slog.Logger // nil discards
}

// Handler serves MCP over streamable HTTP, both eras of the protocol at one URL,
// for many projects: each is opened by the first request for it and closed when it
// has not been used for a while. Access is checked before.
//
// A session of the revisions up to 2025-11-25 has a server of its own, so that a
// client that does not read holds up nobody else. Since 2026-07-28 there are no
// sessions: agents carry a token, which set_handle gives them.
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
	shared  *Server // for requests of the user that belong to no session
	http    *mcphttp.Handler

	// The Handler's lock guards what follows.
	requests int
	used     time.Time // the last request's end
}

// NewHandler returns a Handler. Close ends it.
func NewHandler(opts HandlerOptions) *Handler {
	if opts.MaxProjects == 0 {
		opts.MaxProjects = DefaultMaxProjects
	}
	if opts.MaxSessions == 0 {
		opts.MaxSessions = DefaultMaxSessions
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
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
			refuse(w, http.StatusBadRequest, fmt.Sprintf("the project %.200q is no absolute path: use %s?project=/path/of/the/project", dir, Path))
			return
		}
		dir = filepath.Clean(dir)
	}
	caller, err := h.identify(r.Header)
	if err != nil {
		refuse(w, http.StatusForbidden, err.Error())
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
		refuse(w, status, err.Error())
		return
	}
	defer h.release(p)
	p.http.ServeHTTP(w, r)
}

// callerKey is where a request's context has its Caller.
type callerKey struct{}

func callerOf(r *http.Request) Caller {
	caller, _ := r.Context().Value(callerKey{}).(Caller)
	return caller
}

// identify finds out for whom a request acts. A token that is not good is refused:
// who presents one is no user.
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

// refuse answers with an HTTP error whose body is a JSON-RPC error.
func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(refusal(jsonrpc.CodeInvalidRequest, message)); err != nil {
		return // the client has gone
	}
}

var errBusy = errors.New("the hub cannot serve another project now")

// acquire returns the open project of a directory. The caller releases it.
func (h *Handler) acquire(dir string) (*openProject, error) {
	p, closing, err := h.enter(dir)
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

// enter counts a request in, and takes out what has to be closed for it.
func (h *Handler) enter(dir string) (p *openProject, closing []*openProject, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, fmt.Errorf("%w: it is stopping", errBusy)
	}
	if p = h.projects[dir]; p == nil {
		closing = h.retire()
		if len(h.projects) >= h.opts.MaxProjects {
			return nil, closing, fmt.Errorf("%w: %d are in use", errBusy, len(h.projects))
		}
		p = &openProject{}
		h.projects[dir] = p
	}
	p.requests++
	return p, closing, nil
}

// retire takes out the projects that have been idle for long, and, where there is
// no room for another, the one that has been idle for longest, even if it has
// sessions: their clients begin new ones.
func (h *Handler) retire() (closing []*openProject) {
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

// release counts a request out.
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
	p.shared = p.project.NewSessionlessServer(Caller{})
	events := mcp.NewMemoryEventStore(nil)
	events.SetMaxBytes(maxEvents)
	var own sync.Map // *Server by *mcp.Server: those that are not shared
	keep := func(s *Server) *mcp.Server {
		own.Store(s.mcp, s)
		return s.mcp
	}
	p.http = mcphttp.New(mcphttp.Options{
		Session: func(r *http.Request) *mcp.Server { return keep(p.project.NewServer(callerOf(r))) },
		Request: func(r *http.Request) *mcp.Server {
			if caller := callerOf(r); caller != (Caller{}) || r.Header.Get("Mcp-Method") == "subscriptions/listen" {
				return keep(p.project.NewSessionlessServer(caller)) // an agent's, or it lasts as long as a session
			}
			return p.shared.mcp
		},
		Release: func(m *mcp.Server) {
			if s, mine := own.LoadAndDelete(m); mine {
				s.(*Server).End()
			}
		},
		SessionTimeout: idleSession, MaxSessions: opts.MaxSessions, HostChecked: true, Events: events, Logger: quieter(opts.Logger),
	})
}

// closePatienceHTTP bounds the end of a project.
const closePatienceHTTP = 10 * time.Second

func (h *Handler) closeProjects(closing []*openProject) {
	for _, p := range closing {
		ctx, cancel := context.WithTimeout(context.Background(), closePatienceHTTP)
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
	errs := []error{p.http.Close()}
	p.shared.End()
	lost, err := p.project.Close(ctx)
	if lost > 0 {
		errs = append(errs, fmt.Errorf("%d messages could not be stored", lost))
	}
	return errors.Join(append(errs, err)...)
}

// Close ends all sessions and projects, and stores what is queued if it can be
// stored before ctx ends. Requests that wait are answered first; later ones are
// refused.
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
