package server

import (
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

	"golang.org/x/net/netutil"
	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
)

// Config says where a server listens and what it serves.
type Config struct {
	// Socket is the path of the Unix socket; "" means none.
	Socket string
	// SocketHandler answers what comes over the socket.
	SocketHandler jsonrpc.Handler
	// SocketMCP takes over a connection of the socket whose first request is
	// dialect.MethodMCP: with the request's params it returns what serves the
	// connection, or the error that answers the request. Nil: there is no such method.
	SocketMCP func(params json.RawMessage) (Attached, *jsonrpc.Error)
	// HTTP is the address of the HTTP server, "127.0.0.1:8080"; "" means none.
	HTTP string
	// HTTPHandler answers what comes over HTTP.
	HTTPHandler jsonrpc.Handler
	// Cards fills the documents below /.well-known.
	Cards *dialect.Directory
	// Health fills GET /health.
	Health func() dialect.HealthReport
	// Token is the bearer token of HTTP; "" means that none is needed, which is
	// only allowed on loopback.
	Token string
	// Hosts are names besides loopback's by which clients may call the server.
	Hosts []string
	// Origins are browser origins besides the server's own that may call it:
	// "https://example.org".
	Origins []string
	Limits  Limits
	Log     *slog.Logger // nil means slog.Default
}

// Attached serves a connection that was taken over until its client leaves, or ctx
// ends. Closing in ends a read of it.
type Attached func(ctx context.Context, in io.ReadCloser, out io.Writer)

// Limits bound what clients can use. Zero means the default in the comment.
type Limits struct {
	Message     int           // bytes of a request or line: 10 MiB
	Conns       int           // connections of each listener: 4096
	InFlight    int           // requests of one socket connection at once: 1024
	BodyMemory  int64         // bytes of all large HTTP bodies at once: 128 MiB
	LineMemory  int64         // bytes of one socket connection's requests at once: 32 MiB
	ReadTimeout time.Duration // a request, from its first byte to its last: 30 s
	// WriteTimeout is how long a client may take nothing of an answer: 30 s.
	WriteTimeout time.Duration
	Idle         time.Duration // a connection without requests: 15 min
	KeepAlive    time.Duration // between comments on a silent SSE stream: 15 s
	RPC          jsonrpc.Limits
}

func (l Limits) withDefaults() Limits {
	orInt := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	orTime := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	orInt(&l.Message, 10<<20)
	orInt(&l.Conns, 4096)
	orInt(&l.InFlight, 1024)
	if l.BodyMemory <= 0 {
		l.BodyMemory = 128 << 20
	}
	if l.LineMemory <= 0 {
		l.LineMemory = 32 << 20
	}
	l.BodyMemory = max(l.BodyMemory, int64(l.Message))
	l.LineMemory = max(l.LineMemory, int64(l.Message))
	orTime(&l.ReadTimeout, 30*time.Second)
	orTime(&l.WriteTimeout, 30*time.Second)
	orTime(&l.Idle, 15*time.Minute)
	orTime(&l.KeepAlive, 15*time.Second)
	return l
}

// Server is the hub's listeners. New, Mount, Start and Shutdown are called in
// this order, each from one goroutine.
type Server struct {
	cfg      Config
	log      *slog.Logger
	access   access
	mux      *http.ServeMux
	bodies   *semaphore.Weighted
	socket   *socketServer // nil without one
	http     *http.Server  // nil without one
	httpAddr net.Addr

	base     context.Context // of every request; ends when Shutdown gives up waiting
	cancel   context.CancelFunc
	draining atomic.Bool
	serving  sync.WaitGroup // the accept loops
	failed   chan error
}

// New checks the configuration; it opens nothing.
func New(cfg Config) (*Server, error) {
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	s := &Server{cfg: cfg, log: cfg.Log, mux: http.NewServeMux(), failed: make(chan error, 2)}
	if cfg.HTTP != "" {
		access, err := newAccess(cfg)
		if err != nil {
			return nil, err
		}
		s.access = access
		s.bodies = semaphore.NewWeighted(cfg.Limits.BodyMemory)
		s.routes()
	}
	return s, nil
}

// Mount serves further paths behind the same checks and limits. The pattern is
// one of net/http's ServeMux. Without HTTP it does nothing.
func (s *Server) Mount(pattern string, h http.Handler) { s.mux.Handle(pattern, h) }

// Handler is what the HTTP server serves, behind all checks; nil without HTTP.
func (s *Server) Handler() http.Handler {
	if s.cfg.HTTP == "" {
		return nil
	}
	return s.guard(s.mux)
}

// Start binds the listeners and serves them in the background until Shutdown.
// When it returns, clients can connect; on an error nothing is left behind.
// ctx bounds only the start.
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

// Failed yields an error when a listener breaks while the server runs; its
// other listeners go on.
func (s *Server) Failed() <-chan error { return s.failed }

func (s *Server) report(err error) {
	if err != nil {
		s.failed <- err // one place for each listener: never blocks
	}
}

// Addr is where HTTP listens once Start has returned, nil without HTTP.
func (s *Server) Addr() net.Addr { return s.httpAddr }

// Shutdown takes no new requests, removes the socket and waits for the requests
// that are running. When ctx ends first, it cuts them off: waiting requests are
// then answered with an error, and their tasks go on. Close the hub before, so
// that those who wait hear how their tasks ended. A second call does nothing.
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

// cutOff is how long requests have to write their last answer after Shutdown
// gave up on them.
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
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.HTTP)
	if err != nil {
		return nil, listenError(s.cfg.HTTP, err)
	}
	addr, ok := ln.Addr().(*net.TCPAddr)
	if s.cfg.Token == "" && (!ok || !addr.IP.IsLoopback()) {
		return nil, errors.Join(errNeedsToken(s.cfg.HTTP), ln.Close())
	}
	if ok && !addr.IP.IsLoopback() {
		s.log.Warn("HTTP is open to other machines; the token and all data travel unencrypted", "address", addr.String())
	}
	return ln, nil
}

func listenError(address string, err error) error {
	e := &Error{Code: CodeInternal, Message: "cannot listen on " + address + ": " + rootCause(err), Err: err}
	switch {
	case isAddressInUse(err):
		e.Code = CodeInUse
		e.Remedy = "stop what listens there, choose another port with --http-port, or start without HTTP (--no-http)"
	case errors.Is(err, errPermission):
		e.Code = CodeForbidden
		e.Remedy = "choose a port above 1023 with --http-port"
	}
	return e
}

func rootCause(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
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
	}
	s.serving.Go(func() {
		err := s.http.Serve(netutil.LimitListener(ln, limits.Conns))
		if !errors.Is(err, http.ErrServerClosed) {
			s.report(&Error{Code: CodeInternal, Message: "the HTTP server stopped: " + err.Error(), Err: err})
		}
	})
}

// trimmed returns the elements in lower case without spaces and empty ones.
func trimmed(list []string) []string {
	var out []string
	for _, v := range list {
		if v = strings.ToLower(strings.TrimSpace(v)); v != "" {
			out = append(out, v)
		}
	}
	return out
}
