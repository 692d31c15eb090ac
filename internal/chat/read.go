package chat

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/bus"
)

// Limits of a read.
const (
	DefaultLimit = 50      // messages
	MaxLimit     = 1000    // messages
	MaxRead      = 8 << 20 // bytes
)

const (
	readTimeout   = 10 * time.Second
	readBatch     = 100           // messages in one fetch
	readerTimeout = 1 * time.Hour // after which the server deletes an unused consumer
	maxReaders    = 64            // consumers of this process
	maxWidenings  = 64            // doublings that cover every sequence number
)

// History is the newest messages of a channel.
type History struct {
	Messages []Message // oldest first
	// Skipped counts messages in an unreadable format, Omitted older messages beyond MaxRead bytes.
	Skipped, Omitted int
	// Last is the sequence of the newest message, 0 for an empty channel.
	Last uint64
}

// Read returns the last limit messages of a channel, oldest first; the time does not depend on how many the channel
// has. reader is the agent's handle; its durable consumer acknowledges the messages.
func (s *Space) Read(ctx context.Context, reader, channel string, limit int) (History, error) {
	c, err := s.channel(channel)
	if err != nil {
		return History{}, err
	}
	if limit < 1 || limit > MaxLimit {
		return History{}, invalid(fmt.Sprintf("Use a limit from 1 to %d.", MaxLimit), "The limit %d is not allowed.", limit)
	}
	b, err := s.connected()
	if err != nil {
		return History{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	ctx, release := s.untilDenied(ctx, b, c)
	defer release()
	if err := s.ensure(ctx, b, c); err != nil {
		return History{}, s.unanswered(ctx, b, c, err)
	}
	h, err := s.read(ctx, b, reader, c, limit)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) {
		// Another program deleted them: create them again, once.
		s.setEnsured(c.Name, false)
		s.readers.forget(reader, c.Name)
		if err = s.ensure(ctx, b, c); err == nil {
			h, err = s.read(ctx, b, reader, c, limit)
		}
	}
	if err != nil {
		return History{}, s.unanswered(ctx, b, c, err)
	}
	return h, nil
}

func (s *Space) read(ctx context.Context, b *bus.Bus, reader string, c Channel, limit int) (History, error) {
	last, err := s.last(ctx, b, c)
	if err != nil || last == 0 {
		return History{}, err
	}
	consumer, release, err := s.readers.acquire(ctx, b, s.streamName(c.Name), reader, c.Name, s.instance)
	if err != nil {
		return History{}, err
	}
	defer release()
	pending, err := s.rewind(ctx, b, consumer, last, limit)
	if err != nil {
		return History{}, err
	}
	h := History{Last: last}
	size := 0
	for got := 0; got < pending; {
		batch, err := consumer.FetchNoWait(min(readBatch, pending-got))
		if err != nil {
			return History{}, err
		}
		before := got
		for m := range batch.Messages() {
			got++
			size += s.add(&h, m, c)
			size -= trim(&h, limit, size)
		}
		if err := batch.Error(); err != nil {
			return History{}, err
		}
		if got == before { // the rest has expired meanwhile
			break
		}
	}
	s.log.Debug("messages read", "stream", s.streamName(c.Name), "consumer", consumer.CachedInfo().Name,
		"messages", len(h.Messages), "skipped", h.Skipped, "omitted", h.Omitted)
	return h, nil
}

// last returns the sequence of the newest message of a channel, 0 if there is none.
func (s *Space) last(ctx context.Context, b *bus.Bus, c Channel) (uint64, error) {
	stream, err := b.JetStream().Stream(ctx, s.streamName(c.Name))
	if err != nil {
		return 0, err
	}
	state := stream.CachedInfo().State
	s.log.Debug("stream looked up", "stream", s.streamName(c.Name), "messages", state.Msgs, "last", state.LastSeq)
	if state.Msgs == 0 {
		return 0, nil
	}
	return state.LastSeq, nil
}

// rewind resets the consumer to before the last limit messages and returns how many are pending. Gaps of deleted
// messages make it widen the range, so that more than limit may be pending.
func (s *Space) rewind(ctx context.Context, b *bus.Bus, consumer jetstream.Consumer, last uint64, limit int) (int, error) {
	info := consumer.CachedInfo()
	span := uint64(limit)
	for range maxWidenings {
		start := max(last, span) - span + 1
		reset, err := s.reset(ctx, b, info, start)
		if err != nil {
			return 0, err
		}
		pending := int(reset.NumPending)
		s.log.Debug("consumer reset", "stream", info.Stream, "consumer", info.Name, "sequence", start, "pending", pending)
		if pending >= limit || start == 1 {
			return pending, nil
		}
		span *= 2
	}
	return 0, errors.New("the stream's sequence numbers are out of range")
}

// reset resets a consumer to a sequence. A cluster does not answer for a consumer that it has deleted, with its stream or
// after readerTimeout: only then reset asks whether it exists, and returns the error that it does not.
func (s *Space) reset(ctx context.Context, b *bus.Bus, info *jetstream.ConsumerInfo, start uint64) (*jetstream.ConsumerResetResponse, error) {
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	done, err := b.JetStream().ResetConsumerToSequence(request, info.Stream, info.Name, start)
	if err == nil || !isTimeout(err) || ctx.Err() != nil {
		return done, err
	}
	lookup, release := context.WithTimeout(ctx, requestTimeout)
	defer release()
	if _, missing := b.JetStream().Consumer(lookup, info.Stream, info.Name); missing != nil {
		return nil, missing
	}
	return nil, err
}

// add acknowledges m and adds it to h, or counts it as skipped. It returns the size of what it added.
func (s *Space) add(h *History, m jetstream.Msg, c Channel) int {
	if err := m.Ack(); err != nil {
		s.log.Debug("a message was not acknowledged", "channel", c.Name, "error", err)
	}
	message, ok := s.message(c, m.Headers(), m.Data())
	meta, err := m.Metadata()
	if err != nil {
		s.log.Error("a message is skipped: it has no metadata", "channel", c.Name, "error", err)
	}
	if !ok || err != nil {
		h.Skipped++
		return 0
	}
	message.Sequence = meta.Sequence.Stream
	h.Messages = append(h.Messages, message)
	return message.Size()
}

// message decodes a stored message, without its sequence; it logs one that cannot be decoded.
func (s *Space) message(c Channel, header nats.Header, data []byte) (m Message, ok bool) {
	m, err := decode(data)
	if err != nil {
		s.log.Error("a message is skipped: it is not in the channel's format", "channel", c.Name, "error", err)
		return Message{}, false
	}
	m.ID = header.Get(jetstream.MsgIDHeader)
	return m, true
}

// trim drops the oldest messages beyond limit and beyond MaxRead bytes, and returns the bytes it dropped.
func trim(h *History, limit, size int) (freed int) {
	for len(h.Messages) > 1 && (len(h.Messages) > limit || size-freed > MaxRead) {
		if len(h.Messages) <= limit {
			h.Omitted++
		}
		freed += h.Messages[0].Size()
		h.Messages[0] = Message{}
		h.Messages = h.Messages[1:]
	}
	return freed
}

// readers caches the durable consumers of this process: one for each agent and channel, created by the first read.
type readers struct {
	mu    sync.Mutex
	byKey map[readerKey]*readerEntry
}

type readerKey struct{ reader, channel string }

type readerEntry struct {
	turn     *semaphore.Weighted // of 1
	stream   string
	consumer jetstream.Consumer // nil until it is created
}

// acquire returns a consumer, locked until release is called.
func (r *readers) acquire(ctx context.Context, b *bus.Bus, stream, reader, channel, instance string) (jetstream.Consumer, func(), error) {
	entry := r.entry(readerKey{reader, channel}, stream)
	if err := entry.turn.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	release := func() { entry.turn.Release(1) }
	if entry.consumer != nil {
		return entry.consumer, release, nil
	}
	consumer, err := b.JetStream().CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable:           "read-" + reader + "-" + instance,
		AckPolicy:         jetstream.AckExplicitPolicy,
		DeliverPolicy:     jetstream.DeliverAllPolicy,
		InactiveThreshold: readerTimeout,
		MaxAckPending:     -1,
	})
	if err != nil {
		release()
		return nil, nil, err
	}
	entry.consumer = consumer
	return consumer, release, nil
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

// deleteAll deletes the consumers on the server until ctx ends; the server deletes the rest after readerTimeout.
func (r *readers) deleteAll(ctx context.Context, b *bus.Bus) {
	r.mu.Lock()
	entries := r.byKey
	r.byKey = nil
	r.mu.Unlock()
	for _, e := range entries {
		if e.turn.Acquire(ctx, 1) != nil {
			return
		}
		if e.consumer != nil && b.Connection().State == bus.StateConnected {
			// The server deletes the consumer after readerTimeout if this fails.
			_ = b.JetStream().DeleteConsumer(ctx, e.stream, e.consumer.CachedInfo().Name)
		}
	}
}
