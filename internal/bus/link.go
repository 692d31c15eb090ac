package bus

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/base/wait"
)

const (
	connectTimeout = 10 * time.Second // with the login: a TLS handshake on a busy machine takes seconds
	requestTimeout = 10 * time.Second // for a request whose context has no deadline
	drainTimeout   = 10 * time.Second
	pingInterval   = 20 * time.Second // a connection is closed after three pings without an answer

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

	mu         sync.Mutex
	conn       *nats.Conn
	state      State
	since      time.Time
	attempts   int // since the connection was lost
	reconnects int
	lastErr    *Error
	denied     context.CancelCauseFunc // called with permission errors, may be nil
}

func newLink(log *slog.Logger, where string, maxDelay time.Duration, secrets ...string) *link {
	return &link{log: log, where: where, maxDelay: maxDelay, secrets: secrets, closed: make(chan struct{})}
}

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
		nats.CustomReconnectDelay(l.delay),
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

// failed records the error of an attempt, and logs it unless it is the same as the last one.
func (l *link) failed(err error) {
	e := connectError(err, l.where, l.secrets)
	l.mu.Lock()
	known := l.lastErr != nil && l.lastErr.Message == e.Message
	l.lastErr = e
	attempts := l.attempts
	l.mu.Unlock()
	level := slog.LevelWarn
	if known {
		level = slog.LevelDebug
	}
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
	l.mu.Lock()
	denied := l.denied
	l.mu.Unlock()
	if denied != nil && errors.Is(err, nats.ErrPermissionViolation) {
		denied(err)
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

// onDenied passes permission errors to cancel until it is called with nil.
func (l *link) onDenied(cancel context.CancelCauseFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.denied = cancel
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
