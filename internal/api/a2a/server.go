package a2a

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/push"
)

// Hub is what this package needs of the hub; *hub.Hub has it.
type Hub interface {
	Send(ctx context.Context, req hub.SendRequest) (*a2a.Task, error)
	SendAndWait(ctx context.Context, req hub.SendRequest) (*a2a.Task, error)
	SendAndStream(ctx context.Context, req hub.SendRequest) (*hub.Subscription, error)
	Subscribe(ctx context.Context, id a2a.TaskID) (*hub.Subscription, error)
	Task(ctx context.Context, id a2a.TaskID, historyLength *int) (*a2a.Task, error)
	Tasks(ctx context.Context, query hub.TaskQuery) (hub.TaskPage, error)
	Cancel(ctx context.Context, id a2a.TaskID) (*a2a.Task, error)
	CancelAlone(ctx context.Context, id a2a.TaskID) (*a2a.Task, error)
	Agents() []hub.AgentInfo
	Agent(id string) (hub.AgentInfo, error)
}

// Options say how a [Server] is to be. Hub is required, the rest has defaults.
type Options struct {
	Hub Hub
	// Push keeps and sends push notifications; nil means that the agents do not
	// offer them.
	Push *push.Service
	// Version is the hub's, for the cards.
	Version string
	// BaseURL is the address that cards name, without a trailing slash. Empty
	// means the one that the client asked at.
	BaseURL string
	// GRPCAddress is the host:port of the gRPC server, for the cards; empty if
	// there is none.
	GRPCAddress string
	// TokenRequired tells clients in the cards to send a bearer token. Checking it
	// is the business of the middleware in front, and of [GRPCOptions].
	TokenRequired bool
	// DefaultAgent answers at /a2a when a request names no agent.
	DefaultAgent string
	// MaxBody bounds a request's body in bytes; 0 means 10 MiB.
	MaxBody int64
	// KeepAlive is the time between comments on a silent stream; 0 means 15 s.
	KeepAlive time.Duration
	// WriteTimeout bounds one write to a streaming client, so that one that reads
	// nothing goes away; 0 means 30 s.
	WriteTimeout time.Duration
	// Wrap is put around the handler that all bindings share; nil for none.
	Wrap func(a2asrv.RequestHandler) a2asrv.RequestHandler
	// Logger gets what clients are not told; nil means slog.Default().
	Logger *slog.Logger
}

// Server holds the bindings. Its methods are safe for concurrent use; it owns no
// goroutine beyond those of running requests.
type Server struct {
	opts    Options
	log     *slog.Logger
	handler a2asrv.RequestHandler
	cards   cards
	rpc     jsonrpcBinding
	rest    http.Handler // 1.0
	tenant  http.Handler // 1.0 below /{tenant}
	rest03  http.Handler
}

// New makes a server of A2A.
func New(opts Options) *Server {
	if opts.MaxBody <= 0 {
		opts.MaxBody = 10 << 20
	}
	if opts.KeepAlive <= 0 {
		opts.KeepAlive = 15 * time.Second
	}
	if opts.WriteTimeout <= 0 {
		opts.WriteTimeout = 30 * time.Second
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := &Server{opts: opts, log: opts.Logger.With("component", "a2a")}
	s.cards = cards{opts: opts}
	s.handler = &Handler{hub: opts.Hub, push: opts.Push, cards: s.cards, defaultAgent: opts.DefaultAgent, log: s.log}
	if opts.Wrap != nil {
		s.handler = opts.Wrap(s.handler)
	}
	s.rpc = jsonrpcBinding{handler: s.handler, keepAlive: opts.KeepAlive, writeTimeout: opts.WriteTimeout, log: s.log}
	transport := []a2asrv.TransportOption{
		a2asrv.WithTransportKeepAlive(opts.KeepAlive),
		a2asrv.WithTransportPanicHandler(s.panicked),
	}
	s.rest = a2asrv.NewRESTHandler(s.handler, transport...)
	s.tenant = a2asrv.NewTenantRESTHandler("/{*}", s.handler, transport...)
	s.rest03 = a2av0.NewRESTHandler(s.handler, transport...)
	return s
}

// panicked turns a panic into the internal error that the client gets.
func (s *Server) panicked(r any) error {
	s.log.Error("request panicked", "panic", r)
	return a2a.ErrInternalError
}

// Mount hands all routes to handle, which is the method of an http.ServeMux or
// one like it. Host, Origin and token are checked by the middleware of the caller.
func (s *Server) Mount(handle func(pattern string, h http.Handler)) {
	handle("/.well-known/agent-card.json", http.HandlerFunc(s.serveRootCard))
	for _, pattern := range []string{"/a2a", "/a2a/", "/agents/{agent}/a2a", "/agents/{agent}/a2a/"} {
		handle(pattern, s)
	}
}

// ServeHTTP serves the A2A paths named in the package comment, wherever the
// agent in the path is known to be right or wrong: it takes the path apart
// itself, so that ids need no escaping rules of a mux.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	agent, below, ok := splitPath(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	if agent != "" {
		if _, err := s.opts.Hub.Agent(agent); err != nil {
			writeHTTPError(w, below, fault(errAgentNotFound, "there is no agent "+quote(agent)))
			return
		}
	}
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.log.Error("request panicked", "path", r.URL.Path, "panic", p)
			// The answer may have begun: cutting the connection is the only sign left.
			panic(http.ErrAbortHandler)
		}
	}()
	splitExtensions(r.Header)
	r = r.WithContext(withScope(r.Context(), scope{agent: agent, base: s.cards.base(r)}))
	switch below {
	case "/":
		s.serveJSONRPC(w, r)
	case "/.well-known/agent-card.json":
		s.serveCard(w, r, agent)
	case "/.well-known/agent.json":
		s.serveUnionCard(w, r, agent)
	default:
		s.serveREST(w, r, below)
	}
}

// writeHTTPError answers in the shape of the binding at the path.
func writeHTTPError(w http.ResponseWriter, below string, err error) {
	if below == "/" {
		writeRPCError(w, wireCodeOf(err).http, jsonrpc.NullID, err)
		return
	}
	writeRESTError(w, err)
}

// splitPath finds the agent of /agents/{agent}/a2a… ("" for /a2a…) and what
// follows, at least "/".
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

// splitExtensions makes one value of each URI that an A2A-Extensions header
// lists: clients may send one header with commas or several headers.
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

// scope is what the path, and the version negotiated for it, say of a call.
type scope struct {
	agent   string // the path's, "" at /a2a
	base    string // address for cards
	version a2a.ProtocolVersion
}

type scopeKey struct{}

func withScope(ctx context.Context, s scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

func scopeFrom(ctx context.Context) scope {
	s, _ := ctx.Value(scopeKey{}).(scope) // none: the zero scope
	return s
}
