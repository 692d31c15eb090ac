package hyperswarm

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/transport/hyperswarm/keys"
	"github.com/parleyhub/parley/transport/hyperswarm/relay"
	"github.com/parleyhub/parley/transport/hyperswarm/secretstream"
	"github.com/parleyhub/parley/transport/sealed"
)

// ListenOptions set a listener up.
type ListenOptions struct {
	// Node is the member of the DHT through which peers come.
	Node *hyperdht.Node
	// Pair is the identity; nil means the node's.
	Pair *keys.Pair
	// Allow decides who may connect, inside the handshake: a peer that may not gets
	// no answer at all. Nil lets nobody in. It must not block.
	Allow func(keys.PublicKey) bool
	// Codec writes and reads the frames.
	Codec transport.Codec
	// Relays are hubs, by their keys, through which peers may come that have no
	// direct path; see package relay.
	Relays []keys.PublicKey
	// Logger gets what nobody else learns of; nil discards it.
	Logger *slog.Logger
}

const backlog = 64

type listener struct {
	l      *hyperdht.Listener
	relays []*relay.Listener
	codec  transport.Codec
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	queue  chan *sealed.Conn
}

// Listen takes connections for a key. It blocks until peers can find the key, or
// ctx ends.
func Listen(ctx context.Context, o ListenOptions) (transport.Listener, error) {
	allow := o.Allow
	if allow == nil {
		allow = func(keys.PublicKey) bool { return false }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	inner, err := o.Node.Listen(hyperdht.ListenOptions{Pair: o.Pair, Access: allow})
	if err != nil {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "nobody can be let in through the DHT", Err: err}
	}
	if err := inner.WaitAnnounced(ctx); err != nil {
		_ = inner.Close() // it always succeeds
		return nil, &transport.Error{Code: transport.CodeUnreachable, Message: "the key cannot be announced", Err: err}
	}
	l := &listener{l: inner, codec: o.Codec, log: o.Logger, queue: make(chan *sealed.Conn, backlog)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.wg.Go(func() { l.run(inner) })
	for _, key := range o.Relays {
		r := relay.Listen(o.Node, key, relay.ListenOptions{
			Pair: o.Pair, Access: allow, Stream: secretstream.Options{MaxMessage: o.Codec.MaxMessage()}, Logger: o.Logger,
		})
		l.relays = append(l.relays, r)
		l.wg.Go(func() { l.run(r) })
	}
	return l, nil
}

// source is where connections come from.
type source interface {
	Accept(context.Context) (*secretstream.Conn, error)
}

// run takes connections until the listener closes. What a peer says first shows
// that it is there, and no recording.
func (l *listener) run(from source) {
	for {
		s, err := from.Accept(l.ctx)
		if err != nil {
			l.cancel()
			return
		}
		l.wg.Go(func() { l.greet(s) })
	}
}

func (l *listener) greet(s *secretstream.Conn) {
	c, err := sealed.Greet(l.ctx, s, &l.codec)
	if err != nil {
		if l.ctx.Err() == nil {
			l.log.Info("a peer was not accepted", "peer", s.RemoteKey(), "error", err)
		}
		return
	}
	select {
	case l.queue <- c:
	case <-l.ctx.Done():
		c.Abort()
	}
}

// Accept implements [transport.Listener].
func (l *listener) Accept(ctx context.Context) (transport.Conn, error) {
	if l.ctx.Err() != nil {
		return nil, transport.ErrClosed("the listener", nil)
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.ctx.Done():
		return nil, transport.ErrClosed("the listener", nil)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Endpoint implements [transport.Listener]: the address is the key.
func (l *listener) Endpoint() agent.Endpoint {
	return agent.Endpoint{Transport: agent.TransportHyperswarm, Address: l.l.Key().String()}
}

// Close implements [transport.Listener].
func (l *listener) Close() error {
	l.cancel()
	err := l.l.Close()
	for _, r := range l.relays {
		err = errors.Join(err, r.Close())
	}
	l.wg.Wait()
	for {
		select {
		case c := <-l.queue: // never accepted
			c.Abort()
		default:
			return err
		}
	}
}
