package bus

import (
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// AckWatch receives the server's acknowledgements of what other processes of the namespace store with [Bus.PublishOnce], before
// they are synced. Whoever is subscribed to the messages, which name the subject of their acknowledgement as the reply,
// learns their sequences by it, without a request.
type AckWatch struct {
	sub    *nats.Subscription // nil if none are received
	prefix string             // of their subjects
}

// WatchAcks calls f with the subject of each acknowledgement and the acknowledgement, nil for an error. It is called by one
// goroutine until Stop. Only a process that has joined a hub receives any.
func (b *Bus) WatchAcks(f func(reply string, ack *jetstream.PubAck)) (AckWatch, error) {
	if b.publisher == nil {
		return AckWatch{}, nil
	}
	w := AckWatch{prefix: ackedSubject}
	if b.hubSyncs() {
		w.prefix = ackSubject
	}
	own := w.prefix + b.publisher.name + "."
	sub, err := b.conn.Subscribe(w.prefix+"*.*", func(m *nats.Msg) {
		if strings.HasPrefix(m.Subject, own) {
			return
		}
		ack, _ := decodeAck(m)
		f(m.Subject, ack)
	})
	w.sub = sub
	return w, err
}

// Expects reports whether the acknowledgement of a message is received, by its reply.
func (w AckWatch) Expects(reply string) bool {
	return w.sub != nil && strings.HasPrefix(reply, w.prefix)
}

// Stop ends the calls, but not one that is under way.
func (w AckWatch) Stop() {
	if w.sub != nil {
		_ = w.sub.Unsubscribe() // fails only on a closed connection
	}
}
