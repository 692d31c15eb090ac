package nats

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/sealed"
)

// ListenOptions configure a listener.
type ListenOptions struct {
	Options
	// Allow decides who may connect; nil allows nobody. A refused peer gets no answer.
	Allow identity.Allow
	// Background makes Listen return before the server has confirmed the subscription, which allows for a
	// server that is unreachable now.
	Background bool
	// Logger receives failures that no call returns; nil discards them.
	Logger *slog.Logger
}

// Limits of what others can make a listener do.
const (
	backlog        = 64 // connections waiting for Accept
	confirmTimeout = time.Minute
	maxPending     = 256  // handshakes waiting; more are dropped
	maxHandshake   = 1024 // bytes of a handshake
	maxUnconfirmed = 64   // connections whose peer is not yet confirmed
	maxSeen        = 4096 // handshakes remembered in each generation
)

type listener struct {
	*sealed.Backlog
	o     ListenOptions
	sub   *nats.Subscription
	slots chan struct{}
	seen  [2]map[[secretstream.EphemeralSize]byte]bool // ephemeral keys: a replayed handshake gets no answer
	once  sync.Once
}

// Listen accepts connections at the subject of its key. It blocks until the server has confirmed the
// subscription or ctx ends, for at most a minute, unless o.Background is set. There must be only one listener for each key: two
// would receive each other's connections.
func Listen(ctx context.Context, o ListenOptions) (transport.Listener, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Allow == nil {
		o.Allow = func(identity.PublicKey) bool { return false }
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	l := &listener{Backlog: sealed.NewBacklog(backlog), o: o, slots: make(chan struct{}, maxUnconfirmed)}
	l.seen[0] = make(map[[secretstream.EphemeralSize]byte]bool)
	var err error
	if l.sub, err = o.Conn.Subscribe(l.Endpoint().Address, l.handle); err != nil {
		return nil, unreachable(err)
	}
	if err = l.sub.SetPendingLimits(maxPending, maxPending*maxHandshake); err == nil && !o.Background {
		confirming, cancel := context.WithTimeout(ctx, confirmTimeout) // NATS requires a deadline
		err = o.Conn.FlushWithContext(confirming)
		cancel()
	}
	if err != nil {
		_ = l.Close() // it always succeeds
		return nil, unreachable(err)
	}
	return l, nil
}

func unreachable(err error) *transport.Error {
	return &transport.Error{Code: transport.CodeUnreachable, Message: "the subscription on NATS failed", Err: err}
}

// handle handles the first message of a handshake. Refused peers and invalid messages get no answer. NATS
// calls it with one message at a time.
func (l *listener) handle(m *nats.Msg) {
	if len(m.Data) < 1+secretstream.EphemeralSize || len(m.Data) > maxHandshake || m.Data[0] != kindOpen {
		return
	}
	msg := m.Data[1:]
	if !l.fresh([secretstream.EphemeralSize]byte(msg)) {
		return
	}
	r, remote, own, err := secretstream.NewResponder(l.o.Pair, msg)
	if err != nil || remote == l.o.Pair.Public() || !l.o.Allow(remote) || !l.o.isLink(string(own)) {
		l.o.Logger.Debug("a peer was refused", "peer", remote, "error", err)
		return
	}
	started := l.GoWithin(l.slots, func() {
		if err := l.respond(r, string(own)); err != nil && l.Context().Err() == nil {
			l.o.Logger.Info("a peer was not accepted", "peer", remote, "error", err)
		}
	})
	if !started && l.Context().Err() == nil {
		l.o.Logger.Warn("a peer was refused: too many handshakes are in progress", "peer", remote)
	}
}

// fresh reports whether a handshake is not a replay, and remembers it.
func (l *listener) fresh(ephemeral [secretstream.EphemeralSize]byte) bool {
	if l.seen[0][ephemeral] || l.seen[1][ephemeral] {
		return false
	}
	if len(l.seen[0]) >= maxSeen {
		l.seen[0], l.seen[1] = make(map[[secretstream.EphemeralSize]byte]bool), l.seen[0]
	}
	l.seen[0][ephemeral] = true
	return true
}

// respond answers a handshake, and queues the connection once the peer is confirmed.
func (l *listener) respond(r *secretstream.Responder, peer string) error {
	s, err := newStream(&l.o.Options, l.o.newLink())
	if err != nil {
		return err
	}
	if err := s.setPeer(peer); err != nil {
		s.Destroy()
		return err
	}
	msg, result, err := r.Finish([]byte(s.own))
	if err == nil {
		err = s.publish(peer, append([]byte{kindAnswer}, msg...))
	}
	if err != nil {
		s.Destroy()
		return err
	}
	secret, err := secretstream.New(s, result, l.o.secret())
	if err != nil {
		s.Destroy()
		return err
	}
	c, err := sealed.Greet(l.Context(), secret, &l.o.Codec)
	if err != nil {
		return err
	}
	l.Put(l.Context(), c)
	return nil
}

// Endpoint implements [transport.Listener].
func (l *listener) Endpoint() agent.Endpoint {
	return agent.Endpoint{Transport: agent.TransportNATS, Address: Address(l.o.Prefix, l.o.Pair.Public())}
}

// Close implements [transport.Listener].
func (l *listener) Close() error {
	l.once.Do(func() {
		l.End()
		_ = l.sub.Unsubscribe() // only fails when the connection to NATS is closed
		_ = l.o.Conn.FlushTimeout(flushTime)
	})
	l.Backlog.Close()
	return nil
}
