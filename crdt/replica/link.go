package replica

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Link is a connection to another agent. A *[channel.Channel] is one. Several replicas can share a link.
type Link interface {
	Send(ctx context.Context, e *envelope.Envelope) error
	OnMessage(h channel.Handler) (remove func())
	LocalAgent() string
	RemoteAgent() string
}

// isNil reports whether there is no link, or no channel in it.
func isNil(l Link) bool {
	c, isChannel := l.(*channel.Channel)
	return l == nil || isChannel && c == nil
}

// Claimer is a link that can pass some envelopes to one handler alone, as a *[channel.Channel] does. A Link that wraps
// a channel to filter what it receives must implement it, too.
type Claimer interface {
	Claim(wants func(*envelope.Envelope) bool, h channel.Handler) (remove func())
}

// Claim has h called with each envelope of a link that wants selects and, if the link is a [Claimer], no other handler.
func Claim(l Link, wants func(*envelope.Envelope) bool, h channel.Handler) (remove func()) {
	if c, ok := l.(Claimer); ok {
		return c.Claim(wants, h)
	}
	return l.OnMessage(func(ctx context.Context, e *envelope.Envelope) {
		if wants(e) {
			h(ctx, e)
		}
	})
}

// link is a Link with a queue of messages to send.
type link struct {
	Link
	remove func()
	done   chan struct{}

	changed  wait.Signal
	mu       sync.Mutex
	queue    []outgoing
	bytes    int
	overflow bool

	// These belong to the replica's function that runs.
	asked    time.Time // when the state was last asked for
	again    bool      // ask once more
	notified time.Time // when the epoch was last announced
	unlike   int       // consecutive digests that differed
	failures []time.Time
	parts    [][]byte // of a state that is being received
	partSize int
}

// outgoing is a message, or a marker for flushed.
type outgoing struct {
	m    *Message
	sent chan struct{}
}

// Limits of a link's queue: beyond them the queue is dropped, and a digest makes the peer ask for the state.
const (
	maxQueue      = 1024
	maxQueueBytes = 16 << 20
)

// put queues a message; it never blocks.
func (l *link) put(m *Message) {
	l.mu.Lock()
	l.queue = append(l.queue, outgoing{m: m})
	l.bytes += len(m.Payload)
	if len(l.queue) > maxQueue || l.bytes > maxQueueBytes && len(l.queue) > maxParts {
		for _, o := range l.queue {
			if o.sent != nil {
				close(o.sent)
			}
		}
		l.queue, l.bytes, l.overflow = nil, 0, true
	}
	l.mu.Unlock()
	l.changed.Send()
}

// flushed returns a channel that is closed when everything queued now has been sent.
func (l *link) flushed() chan struct{} {
	sent := make(chan struct{})
	l.mu.Lock()
	l.queue = append(l.queue, outgoing{sent: sent})
	l.mu.Unlock()
	l.changed.Send()
	return sent
}

// take returns the next item of the queue, if any, and whether messages were dropped.
func (l *link) take() (o outgoing, ok, overflow bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	overflow, l.overflow = l.overflow, false
	if len(l.queue) == 0 {
		return outgoing{}, false, overflow
	}
	o = l.queue[0]
	l.queue[0] = outgoing{}
	l.queue = l.queue[1:]
	if o.m != nil {
		l.bytes -= len(o.m.Payload)
	}
	return o, true, overflow
}

// run sends queued messages until the link is detached or closed.
func (l *link) run(ctx context.Context, r *Replica) {
	defer close(l.done)
	for {
		changed := l.changed.Wait()
		o, ok, overflow := l.take()
		if overflow {
			r.post(ctx, func() { r.sendDigest(l) })
		}
		switch {
		case o.m != nil:
			if !l.transmit(ctx, r, o.m) {
				return
			}
		case ok:
			close(o.sent)
		default:
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

// transmit sends one message. It reports false if the link is closed.
func (l *link) transmit(ctx context.Context, r *Replica, m *Message) bool {
	e, err := m.envelope(l.LocalAgent(), l.RemoteAgent())
	if err == nil {
		err = l.Send(ctx, e)
	}
	if err == nil {
		return true
	}
	if ctx.Err() != nil || channel.CodeOf(err) == channel.CodeClosed {
		return false
	}
	r.log.Warn("a document's message was not sent", slog.String("to", l.RemoteAgent()), slog.Any("error", err))
	return true
}
