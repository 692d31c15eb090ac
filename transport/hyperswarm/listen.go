package hyperswarm

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/relay"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/sealed"
)

// ListenOptions configure a listener.
type ListenOptions struct {
	// Node is the DHT node to listen with.
	Node *hyperdht.Node
	// Pair is the identity; nil means the node's.
	Pair *identity.Pair
	// Allow decides who may connect; nil allows nobody. A refused peer gets no answer.
	Allow identity.Allow
	// Codec encodes and decodes the frames.
	Codec transport.Codec
	// Relays are the keys of relays through which peers without a direct path can connect; see package relay.
	Relays []identity.PublicKey
	// Background makes Listen return before the key is announced and registered with the relays, which is
	// then retried until it succeeds.
	Background bool
	// Logger receives failures that no call returns; nil discards them.
	Logger *slog.Logger
}

const backlog = 64

type listener struct {
	*sealed.Backlog
	l      *hyperdht.Listener
	relays []*relay.Listener
	codec  transport.Codec
	log    *slog.Logger
}

// Listen accepts connections for a key. Unless o.Background is set it blocks until the key is announced and each
// relay has registered it or failed to, or ctx ends. If there are relays, at least one must have registered the key.
func Listen(ctx context.Context, o ListenOptions) (transport.Listener, error) {
	if o.Allow == nil {
		o.Allow = func(identity.PublicKey) bool { return false }
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	inner, err := o.Node.Listen(hyperdht.ListenOptions{Pair: o.Pair, Allow: o.Allow})
	if err != nil {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "the DHT node cannot listen", Err: err}
	}
	if !o.Background {
		if err := inner.WaitAnnounced(ctx); err != nil {
			_ = inner.Close() // it always succeeds
			return nil, &transport.Error{Code: transport.CodeUnreachable, Message: "the key cannot be announced", Err: err}
		}
	}
	l := &listener{Backlog: sealed.NewBacklog(backlog), l: inner, codec: o.Codec, log: o.Logger}
	l.Go(func() { l.run(inner) })
	for _, key := range o.Relays {
		r := relay.Listen(o.Node, key, relay.ListenOptions{
			Pair: o.Pair, Allow: o.Allow, Stream: secretstream.Options{MaxMessage: o.Codec.MaxMessage()}, Logger: o.Logger,
		})
		l.relays = append(l.relays, r)
		l.Go(func() { l.run(r) })
	}
	if !o.Background && len(o.Relays) > 0 {
		if err := l.waitRelays(ctx); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

// waitRelays blocks until each relay has registered this listener or failed to. One is enough: the others
// are retried.
func (l *listener) waitRelays(ctx context.Context) error {
	var failed []error
	for _, r := range l.relays {
		err := r.WaitRegistered(ctx)
		if ctx.Err() != nil {
			return &transport.Error{Code: transport.CodeUnreachable, Message: "the relays did not answer in time", Err: ctx.Err()}
		}
		if err != nil {
			failed = append(failed, err)
			l.log.Warn("a relay did not register this listener", "error", err)
		}
	}
	if len(failed) < len(l.relays) {
		return nil
	}
	return &transport.Error{Code: transport.CodeUnreachable, Message: "no relay has registered this listener", Err: errors.Join(failed...)}
}

// source is a listener of the library: direct or through a relay.
type source interface {
	Accept(context.Context) (*secretstream.Conn, error)
}

// run accepts connections until the listener closes.
func (l *listener) run(from source) {
	for {
		s, err := from.Accept(l.Context())
		if err != nil {
			l.End()
			return
		}
		if !l.Go(func() { l.greet(s) }) {
			s.Destroy()
		}
	}
}

func (l *listener) greet(s *secretstream.Conn) {
	c, err := sealed.Greet(l.Context(), s, &l.codec)
	if err == nil {
		l.Put(l.Context(), c)
		return
	}
	if l.Context().Err() == nil {
		l.log.Info("a peer was not accepted", "peer", s.RemoteKey(), "error", err)
	}
}

// Endpoint implements [transport.Listener]. The address is the key.
func (l *listener) Endpoint() agent.Endpoint {
	return agent.Endpoint{Transport: agent.TransportHyperswarm, Address: l.l.Key().String()}
}

// Close implements [transport.Listener].
func (l *listener) Close() error {
	l.End()
	err := l.l.Close()
	for _, r := range l.relays {
		err = errors.Join(err, r.Close())
	}
	l.Backlog.Close()
	return err
}
