// Package server serves the hub on the Unix socket and over HTTP. It owns listeners, connections, limits and access
// control; handlers (package dialect, and mounted ones) answer the requests.
//
// The socket has newline-delimited JSON-RPC. The requests of a connection run concurrently, and answers are sent in
// the order in which they are ready. Reading pauses at the limit of concurrent requests. Events of a stream are
// notifications with the method stream/event. A line that is too long is answered with an error and skipped. A
// client that does not read is disconnected; tasks of a disconnected client keep running.
//
// HTTP has the same at POST / and POST /stream, and serves GET /health and the documents below /.well-known. Without
// a token only loopback is allowed, and only the user's own programs, which the system knows by the connection. A request's Host and Origin must be the server's own (DNS rebinding); with a
// token, everything but the short GET /health and the public cards requires it.
package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/budget"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/local"
)

// Code classifies an [Error].
type Code string

// The codes of an [Error].
const (
	CodeConfig    Code = "config"    // the configuration is wrong or unsafe
	CodeInUse     Code = "in-use"    // another server has the address or the socket
	CodeForbidden Code = "forbidden" // the address or path may not be used
	CodeInternal  Code = "internal"
)

// Error is an error of New and Start. Message and Remedy are for users.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

// Config are the options of [New].
type Config struct {
	// AnyPort listens for HTTP on a port that the system chooses if the configured one is in use. See Addr.
	AnyPort bool
	// Socket is the path of the Unix socket; "" means none.
	Socket string
	// SocketHandler answers the requests on the socket.
	SocketHandler jsonrpc.Handler
	// SocketMCP handles a connection of the socket whose first request is dialect.MethodMCP: it returns the function
	// that serves the connection from then on, or the error for the request. Nil disables the method.
	SocketMCP func(params json.RawMessage) (Attached, *jsonrpc.Error)
	// SocketRest handles a connection of the socket whose first request is dialect.MethodNetworkRest, as SocketMCP does. The function
	// answers the request itself.
	SocketRest func(id jsonrpc.ID, params json.RawMessage) (Detached, *jsonrpc.Error)
	// HTTP is the address of the HTTP server, "127.0.0.1:8080"; "" means none.
	HTTP string
	// HTTPHandler answers the requests over HTTP.
	HTTPHandler jsonrpc.Handler
	// PageHandler answers those of the hub's page, from browsers that Pages lets in; nil means HTTPHandler.
	PageHandler jsonrpc.Handler
	// Cards makes the documents below /.well-known.
	Cards *dialect.Directory
	// PublicPath reports whether GET and HEAD of a mounted path need no token; nil means that all need it.
	PublicPath func(path string) bool
	// Health returns the body of GET /health.
	Health func() dialect.HealthReport
	// Token is the bearer token that every request over HTTP needs. Without one, which is only allowed on loopback, the
	// programs of the hub's user need none; the others need the LocalToken.
	Token string
	// LocalToken is the token of connections that are not the user's own, or of which the system does not tell whose they
	// are. Without one they are refused. It has no effect with a Token.
	LocalToken string
	// Pages are the browsers that may use the hub's page besides those of permitted programs; nil means none.
	Pages *Pages
	// Hosts are the server's names besides loopback's.
	Hosts []string
	// Origins are allowed browser origins besides the server's own, such as "https://example.org".
	Origins []string
	Limits  Limits
	// Memory is what large requests share, with other interfaces if these have the same; nil means Limits.BodyMemory.
	Memory *budget.Budget
	Log    *slog.Logger // nil means slog.Default
}

// Attached serves a connection until its client disconnects or ctx ends. Closing in ends a read.
type Attached func(ctx context.Context, in io.ReadCloser, out io.Writer)

// Detached serves a connection by itself, with nothing else of the server in memory, until a read fails: its client has disconnected, or the
// server stops. The server closes the connection.
type Detached func(conn net.Conn)

// Limits bound the resources of clients. Zero means the default in the comment.
type Limits struct {
	Message     int           // bytes of a request or line: 10 MiB
	Conns       int           // connections of each listener: 4096
	InFlight    int           // requests of one socket connection at once: 1024
	BodyMemory  int64         // bytes of all large requests over HTTP at once: 64 MiB; see Config.Memory
	LineMemory  int64         // bytes of one socket connection's requests at once: 32 MiB
	ReadTimeout time.Duration // a request, from its first byte to its last: 30 s
	BodyWait    time.Duration // of a large request for memory that others hold: 10 s
	BodyStep    time.Duration // for each 64 KiB of a large request, once it has memory: 5 s
	// WriteTimeout disconnects a client that reads nothing for so long: 30 s.
	WriteTimeout time.Duration
	Idle         time.Duration // a connection without requests: 15 min
	KeepAlive    time.Duration // between comments on a silent SSE stream: 15 s
	RPC          jsonrpc.Limits
}

// NewMemory returns the default budget of large requests, for several interfaces together.
func NewMemory() *budget.Budget {
	limits := Limits{}.withDefaults()
	return budget.New(limits.BodyMemory, limits.BodyWait)
}

func (l Limits) withDefaults() Limits {
	l.Message = cmp.Or(max(l.Message, 0), 10<<20)
	l.Conns = cmp.Or(max(l.Conns, 0), 4096)
	l.InFlight = cmp.Or(max(l.InFlight, 0), 1024)
	l.BodyMemory = max(cmp.Or(max(l.BodyMemory, 0), 64<<20), requestCost*int64(l.Message))
	l.LineMemory = max(cmp.Or(max(l.LineMemory, 0), 32<<20), int64(l.Message))
	l.ReadTimeout = cmp.Or(max(l.ReadTimeout, 0), 30*time.Second)
	l.BodyWait = cmp.Or(max(l.BodyWait, 0), 10*time.Second)
	l.BodyStep = cmp.Or(max(l.BodyStep, 0), 5*time.Second)
	l.WriteTimeout = cmp.Or(max(l.WriteTimeout, 0), 30*time.Second)
	l.Idle = cmp.Or(max(l.Idle, 0), 15*time.Minute)
	l.KeepAlive = cmp.Or(max(l.KeepAlive, 0), 15*time.Second)
	return l
}

// Server owns the hub's listeners. Call Mount, Start and Shutdown in this order, from one goroutine.
type Server struct {
	cfg    Config
	log    *slog.Logger
	access access
	mux    *http.ServeMux
	// calls and pageCalls answer calls over HTTP, those of other clients and those of the hub's page.
	calls, pageCalls *jsonrpc.Dispatcher
	memory           *budget.Budget // of large requests
	refusals         rate.Sometimes // limits the log
	socket           *socketServer  // nil without one
	http             *http.Server   // nil without one
	httpAddr         net.Addr

	base     context.Context // of every request; ends when Shutdown gives up waiting
	cancel   context.CancelFunc
	draining atomic.Bool
	serving  sync.WaitGroup // the accept loops
	failed   chan error
}

// New checks the configuration. It does not listen yet.
func New(cfg Config) (*Server, error) {
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	s := &Server{cfg: cfg, log: cfg.Log, mux: http.NewServeMux(), failed: make(chan error, 2), refusals: rate.Sometimes{First: 10, Interval: 10 * time.Second}}
	if cfg.HTTP != "" {
		access, err := newAccess(cfg)
		if err != nil {
			return nil, err
		}
		s.access = access
		s.memory = cmp.Or(cfg.Memory, budget.New(cfg.Limits.BodyMemory, cfg.Limits.BodyWait))
		s.routes()
	}
	return s, nil
}

// Mount adds a handler behind the same checks and limits, with a pattern of
// http.ServeMux. Without HTTP it has no effect.
func (s *Server) Mount(pattern string, h http.Handler) { s.mux.Handle(pattern, h) }

// Handler returns the HTTP handler with all checks; nil without HTTP.
func (s *Server) Handler() http.Handler {
	if s.cfg.HTTP == "" {
		return nil
	}
	return s.guard(s.mux)
}

// Start binds the listeners and serves them in the background until Shutdown. When it returns, clients can connect;
// after an error nothing is open. ctx bounds only the start.
func (s *Server) Start(ctx context.Context) error {
	s.base, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	var httpListener net.Listener
	if s.cfg.HTTP != "" {
		var err error
		if httpListener, err = s.listenHTTP(ctx); err != nil {
			s.cancel()
			return err
		}
	}
	if s.cfg.Socket != "" {
		socket, err := s.listenSocket(ctx)
		if err != nil {
			s.cancel()
			if httpListener != nil {
				err = errors.Join(err, httpListener.Close())
			}
			return err
		}
		s.socket = socket
		s.serving.Go(func() { s.report(socket.serve()) })
		s.log.Info("listening on the socket", "path", s.cfg.Socket)
	}
	if httpListener != nil {
		s.serveHTTP(httpListener)
		s.log.Info("listening on HTTP", "address", s.httpAddr.String(), "token", s.cfg.Token != "")
	}
	return nil
}

// Failed receives the error of a listener that fails while the server runs. The other listener continues.
func (s *Server) Failed() <-chan error { return s.failed }

func (s *Server) report(err error) {
	if err != nil {
		s.failed <- err // buffered for each listener: never blocks
	}
}

// Addr returns the address of HTTP after Start, nil without HTTP.
func (s *Server) Addr() net.Addr { return s.httpAddr }

// Shutdown stops accepting requests, removes the socket and waits for running requests. When ctx ends first, these
// are answered with an error and their tasks keep running. Close the hub before, so that running requests get their
// tasks' results. A second call does nothing.
func (s *Server) Shutdown(ctx context.Context) error {
	if s.draining.Swap(true) || s.cancel == nil {
		return nil // stopped already, or never started
	}
	defer s.cancel()
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()

	var wait sync.WaitGroup
	var socketErr, httpErr error
	if s.socket != nil {
		wait.Go(func() { socketErr = s.socket.shutdown() })
	}
	if s.http != nil {
		wait.Go(func() { httpErr = s.shutdownHTTP(ctx) })
	}
	wait.Wait()
	s.serving.Wait()
	return errors.Join(socketErr, httpErr)
}

// cutOff bounds the last write of requests that Shutdown interrupts.
const cutOff = time.Second

func (s *Server) shutdownHTTP(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutOff)
	defer cancel()
	if s.http.Shutdown(last) == nil {
		return nil
	}
	return s.http.Close()
}

func (s *Server) listenHTTP(ctx context.Context) (net.Listener, error) {
	listen := Listen
	if s.cfg.AnyPort {
		listen = ListenAnyPort
	}
	ln, err := listen(ctx, s.cfg.HTTP)
	if err != nil {
		return nil, listenError(s.cfg.HTTP, err)
	}
	addr, ok := ln.Addr().(*net.TCPAddr)
	if s.cfg.Token == "" && (!ok || !addr.IP.IsLoopback()) {
		return nil, errors.Join(errNeedsToken(s.cfg.HTTP), ln.Close())
	}
	if ok && !addr.IP.IsLoopback() {
		s.log.Warn("HTTP is open to other machines; the token and all data are sent unencrypted", "address", addr.String())
	}
	return ln, nil
}

// Listen listens on a TCP address.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

// ListenAnyPort is Listen, but on a port that the system chooses if that of the address is in use.
func ListenAnyPort(ctx context.Context, address string) (net.Listener, error) {
	ln, err := Listen(ctx, address)
	if err == nil || !IsAddressInUse(err) {
		return ln, err
	}
	host, _, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		return nil, err
	}
	return Listen(ctx, net.JoinHostPort(host, "0"))
}

func listenError(address string, err error) error {
	e := &Error{Code: CodeInternal, Message: "cannot listen on " + address + ": " + local.Reason(err), Err: err}
	switch {
	case IsAddressInUse(err):
		e.Code = CodeInUse
		e.Remedy = "stop what listens there, choose another port with --http-port, or start without HTTP (--no-http)"
	case errors.Is(err, errPermission):
		e.Code = CodeForbidden
		e.Remedy = "choose a port above 1023 with --http-port"
	}
	return e
}

func (s *Server) serveHTTP(ln net.Listener) {
	s.httpAddr = ln.Addr()
	limits := s.cfg.Limits
	s.http = &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: min(10*time.Second, limits.ReadTimeout),
		IdleTimeout:       min(2*time.Minute, limits.Idle),
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return s.base },
		ConnContext:       withCaller,
	}
	s.serving.Go(func() {
		err := s.http.Serve(limit(ln, limits.Conns))
		if !errors.Is(err, http.ErrServerClosed) {
			s.report(&Error{Code: CodeInternal, Message: "the HTTP server stopped: " + err.Error(), Err: err})
		}
	})
}

// trimmed returns the non-empty elements, trimmed and in lower case.
func trimmed(list []string) []string {
	var out []string
	for _, v := range list {
		if v = strings.ToLower(strings.TrimSpace(v)); v != "" {
			out = append(out, v)
		}
	}
	return out
}
