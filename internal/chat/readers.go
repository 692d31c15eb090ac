package chat

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/bus"
)

const (
	readerTimeout = 1 * time.Hour // after which the server deletes an unused consumer
	readerPrefix  = "read-"       // of a consumer's name, before the reader's handle and the process
	maxReaders    = 64            // consumers of this process
)

// readers caches the durable consumers of this process: one for each agent and channel, created for the first read.
type readers struct {
	noted chan struct{} // receives after acknowledge

	mu    sync.Mutex
	byKey map[readerKey]*readerEntry
	// unacknowledged has the newest message read by each reader whose consumer has not been told yet.
	unacknowledged map[readerKey]uint64
	busy           bool // acknowledgeAll runs
}

type readerKey struct{ reader, channel string }

type readerEntry struct {
	turn     *semaphore.Weighted // of 1; protects the following
	stream   string
	consumer jetstream.Consumer // nil until it is created
	position uint64             // up to which all is acknowledged; 0 if that is not known
	closed   bool
}

// acquire returns a consumer, locked until release is called, for a read that moves it.
func (r *readers) acquire(ctx context.Context, b *bus.Bus, stream, reader, channel, instance string) (jetstream.Consumer, func(), error) {
	entry := r.entry(readerKey{reader, channel}, stream)
	if err := entry.turn.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	entry.position = 0
	if err := entry.create(ctx, b, reader, instance); err != nil {
		entry.turn.Release(1)
		return nil, nil, err
	}
	return entry.consumer, func() { entry.turn.Release(1) }, nil
}

// create creates the consumer if there is none. The caller has the turn.
func (e *readerEntry) create(ctx context.Context, b *bus.Bus, reader, instance string) error {
	if e.closed {
		return errClosed
	}
	if e.consumer != nil {
		return nil
	}
	consumer, err := b.JetStream().CreateOrUpdateConsumer(ctx, e.stream, jetstream.ConsumerConfig{
		Durable:           readerPrefix + reader + "-" + instance,
		AckPolicy:         jetstream.AckExplicitPolicy,
		DeliverPolicy:     jetstream.DeliverAllPolicy,
		InactiveThreshold: readerTimeout,
		MaxAckPending:     -1,
	})
	if err == nil {
		e.consumer = consumer
	}
	return err
}

func (r *readers) entry(key readerKey, stream string) *readerEntry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.byKey[key]; ok {
		return e
	}
	if r.byKey == nil {
		r.byKey = map[readerKey]*readerEntry{}
	}
	if len(r.byKey) >= maxReaders {
		// An agent keeps changing its handle: forget any consumer; the server deletes it after readerTimeout.
		for old := range r.byKey {
			delete(r.byKey, old)
			break
		}
	}
	e := &readerEntry{turn: semaphore.NewWeighted(1), stream: stream}
	r.byKey[key] = e
	return e
}

func (r *readers) forget(reader, channel string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byKey, readerKey{reader, channel})
}

// acknowledge notes that a reader has read all messages of a channel up to seq. Of more than maxReaders readers at once
// some are not noted before their next read.
func (r *readers) acknowledge(key readerKey, seq uint64) {
	if seq == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unacknowledged == nil {
		r.unacknowledged = map[readerKey]uint64{}
	}
	if _, ok := r.unacknowledged[key]; !ok && len(r.unacknowledged) >= maxReaders {
		return
	}
	r.unacknowledged[key] = seq
	select {
	case r.noted <- struct{}{}:
	default:
	}
}

// begin reports whether the caller shall acknowledge what is noted, because nobody else does.
func (r *readers) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy || len(r.unacknowledged) == 0 {
		return false
	}
	r.busy = true
	return true
}

// next returns what is noted and forgets it; after that nothing is, begin is for others again.
func (r *readers) next() map[readerKey]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	noted := maps.Clone(r.unacknowledged)
	clear(r.unacknowledged)
	r.busy = len(noted) > 0
	return noted
}

// acknowledgeAll tells the readers' consumers what was read, until nothing is noted. A read does not fail if its
// acknowledgement does, which only the log says.
func (s *Space) acknowledgeAll(ctx context.Context, b *bus.Bus) {
	for noted := s.readers.next(); len(noted) > 0; noted = s.readers.next() {
		for key, seq := range noted {
			err := s.acknowledge(ctx, b, key, seq)
			if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) {
				// It was unused for too long, or another program deleted it.
				s.readers.forget(key.reader, key.channel)
				err = s.acknowledge(ctx, b, key, seq)
			}
			switch {
			case err == nil:
				s.log.Debug("messages acknowledged", "channel", key.channel, "reader", key.reader, "sequence", seq)
			case ctx.Err() == nil:
				s.log.Debug("messages were not acknowledged", "channel", key.channel, "reader", key.reader, "error", err)
			}
		}
	}
}

// acknowledge acknowledges a channel's messages up to seq to the consumer of a reader, by one request for all.
func (s *Space) acknowledge(ctx context.Context, b *bus.Bus, key readerKey, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	ctx, release := s.untilDenied(ctx, b, s.byName[key.channel])
	defer release()
	entry := s.readers.entry(key, s.streamName(key.channel))
	if err := entry.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer entry.turn.Release(1)
	if entry.position == seq {
		return nil
	}
	if err := entry.create(ctx, b, key.reader, s.instance); err != nil {
		return err
	}
	if _, err := s.reset(ctx, b, entry.consumer.CachedInfo(), seq+1); err != nil {
		return err
	}
	entry.position = seq
	return nil
}

// deleteAll deletes the consumers on the server until ctx ends; the server deletes the rest after readerTimeout.
func (r *readers) deleteAll(ctx context.Context, b *bus.Bus) {
	r.mu.Lock()
	entries := r.byKey
	r.byKey = nil
	clear(r.unacknowledged)
	r.mu.Unlock()
	for _, e := range entries {
		if e.turn.Acquire(ctx, 1) != nil {
			return
		}
		e.closed = true
		if e.consumer != nil && b.Connection().State == bus.StateConnected {
			// The server deletes the consumer after readerTimeout if this fails.
			_ = b.JetStream().DeleteConsumer(ctx, e.stream, e.consumer.CachedInfo().Name)
		}
		e.turn.Release(1)
	}
}
