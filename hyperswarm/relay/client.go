package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Dial connects to a peer through a relay. The connection is encrypted end to end with the peer; the relay
// cannot read it. A nil pair means the node's identity.
func Dial(ctx context.Context, n *hyperdht.Node, relay, to identity.PublicKey, pair *identity.Pair, o secretstream.Options) (*secretstream.Conn, error) {
	pair = cmp.Or(pair, n.Pair())
	return openPath(ctx, n, relay, pair, dial+string(to[:]), func(ctx context.Context, c *secretstream.Conn) (*secretstream.Conn, error) {
		return initiate(ctx, c, pair, to, o)
	})
}

// DialAny connects to a peer directly or else through one of the relays, tried in order. The error is that
// of all attempts. Options are those of a connection through a relay.
func DialAny(ctx context.Context, n *hyperdht.Node, relays []identity.PublicKey, to identity.PublicKey, direct hyperdht.DialOptions, o secretstream.Options) (*secretstream.Conn, error) {
	c, err := n.Dial(ctx, to, direct)
	for _, r := range relays {
		if err == nil || ctx.Err() != nil {
			break
		}
		var rerr error
		if c, rerr = Dial(ctx, n, r, to, direct.Pair, o); rerr == nil {
			return c, nil
		}
		err = errors.Join(err, fmt.Errorf("through the relay %.8s…: %w", r, rerr))
	}
	return c, err
}

// openPath connects to the relay, sends a request for a path and makes the inner stream on it.
func openPath(ctx context.Context, n *hyperdht.Node, relay identity.PublicKey, pair *identity.Pair, request string, inner func(context.Context, *secretstream.Conn) (*secretstream.Conn, error)) (*secretstream.Conn, error) {
	c, err := n.Dial(ctx, relay, hyperdht.DialOptions{Pair: pair})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*stepTime)
	defer cancel()
	if err = ask(ctx, c, request); err == nil {
		var conn *secretstream.Conn
		if conn, err = inner(ctx, c); err == nil {
			return conn, nil
		}
	}
	c.Destroy()
	return nil, err
}

// ListenOptions configure a [Listener].
type ListenOptions struct {
	// Pair is the identity that peers dial; nil means the node's.
	Pair *identity.Pair
	// Allow decides who may connect; nil allows everyone.
	Allow identity.Allow
	// Stream configures the connections.
	Stream secretstream.Options
	// Logger receives failures that no call returns; nil discards them.
	Logger *slog.Logger
}

const (
	maxWaiting  = 64 // connections that wait for Accept
	maxAccepts  = 32 // concurrent
	firstRetry  = time.Second
	longestWait = time.Minute
)

// Listener accepts connections through a relay. It is safe for concurrent use.
type Listener struct {
	n     *hyperdht.Node
	relay identity.PublicKey
	o     ListenOptions
	conns *wait.Backlog[*secretstream.Conn]
	ctx   context.Context // of conns
	slots chan struct{}

	once  sync.Once
	first chan struct{} // closed when the first attempt to register has ended

	mu      sync.Mutex
	failure error // why it is not registered now
}

// Listen registers with a relay, and again whenever that connection breaks.
func Listen(n *hyperdht.Node, relay identity.PublicKey, o ListenOptions) *Listener {
	o.Pair = cmp.Or(o.Pair, n.Pair())
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	l := &Listener{
		n: n, relay: relay, o: o, slots: make(chan struct{}, maxAccepts), first: make(chan struct{}),
		conns: wait.NewBacklog(context.Background(), maxWaiting, (*secretstream.Conn).Destroy, func() error { return ErrClosed }),
	}
	l.ctx = l.conns.Context()
	l.conns.Go(l.run)
	return l
}

// WaitRegistered waits until peers can be forwarded here, or the first attempt to register has failed. It
// returns why they cannot.
func (l *Listener) WaitRegistered(ctx context.Context) error {
	select {
	case <-l.first:
		if l.ctx.Err() != nil {
			return ErrClosed
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.failure
	case <-l.ctx.Done():
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Accept returns the next connection. The peer has proved its key and its presence.
func (l *Listener) Accept(ctx context.Context) (*secretstream.Conn, error) {
	return l.conns.Accept(ctx)
}

// Close stops the listener. Accepted connections stay open.
func (l *Listener) Close() error {
	l.conns.Close()
	return nil
}

// run registers again whenever the registration ends.
func (l *Listener) run() {
	retry := wait.Backoff{First: firstRetry, Most: longestWait}
	for {
		began := time.Now()
		err := l.register()
		l.registered(err)
		if l.ctx.Err() != nil {
			return
		}
		l.o.Logger.Debug("not registered with the relay", "relay", l.relay, "error", err)
		if time.Since(began) > longestWait {
			retry.Reset() // it had been registered for a while
		}
		if !retry.Pause(l.ctx) {
			return
		}
	}
}

// registered records the result of the last attempt to register.
func (l *Listener) registered(err error) {
	l.mu.Lock()
	l.failure = err
	l.mu.Unlock()
	l.once.Do(func() { close(l.first) })
}

// register keeps one connection to the relay and accepts the paths that it announces.
func (l *Listener) register() error {
	ctx, cancel := context.WithTimeout(l.ctx, 2*stepTime)
	defer cancel()
	c, err := l.n.Dial(ctx, l.relay, hyperdht.DialOptions{Pair: l.o.Pair})
	if err != nil {
		return err
	}
	defer c.Destroy()
	if err := ask(ctx, c, register); err != nil {
		return err
	}
	l.registered(nil)
	defer context.AfterFunc(l.ctx, c.Destroy)()
	for {
		m, err := c.ReadMessage()
		if err != nil {
			return err
		}
		if len(m) != idSize {
			return ErrProtocol
		}
		id := pathID(m)
		l.conns.GoWithin(l.slots, func() { // otherwise the dialler's request times out
			if err := l.accept(id); err != nil && !errors.Is(err, context.Canceled) {
				l.o.Logger.Info("a relayed peer was not accepted", "relay", l.relay, "error", err)
			}
		})
	}
}

// accept opens one path and delivers its connection.
func (l *Listener) accept(id pathID) error {
	ctx, cancel := context.WithTimeout(l.ctx, 2*stepTime)
	defer cancel()
	inner, err := openPath(ctx, l.n, l.relay, l.o.Pair, accept+string(id[:]), func(ctx context.Context, c *secretstream.Conn) (*secretstream.Conn, error) {
		return respond(ctx, c, l.o.Pair, l.o.Allow, l.o.Stream)
	})
	if err != nil {
		return err
	}
	if !l.conns.Offer(inner) {
		inner.Destroy()
		return errors.New("the backlog of accepted connections is full")
	}
	return nil
}
