package hyperswarm

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/relay"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/sealed"
)

// ListenOptions set a listener up.
type ListenOptions struct {
	// Node is the member of the DHT through which peers come.
	Node *hyperdht.Node
	// Pair is the identity; nil means the node's.
	Pair *identity.Pair
	// Allow decides who may connect, inside the handshake: a peer that may not gets
	// no answer at all. Nil lets nobody in. It must not block.
	Allow func(identity.PublicKey) bool
	// Codec writes and reads the frames.
	Codec transport.Codec
	// Relays are hubs, by their keys, through which peers may come that have no
	// direct path; see package relay.
	Relays []identity.PublicKey
	// Background lets Listen return before the key is announced and the relays know of
	// it, and with nobody to announce it to: that is tried until it is done.
	Background bool
	// Logger gets what nobody else learns of; nil discards it.
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

// Listen takes connections for a key. It blocks until peers can find the key and every
// relay has taken it or could not be reached, or ctx ends, unless it is to do that in the
// background. It fails if there are relays and none of them takes the key.
func Listen(ctx context.Context, o ListenOptions) (transport.Listener, error) {
	allow := o.Allow
	if allow == nil {
		allow = func(identity.PublicKey) bool { return false }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	inner, err := o.Node.Listen(hyperdht.ListenOptions{Pair: o.Pair, Allow: allow})
	if err != nil {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "nobody can be let in through the DHT", Err: err}
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
			Pair: o.Pair, Allow: allow, Stream: secretstream.Options{MaxMessage: o.Codec.MaxMessage()}, Logger: o.Logger,
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

// waitRelays waits until each relay forwards to this listener or has failed to. One that
// does is enough: the others are tried again.
func (l *listener) waitRelays(ctx context.Context) error {
	errs := make([]error, len(l.relays))
	for i, r := range l.relays {
		errs[i] = r.WaitRegistered(ctx)
		if ctx.Err() != nil {
			return &transport.Error{Code: transport.CodeUnreachable, Message: "the relays were not reached in time", Err: ctx.Err()}
		}
	}
	failed := 0
	for _, err := range errs {
		if err == nil {
			continue
		}
		failed++
		l.log.Warn("a relay does not take this end", "error", err)
	}
	if failed < len(errs) {
		return nil
	}
	return &transport.Error{Code: transport.CodeUnreachable, Message: "no relay takes this end", Err: errors.Join(errs...)}
}

// source is where connections come from.
type source interface {
	Accept(context.Context) (*secretstream.Conn, error)
}

// run takes connections until the listener closes. What a peer says first shows
// that it is there, and no recording.
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
		l.Put(c)
		return
	}
	if l.Context().Err() == nil {
		l.log.Info("a peer was not accepted", "peer", s.RemoteKey(), "error", err)
	}
}

// Endpoint implements [transport.Listener]: the address is the key.
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
