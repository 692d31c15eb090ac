package nats

import (
	"context"
	"io"
	"log/slog"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/sealed"
)

// ListenOptions set a listener up.
type ListenOptions struct {
	Options
	// Allow decides who may connect, inside the handshake: a peer that may not gets
	// no answer at all. Nil lets nobody in. It must not block.
	Allow func(identity.PublicKey) bool
	// Background lets Listen return before the server has the subscription: it may be
	// away at the moment.
	Background bool
	// Logger gets what nobody else learns of; nil discards it.
	Logger *slog.Logger
}

// Bounds of what others can make a listener do.
const (
	backlog     = 64   // connections that wait for Accept
	maxKnocks   = 256  // handshakes that wait; more are lost
	maxKnock    = 1024 // bytes of a handshake
	maxGreeting = 64   // connections that have not proved yet that they are no recording
	maxSeen     = 4096 // handshakes that are remembered, twice over
)

type listener struct {
	*sealed.Backlog
	o     ListenOptions
	sub   *nats.Subscription
	slots chan struct{}
	seen  [2]map[[secretstream.EphemeralSize]byte]bool // recordings of handshakes are not answered again
	once  sync.Once
}

// Listen takes connections at the subject of its key. It blocks until the server has
// the subscription, or ctx ends, unless that is left to the background. Two listeners of
// one key would take each other's connections.
func Listen(ctx context.Context, o ListenOptions) (transport.Listener, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Allow == nil {
		o.Allow = func(identity.PublicKey) bool { return false }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	l := &listener{Backlog: sealed.NewBacklog(backlog), o: o, slots: make(chan struct{}, maxGreeting)}
	l.seen[0] = make(map[[secretstream.EphemeralSize]byte]bool)
	var err error
	if l.sub, err = o.Conn.Subscribe(l.Endpoint().Address, l.knocked); err != nil {
		return nil, unreachable(err)
	}
	if err = l.sub.SetPendingLimits(maxKnocks, maxKnocks*maxKnock); err == nil && !o.Background {
		err = o.Conn.FlushWithContext(ctx)
	}
	if err != nil {
		_ = l.Close() // it always succeeds
		return nil, unreachable(err)
	}
	return l, nil
}

func unreachable(err error) *transport.Error {
	return &transport.Error{Code: transport.CodeUnreachable, Message: "NATS does not take the subscription", Err: err}
}

// knocked takes the first message of a handshake. Whoever is not let in, or says
// anything else, hears nothing. NATS calls it with one message after the other.
func (l *listener) knocked(m *nats.Msg) {
	if len(m.Data) < 1+secretstream.EphemeralSize || len(m.Data) > maxKnock || m.Data[0] != kindOpen {
		return
	}
	msg := m.Data[1:]
	if !l.fresh([secretstream.EphemeralSize]byte(msg)) {
		return
	}
	r, remote, own, err := secretstream.NewResponder(l.o.Pair, msg)
	if err != nil || remote == l.o.Pair.Public() || !l.o.Allow(remote) || !l.o.isLink(string(own)) {
		l.o.Logger.Debug("a peer was not let in", "peer", remote, "error", err)
		return
	}
	select {
	case l.slots <- struct{}{}:
	default:
		l.o.Logger.Warn("a peer was not let in: too many handshakes are under way", "peer", remote)
		return
	}
	l.Go(func() { // or not at all: then no more slots are wanted
		defer func() { <-l.slots }()
		if err := l.greet(r, string(own)); err != nil && l.Context().Err() == nil {
			l.o.Logger.Info("a peer was not accepted", "peer", remote, "error", err)
		}
	})
}

// fresh reports whether a handshake is not the repetition of one that was
// remembered.
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

// greet answers a handshake, and queues the connection once the peer has shown that
// it is there.
func (l *listener) greet(r *secretstream.Responder, peer string) error {
	s, err := newStream(&l.o.Options, l.o.newLink())
	if err != nil {
		return err
	}
	if err := s.meet(peer); err != nil {
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
	l.Put(c)
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
