package websocket

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/transport"
)

// ListenOptions set up a Listener. The zero value takes anybody on loopback.
type ListenOptions struct {
	Options
	// Authenticate decides who comes in and returns the peer's name, which the
	// connection returns as Peer; see [Tokens]. Its error is not shown to the peer.
	// It must be safe for concurrent use. Nil takes everybody, under no name.
	Authenticate func(*http.Request) (peer string, err error)
	// MaxConns bounds the connections that are open; 10,000.
	MaxConns int
	// URL is what Endpoint returns: where peers reach the listener, e.g. through a
	// proxy that adds TLS. Listen makes one of its address if it is empty.
	URL string
	// OnRefuse, if not nil, is told of each request that was not let in and why.
	// It must be safe for concurrent use.
	OnRefuse func(r *http.Request, reason error)

	// TLS is the server's side of wss, for Listen only; nil means ws.
	TLS *tls.Config
	// Insecure lets Listen take an address that is not loopback without TLS or
	// without Authenticate.
	Insecure bool
	// ErrorLog is the HTTP server's, for Listen only; nil means the standard logger.
	ErrorLog *log.Logger
}

const (
	maxConns         = 10_000
	backlog          = 64               // connections that wait for Accept
	handshakeTimeout = 10 * time.Second // for the request, and for Accept
)

// Listener takes connections over HTTP. It is a [transport.Listener] and an
// [http.Handler], and safe for concurrent use.
type Listener struct {
	o        ListenOptions
	endpoint agent.Endpoint
	queue    chan *conn
	done     chan struct{} // closed at the end
	server   *http.Server  // nil unless it is our own

	mu       sync.Mutex
	open     int // connections
	closed   bool
	cause    error          // why it is closed, unless Close did it
	handling sync.WaitGroup // requests, and the server
}

// NewListener returns a listener to be mounted in an HTTP server, which must
// speak HTTP/1.1; o.URL says where peers find it. That server bounds how long a
// request may take to arrive.
func NewListener(o ListenOptions) *Listener {
	o.Options = o.Options.withDefaults()
	if o.MaxConns <= 0 {
		o.MaxConns = maxConns
	}
	return &Listener{
		o: o, endpoint: agent.Endpoint{Transport: agent.TransportWebSocket, Address: o.URL},
		queue: make(chan *conn, backlog), done: make(chan struct{}),
	}
}

// Listen listens on a TCP address, such as "127.0.0.1:0", with an HTTP server of
// its own, which takes any path. An address that is not loopback wants o.TLS and
// o.Authenticate (or o.Insecure): otherwise CodeInvalid.
func Listen(address string, o ListenOptions) (*Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "cannot listen on " + address, Err: err}
	}
	if err := safe(ln.Addr(), &o); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	if o.URL == "" {
		o.URL = "ws://" + ln.Addr().String()
		if o.TLS != nil {
			o.URL = "wss://" + ln.Addr().String()
		}
	}
	l := NewListener(o)
	l.server = &http.Server{
		Handler: l, ReadHeaderTimeout: handshakeTimeout, IdleTimeout: handshakeTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: o.ErrorLog,
	}
	if o.TLS != nil {
		config := o.TLS.Clone()
		config.NextProtos = []string{"http/1.1"} // WebSocket needs it
		ln = tls.NewListener(ln, config)
	}
	l.handling.Go(func() { l.stop(l.server.Serve(ln)) })
	return l, nil
}

// safe refuses to be open to a network by oversight.
func safe(at net.Addr, o *ListenOptions) error {
	host, _, err := net.SplitHostPort(at.String())
	if err == nil && loopback(host) || o.Insecure {
		return nil
	}
	certified := o.TLS != nil && o.TLS.ClientAuth == tls.RequireAndVerifyClientCert
	switch {
	case o.TLS == nil:
		return &transport.Error{Code: transport.CodeInvalid, Message: "listening on " + at.String() + ", which is not loopback, needs TLS"}
	case o.Authenticate == nil && !certified:
		return &transport.Error{Code: transport.CodeInvalid, Message: "listening on " + at.String() + ", which is not loopback, needs authentication"}
	}
	return nil
}

// ServeHTTP upgrades a request to a connection and queues it for Accept. Requests
// that are not let in get 401 (not authenticated), 403 (a browser), 400 or 426
// (no WebSocket handshake, or not in subprotocol a2a.v1) or 503 (too many
// connections, or closed).
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !l.enter() {
		w.Header().Set("Retry-After", "5")
		l.told(r, refuse(w, http.StatusServiceUnavailable, errors.New("closed, or as many connections as are allowed")))
		return
	}
	defer l.handling.Done()
	c, err := l.upgrade(w, r)
	if err != nil {
		l.leave()
		l.told(r, err)
		return
	}
	context.AfterFunc(c.ctx, l.leave)
	l.hand(c)
}

// enter counts a connection in, if there is room, and a request.
func (l *Listener) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.open >= l.o.MaxConns {
		return false
	}
	l.open++
	l.handling.Add(1)
	return true
}

func (l *Listener) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
}

// refuse answers a request that is not let in and returns the reason, which the
// peer does not learn.
func refuse(w http.ResponseWriter, status int, reason error) error {
	http.Error(w, http.StatusText(status), status)
	return reason
}

func (l *Listener) told(r *http.Request, reason error) {
	if l.o.OnRefuse != nil {
		l.o.OnRefuse(r, reason)
	}
}

// upgrade lets a request in. On an error it has answered.
func (l *Listener) upgrade(w http.ResponseWriter, r *http.Request) (*conn, error) {
	// No agent sends an Origin. A browser does, and with a name that resolves to
	// this machine it would even be that of the request's own host.
	if r.Header.Get("Origin") != "" {
		return nil, refuse(w, http.StatusForbidden, errors.New("a browser's request"))
	}
	peer := ""
	if l.o.Authenticate != nil {
		var err error
		if peer, err = l.o.Authenticate(r); err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			return nil, refuse(w, http.StatusUnauthorized, err)
		}
	}
	limit, err := peerLimit(r.Header, &l.o.Options)
	if err != nil {
		return nil, refuse(w, http.StatusBadRequest, err)
	}
	w.Header().Set(MaxMessageHeader, strconv.Itoa(l.o.Codec.MaxMessage()))
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{Subprotocol}})
	if err != nil {
		return nil, err
	}
	if ws.Subprotocol() != Subprotocol {
		_ = ws.CloseNow() // never used
		return nil, errors.New("the client does not speak " + Subprotocol)
	}
	return newConn(ws, nil, &l.o.Options, peer, limit), nil
}

// hand queues a connection for Accept. If the queue is full, it waits a while;
// otherwise even a connection that has ended is queued, with what it has brought.
func (l *Listener) hand(c *conn) {
	select {
	case l.queue <- c:
		return
	default:
	}
	t := time.NewTimer(handshakeTimeout)
	defer t.Stop()
	select {
	case l.queue <- c:
		return
	case <-l.done:
	case <-c.done:
	case <-t.C:
	}
	closeConn(c)
}

// closeConn ends a connection that nobody took.
func closeConn(c *conn) { _ = c.Close() }

// Accept implements [transport.Listener].
func (l *Listener) Accept(ctx context.Context) (transport.Conn, error) {
	select {
	case <-l.done:
		return nil, l.closedError()
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, l.closedError()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *Listener) closedError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return transport.ErrClosed("the listener", l.cause)
}

// Endpoint implements [transport.Listener].
func (l *Listener) Endpoint() agent.Endpoint { return l.endpoint }

// Close implements [transport.Listener]. It waits until no request is being
// handled any more; connections that were not accepted are closed.
func (l *Listener) Close() error {
	l.stop(nil)
	var err error
	if l.server != nil {
		err = l.server.Close()
	}
	l.handling.Wait()
	for {
		select {
		case c := <-l.queue:
			closeConn(c)
		default:
			return err
		}
	}
}

// stop lets nobody in any more.
func (l *Listener) stop(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed, l.cause = true, cause
	close(l.done)
}
