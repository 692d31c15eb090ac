package bus

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"regexp"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/base/wait"
)

const (
	connectTimeout = 10 * time.Second // with the login: a TLS handshake on a busy machine takes seconds
	requestTimeout = 10 * time.Second // for a request whose context has no deadline
	drainTimeout   = 10 * time.Second
	answerTimeout  = 2 * time.Second  // at the end, of a server that may hang
	pingInterval   = 20 * time.Second // a connection is closed after three pings without an answer

	// Of the attempts to reconnect of one outage, the first are all logged, and then one in logEvery.
	logAttempts = 30
	logEvery    = time.Minute

	// MaxDelay is the longest pause between two attempts to reconnect.
	MaxDelay      = 60 * time.Second
	maxLocalDelay = 2 * time.Second // to a hub on this machine, where attempts are cheap
)

// State is the state of a connection.
type State string

// The states of a connection.
const (
	StateConnected    State = "connected"
	StateReconnecting State = "reconnecting"
	StateClosed       State = "closed"
)

// A link tracks the state of one connection and its last error. It logs each change once.
type link struct {
	log      *slog.Logger
	where    string // the server's name in messages
	maxDelay time.Duration
	backoff  wait.Backoff // of delay, which the connection calls from one goroutine
	secrets  []string
	closed   chan struct{} // closed after the connection and its callbacks
	ctx      context.Context
	stop     context.CancelFunc // ends ctx, and with it an attempt to connect
	changed  wait.Signal        // sent when the state or lastErr changes

	mu         sync.Mutex
	conn       *nats.Conn
	state      State
	since      time.Time
	attempts   int // since the connection was lost
	reconnects int
	lastErr    *Error
	logged     time.Time // when a failed attempt was logged
	denials    map[*denial]struct{}
}

// denial is somebody who waits for the refusal of a permission.
type denial struct {
	cancel  context.CancelCauseFunc
	subject func(string) bool // selects the subjects
}

func newLink(log *slog.Logger, where string, maxDelay time.Duration, secrets ...string) *link {
	l := &link{log: log, where: where, maxDelay: maxDelay, secrets: secrets, closed: make(chan struct{}), denials: map[*denial]struct{}{}}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// dialer connects for nats.go, which holds its lock meanwhile and cannot interrupt it: the end of ctx closes the
// connection, also within the handshake.
type dialer struct {
	ctx  context.Context
	dial func(ctx context.Context, network, address string) (net.Conn, error) // nil for that of package net
}

// Dial implements nats.CustomDialer.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	dial := d.dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: connectTimeout}).DialContext
	}
	conn, err := dial(d.ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &interruptibleConn{conn, context.AfterFunc(d.ctx, func() { _ = conn.Close() })}, nil // nats.go reports it
}

type interruptibleConn struct {
	net.Conn
	release func() bool
}

func (c *interruptibleConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// syncQueue is how many messages a synchronous subscription may hold. nats.go allocates room for them at once, by default
// half a megabyte for each page of a scan.
const syncQueue = 1024

// dial makes one attempt to connect; an established connection reconnects without a limit.
func (l *link) dial(cfg Config, urls string, opts ...nats.Option) (*nats.Conn, error) {
	opts = append([]nats.Option{
		nats.Name(cfg.Name),
		nats.Timeout(connectTimeout),
		nats.DrainTimeout(drainTimeout),
		nats.PingInterval(pingInterval),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // the credentials may become valid again
		// A publish that has failed must not be sent later.
		nats.ReconnectBufSize(-1),
		nats.SyncQueueLen(syncQueue),
		nats.CustomReconnectDelay(l.delay),
		nats.SetCustomDialer(dialer{l.ctx, cfg.DialContext}),
		nats.DisconnectErrHandler(l.disconnected),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { l.failed(err) }),
		nats.ReconnectHandler(l.reconnected),
		nats.ErrorHandler(l.asyncError),
		nats.ClosedHandler(l.closedHandler),
	}, opts...)
	if cfg.NoEcho {
		opts = append(opts, nats.NoEcho())
	}
	conn, err := nats.Connect(urls, opts...)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	if l.state == "" {
		l.set(StateConnected)
	}
	return conn, nil
}

// set changes the state. l.mu is held.
func (l *link) set(s State) {
	l.state = s
	l.since = time.Now()
	l.changed.Send()
}

// delay implements nats.ReconnectDelayHandler: it is called before each round of attempts.
func (l *link) delay(attempt int) time.Duration {
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn != nil && attempt > 1 {
		// There is no callback for a failed handshake.
		if err := conn.LastError(); err != nil {
			l.failed(err)
		}
	}
	l.mu.Lock()
	l.attempts = attempt
	l.mu.Unlock()
	if attempt <= 1 {
		l.backoff = wait.Backoff{Most: l.maxDelay}
	}
	return l.backoff.Next()
}

func (l *link) disconnected(conn *nats.Conn, err error) {
	if conn.IsClosed() || conn.IsDraining() {
		return
	}
	l.mu.Lock()
	l.set(StateReconnecting)
	l.mu.Unlock()
	l.log.Warn("bus connection lost, reconnecting", "error", redactErr(err, l.secrets))
}

// failed records and logs the error of an attempt: a new one as a warning.
func (l *link) failed(err error) {
	e := connectError(err, l.where, l.secrets)
	l.mu.Lock()
	known := l.lastErr != nil && l.lastErr.Message == e.Message
	l.lastErr = e
	if !known {
		l.changed.Send()
	}
	attempts := l.attempts
	level := slog.LevelWarn
	if known {
		level = slog.LevelInfo
	}
	if known && attempts > logAttempts && time.Since(l.logged) < logEvery {
		level = slog.LevelDebug
	} else {
		l.logged = time.Now()
	}
	l.mu.Unlock()
	l.log.Log(context.Background(), level, "cannot reconnect to the bus, retrying",
		"error", e, "code", e.Code, "attempt", attempts)
}

func (l *link) reconnected(conn *nats.Conn) {
	l.mu.Lock()
	attempts := l.attempts
	l.set(StateConnected)
	l.lastErr = nil
	l.attempts = 0
	l.reconnects++
	l.mu.Unlock()
	l.log.Info("bus connection restored", "server", conn.ConnectedServerName(), "attempts", attempts)
}

// asyncError handles the server's errors outside of requests.
func (l *link) asyncError(_ *nats.Conn, sub *nats.Subscription, err error) {
	if isAuthError(err) {
		l.failed(err)
		return
	}
	if errors.Is(err, nats.ErrPermissionViolation) && l.deny(err) {
		return
	}
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	l.log.Warn("bus connection", "error", redactErr(err, l.secrets), "subject", subject)
}

func (l *link) closedHandler(*nats.Conn) {
	l.mu.Lock()
	l.set(StateClosed)
	l.mu.Unlock()
	close(l.closed)
}

// deniedSubject finds the subject in the text of a permission error.
var deniedSubject = regexp.MustCompile(`"([^"]*)"`)

// deny ends the contexts that wait for a permission error, and reports whether there were any.
func (l *link) deny(err error) (awaited bool) {
	subject := ""
	if found := deniedSubject.FindStringSubmatch(err.Error()); found != nil {
		subject = found[1]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := range l.denials {
		if d.subject(subject) {
			d.cancel(err)
			awaited = true
		}
	}
	return awaited
}

// untilDenied returns a context that ends when the server refuses a permission for a selected subject; its cause is the
// error then. The caller must call the function to release it.
func (l *link) untilDenied(ctx context.Context, subject func(string) bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	d := &denial{cancel, subject}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.denials[d] = struct{}{}
	return ctx, func() {
		l.mu.Lock()
		delete(l.denials, d)
		l.mu.Unlock()
		cancel(nil)
	}
}

// UntilDenied returns a context that ends when the server refuses this connection the permission to use one of the
// subjects that the function selects. A request for which the permission is missing gets no answer, only this; DeniedBy
// returns the error. The caller must call the function to release the context.
func (b *Bus) UntilDenied(ctx context.Context, subject func(string) bool) (context.Context, context.CancelFunc) {
	return b.link.untilDenied(ctx, subject)
}

// DeniedBy returns the error of CodeAuth of a context of UntilDenied that a refused permission has ended, nil for none.
func (b *Bus) DeniedBy(ctx context.Context) error {
	cause := context.Cause(ctx)
	if !errors.Is(cause, nats.ErrPermissionViolation) {
		return nil
	}
	what := "a subject"
	if found := deniedSubject.FindStringSubmatch(cause.Error()); found != nil {
		what = found[1]
	}
	return errorf(CodeAuth, cause, "allow the user to use it, or use another user", "%s does not permit this user to use %s", b.Info().URL, what)
}

// Connection is the state of a Bus's connection.
type Connection struct {
	State      State
	Since      time.Time // of State
	Reconnects int
	// Err is the error of the last attempt to reconnect; nil while connected.
	Err error
	// Changed is closed when the state or Err changes.
	Changed <-chan struct{}
}

// LostSince reports whether the connection was lost since a time, even if there is another one by now.
func (c Connection) LostSince(t time.Time) bool {
	return c.State != StateConnected || c.Reconnects > 0 && c.Since.After(t)
}

// Connection returns the state of the connection. Unlike the methods of Conn it does not wait for an attempt to connect
// that is under way.
func (b *Bus) Connection() Connection {
	c := Connection{Changed: b.link.changed.Wait()}
	st := b.link.status()
	c.State, c.Since, c.Reconnects = st.state, st.since, st.reconnects
	if st.lastErr != nil {
		c.Err = st.lastErr
	}
	return c
}

// status is a snapshot of a link's state.
type status struct {
	state      State
	since      time.Time
	reconnects int
	lastErr    *Error
}

func (l *link) status() status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return status{l.state, l.since, l.reconnects, l.lastErr}
}
