package websocket

import (
	"bufio"
	"cmp"
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
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/transport"
)

// ListenOptions configure a Listener. The zero value accepts everyone on loopback.
type ListenOptions struct {
	Options
	// Authenticate decides who may connect and returns the peer's name, which the connection returns as
	// Peer; see [Tokens]. Its error is not sent to the peer. It must be safe for concurrent use. Nil
	// accepts everyone, without a name.
	Authenticate func(*http.Request) (peer string, err error)
	// MaxConns bounds the open connections; 0 means 10,000.
	MaxConns int
	// URL is the address that Endpoint returns, e.g. that of a proxy that adds TLS. If it is empty, Listen
	// uses its own address.
	URL string
	// OnRefuse, if not nil, is called with each refused request and the reason. It must be safe for concurrent use.
	OnRefuse func(r *http.Request, reason error)

	// TLS configures wss for Listen; nil means ws.
	TLS *tls.Config
	// Insecure allows Listen to use an address that is not loopback without TLS or without Authenticate.
	Insecure bool
	// ErrorLog is for Listen's HTTP server; nil means the standard logger.
	ErrorLog *log.Logger
}

const (
	maxConns         = 10_000
	maxWaiting       = 64               // connections waiting for Accept
	handshakeTimeout = 10 * time.Second // for the request, and for a full queue
)

// Listener accepts connections over HTTP. It is a [transport.Listener] and an [http.Handler], and safe for
// concurrent use.
type Listener struct {
	o        ListenOptions
	endpoint agent.Endpoint
	conns    *wait.Backlog[transport.Conn]
	server   *http.Server // Listen's own, or nil

	mu       sync.Mutex
	open     int // connections
	closed   bool
	cause    error          // why it is closed, nil after Close
	handling sync.WaitGroup // requests, and the server
}

// NewListener returns a listener to mount in an HTTP server, which must speak HTTP/1.1 and should limit how
// long a request may take to arrive. The endpoint is o.URL.
func NewListener(o ListenOptions) *Listener {
	o.Options = o.Options.withDefaults()
	o.MaxConns = cmp.Or(max(o.MaxConns, 0), maxConns)
	l := &Listener{o: o, endpoint: agent.Endpoint{Transport: agent.TransportWebSocket, Address: o.URL}}
	drop := func(c transport.Conn) { _ = c.Close() } // it always succeeds
	l.conns = wait.NewBacklog(context.Background(), maxWaiting, drop, l.closedError)
	return l
}

// Listen listens on a TCP address, such as "127.0.0.1:0", with its own HTTP server, which accepts any path.
// Unless o.Insecure is set, an address that is not loopback needs o.TLS and o.Authenticate; otherwise the
// error is CodeInvalid.
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

// safe prevents a listener that is open to a network by mistake.
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

// ServeHTTP upgrades a request to a connection and queues it for Accept. Refused requests get 401 (not
// authenticated), 403 (from a browser), 400 or 426 (no WebSocket handshake, or another subprotocol than
// a2a.v1) or 503 (too many connections, or closed).
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !l.acquire() {
		w.Header().Set("Retry-After", "5")
		l.report(r, refuse(w, http.StatusServiceUnavailable, errors.New("the listener is closed or at its limit of connections")))
		return
	}
	defer l.handling.Done()
	c, err := l.upgrade(w, r)
	if err != nil {
		l.release()
		l.report(r, err)
		return
	}
	context.AfterFunc(c.ctx, l.release)
	l.deliver(c)
}

// acquire counts a request and its connection, if there is room.
func (l *Listener) acquire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.open >= l.o.MaxConns {
		return false
	}
	l.open++
	l.handling.Add(1)
	return true
}

func (l *Listener) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
}

// refuse answers a refused request and returns the reason, which is not sent to the peer.
func refuse(w http.ResponseWriter, status int, reason error) error {
	http.Error(w, http.StatusText(status), status)
	return reason
}

func (l *Listener) report(r *http.Request, reason error) {
	if l.o.OnRefuse != nil {
		l.o.OnRefuse(r, reason)
	}
}

// upgrade checks a request and upgrades it. On an error the request has been answered.
func (l *Listener) upgrade(w http.ResponseWriter, r *http.Request) (*conn, error) {
	// Agents send no Origin; browsers do. With a name that resolves to this computer, a web page's Origin
	// could even match the request's host.
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
	below := &hijacker{ResponseWriter: w}
	ws, err := websocket.Accept(below, r, &websocket.AcceptOptions{Subprotocols: []string{Subprotocol}})
	if err != nil {
		return nil, err
	}
	if ws.Subprotocol() != Subprotocol {
		_ = ws.CloseNow() // never used
		return nil, errors.New("the client does not speak " + Subprotocol)
	}
	return newConn(ws, below.conn, nil, &l.o.Options, peer, limit), nil
}

// hijacker is the response to a request for a WebSocket; it keeps the connection below it.
type hijacker struct {
	http.ResponseWriter
	conn net.Conn
}

// Hijack implements [http.Hijacker].
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.conn = c
	return c, rw, err
}

// deliver queues a connection for Accept. If the queue has room, even a connection that has ended is
// queued, with the frames it has received; otherwise deliver waits for a limited time.
func (l *Listener) deliver(c *conn) {
	ctx, cancel := context.WithTimeout(c.ctx, handshakeTimeout)
	defer cancel()
	l.conns.Put(ctx, c)
}

// Accept implements [transport.Listener].
func (l *Listener) Accept(ctx context.Context) (transport.Conn, error) { return l.conns.Accept(ctx) }

func (l *Listener) closedError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return transport.ErrClosed("the listener", l.cause)
}

// Endpoint implements [transport.Listener].
func (l *Listener) Endpoint() agent.Endpoint { return l.endpoint }

// Close implements [transport.Listener]. It waits for the requests in progress and closes the connections
// that were not accepted.
func (l *Listener) Close() error {
	l.stop(nil)
	var err error
	if l.server != nil {
		err = l.server.Close()
	}
	l.handling.Wait()
	l.conns.Close()
	return err
}

// stop refuses new connections from now on.
func (l *Listener) stop(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed, l.cause = true, cause
	l.conns.End()
}
