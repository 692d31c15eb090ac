// Package a2a serves A2A, the Agent2Agent protocol, for the hub: versions 1.0 and 0.3 over JSON-RPC, REST and gRPC.
// All bindings call the same [Handler], which calls the hub; there is no second way to run a task.
//
// One HTTP path serves both versions and both HTTP bindings: JSON-RPC is a POST
// to the path itself, REST is below it (0.3 below its /v1):
//
//	/a2a                                the hub's agents, by tenant or metadata "targetAgent"
//	/agents/{id}/a2a                    one agent; also by a name of the commands, such as reviewer.shop
//	…/.well-known/agent-card.json       the card of either
//	/agents/{id}/.well-known/…          an agent's card, for clients of both versions
//	/.well-known/agent-card.json        the hub's card, for clients of both versions
//
// REST and gRPC are the SDK's bindings with corrections around them (see restGate). JSON-RPC is implemented here, on
// the SDK's types and conversions: the SDK's binding cannot distinguish a malformed request from malformed
// parameters, changes large numeric ids, answers a deletion with neither result nor error, and sends the status line
// of a stream before it knows that the stream starts with an error.
package a2a

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/push"
)

// Options are those of [New]. Only Hub is required.
type Options struct {
	Hub *hub.Hub
	// Push stores and sends push notifications; nil disables them.
	Push *push.Service
	// Version is the hub's, for the cards.
	Version string
	// BaseURL is the address in cards, without a trailing slash. Empty means the address of the request.
	BaseURL string
	// GRPCAddress is the host:port of the gRPC server, for the cards; empty if there is none.
	GRPCAddress string
	// TokenRequired states in the cards that a bearer token is required. The
	// middleware of the caller and [GRPCOptions] check it.
	TokenRequired bool
	// DefaultAgent handles requests at /a2a that name no agent.
	DefaultAgent string
	// MaxBody bounds a request's body in bytes; 0 means 10 MiB.
	MaxBody int64
	// KeepAlive is the time between comments on a silent stream; 0 means 15 s.
	KeepAlive time.Duration
	// WriteTimeout bounds one write to a streaming client, which disconnects clients that do not read; 0 means 30 s.
	WriteTimeout time.Duration
	// Wrap, if not nil, wraps the handler of all bindings.
	Wrap func(a2asrv.RequestHandler) a2asrv.RequestHandler
	// Logger gets errors whose causes clients do not see; nil means slog.Default().
	Logger *slog.Logger
}

// Server serves all bindings. It is safe for concurrent use and owns no goroutines beyond those of running requests.
type Server struct {
	opts    Options
	log     *slog.Logger
	own     *Handler
	handler a2asrv.RequestHandler // own, perhaps wrapped
	rest    http.Handler          // 1.0
	tenant  http.Handler          // 1.0 below /{tenant}
	rest03  http.Handler
	// encodings bounds the content of the large answers that are being encoded: each holds several times its size.
	encodings *semaphore.Weighted
}

const (
	smallAnswer  = 64 << 10 // needs no reservation
	maxEncodings = 4 << 20
)

// reserveEncoding blocks until an answer with size bytes of content may be encoded, which takes no longer than the encodings
// of others. The caller must call the function that it returns afterwards.
func (s *Server) reserveEncoding(size int) (encoded func()) {
	if size <= smallAnswer {
		return func() {}
	}
	held := min(int64(size), maxEncodings)
	_ = s.encodings.Acquire(context.Background(), held) // fails only with its context
	return func() { s.encodings.Release(held) }
}

// New returns a server of A2A.
func New(opts Options) *Server {
	opts.MaxBody = cmp.Or(max(opts.MaxBody, 0), 10<<20)
	opts.KeepAlive = cmp.Or(max(opts.KeepAlive, 0), 15*time.Second)
	opts.WriteTimeout = cmp.Or(max(opts.WriteTimeout, 0), 30*time.Second)
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := &Server{opts: opts, log: opts.Logger.With("component", "a2a")}
	s.encodings = semaphore.NewWeighted(maxEncodings)
	s.own = &Handler{opts: opts, log: s.log}
	s.handler = s.own
	if opts.Wrap != nil {
		s.handler = opts.Wrap(s.handler)
	}
	transport := []a2asrv.TransportOption{
		a2asrv.WithTransportKeepAlive(opts.KeepAlive),
		a2asrv.WithTransportPanicHandler(s.panicked),
	}
	s.rest = a2asrv.NewRESTHandler(s.handler, transport...)
	s.tenant = a2asrv.NewTenantRESTHandler("/{*}", s.handler, transport...)
	s.rest03 = a2av0.NewRESTHandler(s.handler, transport...)
	return s
}

// panicked logs a panic and returns the error for the client.
func (s *Server) panicked(r any) error {
	s.log.Error("request panicked", "panic", r)
	return a2a.ErrInternalError
}

// Mount passes all routes to handle, such as the method of an http.ServeMux. The
// caller's middleware must check Host, Origin and token.
func (s *Server) Mount(handle func(pattern string, h http.Handler)) {
	handle("/.well-known/agent-card.json", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serveCard(w, r, "", true) // clients of 0.3 know no other address and name no version
	}))
	for _, pattern := range []string{"/a2a", "/a2a/", "/agents/{agent}/a2a", "/agents/{agent}/a2a/"} {
		handle(pattern, s)
	}
	for _, name := range cardNames {
		handle("/agents/{agent}"+name, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.serveCard(w, r, r.PathValue("agent"), true) // beside the address: whoever looks here may be of either version
		}))
	}
}

// cardNames are the paths of a card below an agent's address: in 1.0 and late 0.3, and in early 0.3.
var cardNames = []string{"/.well-known/agent-card.json", "/.well-known/agent.json"}

// CardPath reports whether a path is that of a card, and returns the card's agent, "" for the hub. The hub's card at
// /.well-known/agent.json is not A2A's.
func CardPath(path string) (agent string, ok bool) {
	if path == cardNames[0] {
		return "", true
	}
	for _, name := range cardNames {
		address, isCard := strings.CutSuffix(path, name)
		if !isCard {
			continue
		}
		if agent, below, ok := splitPath(address); ok {
			return agent, below == "/"
		}
		agent, ok := strings.CutPrefix(address, "/agents/")
		return agent, ok && agent != "" && !strings.Contains(agent, "/")
	}
	return "", false
}

// ServeHTTP serves the paths in the package comment. It splits the path itself, so
// that agents' ids need no escaping for a mux.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	agent, below, ok := splitPath(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	agent, unknown := s.agentID(r.Context(), agent)
	if unknown != nil && below != "/" { // serveJSONRPC reports it with the request's id
		writeRESTError(w, unknown)
		return
	}
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.log.Error("request panicked", "path", r.URL.Path, "panic", p)
			// The answer may have started: only closing the connection reports the error.
			panic(http.ErrAbortHandler)
		}
	}()
	splitExtensions(r.Header)
	r = r.WithContext(withScope(r.Context(), scope{agent: agent, unknown: unknown, base: s.own.base(r)}))
	switch below {
	case "/":
		s.serveJSONRPC(w, r)
	case cardNames[0]:
		s.serveCard(w, r, agent, false)
	case cardNames[1]:
		s.serveCard(w, r, agent, true)
	default:
		s.serveREST(w, r, below)
	}
}

// agentID returns the id of the agent that a path names, by its id or as the commands do; "" is the hub itself. An unknown name
// is returned with the error.
func (s *Server) agentID(ctx context.Context, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	if _, err := s.opts.Hub.Agent(name); err == nil { // an id means its agent, as in the address of its card
		return name, nil
	}
	info, err := s.opts.Hub.FindAgent(ctx, name, "")
	switch hub.CodeOf(err) {
	case "":
		return info.Definition.ID, nil
	case hub.CodeInvalid: // several are called like that
		return name, fromHub(ctx, s.log, err)
	}
	return name, fault(errAgentNotFound, "there is no agent "+text.Quote(name, 64))
}

// splitPath returns the agent of /agents/{agent}/a2a… ("" for /a2a…) and the rest of the path, at least "/".
func splitPath(path string) (agent, below string, ok bool) {
	rest, one := strings.CutPrefix(path, "/agents/")
	if one {
		agent, rest, ok = strings.Cut(rest, "/")
		if !ok || agent == "" {
			return "", "", false
		}
		rest = "/" + rest
	}
	if below, ok = strings.CutPrefix(rest, "/a2a"); !ok {
		return "", "", false
	}
	if below == "" {
		return agent, "/", true
	}
	return agent, below, below[0] == '/'
}

// splitExtensions makes each URI of the A2A-Extensions headers a value of its own:
// clients may send one header with commas or several headers.
func splitExtensions(h http.Header) {
	for _, name := range []string{"A2a-Extensions", "X-A2a-Extensions"} {
		values := h.Values(name)
		if len(values) == 0 {
			continue
		}
		var uris []string
		for _, uri := range strings.Split(strings.Join(values, ","), ",") {
			if uri = strings.TrimSpace(uri); uri != "" {
				uris = append(uris, uri)
			}
		}
		h[name] = uris
	}
}

// scope has the properties of a call from its path and version.
type scope struct {
	agent   string // the path's, "" at /a2a
	unknown error  // the path names no agent
	base    string // address for cards
	version a2a.ProtocolVersion
	// more is set before an event is yielded: another one is there already, so that this one need not be written by itself.
	// nil if nobody wants to know.
	more *bool
}

type scopeKey struct{}

func withScope(ctx context.Context, s scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

func scopeFrom(ctx context.Context) scope {
	s, _ := ctx.Value(scopeKey{}).(scope) // the zero scope if there is none
	return s
}
