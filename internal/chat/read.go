package chat

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// The limits of a read.
const (
	DefaultLimit = 50   // messages (REQ-TOOL-024)
	MaxLimit     = 1000 // messages
	MaxRead      = 8 << 20
)

const (
	readTimeout   = 10 * time.Second
	readBatch     = 100           // messages in one fetch
	readerTimeout = 1 * time.Hour // an unused consumer goes
	maxReaders    = 64            // consumers that this process keeps
	maxWidenings  = 64            // halvings of a sequence number
)

// History is the end of a channel.
type History struct {
	Messages []Message // oldest first
	// Skipped messages could not be read; Omitted ones are older than those
	// here and would have made more than MaxRead bytes.
	Skipped, Omitted int
	// Last is the sequence of the newest message, 0 of an empty channel.
	Last uint64
}

// Read returns the last limit messages of a channel, oldest first, in a time
// that does not depend on how many there are. reader is whose durable consumer
// acknowledges them (REQ-TOOL-033, REQ-STORAGE-005, REQ-STORAGE-006): the
// agent's handle.
func (s *Space) Read(ctx context.Context, reader, channel string, limit int) (History, error) {
	c, err := s.channel(channel)
	if err != nil {
		return History{}, err
	}
	if limit < 1 || limit > MaxLimit {
		return History{}, &Error{Category: ValidationError, Message: fmt.Sprintf("The limit %d is not allowed.", limit),
			Remedy: fmt.Sprintf("Use a limit from 1 to %d.", MaxLimit)}
	}
	b, err := s.connected()
	if err != nil {
		return History{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := s.ensure(ctx, b, c); err != nil {
		return History{}, unanswered(b, err)
	}
	h, err := s.read(ctx, b, reader, c, limit)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) {
		// Somebody deleted them behind our back: they are made anew, once.
		s.setEnsured(c.Name, false)
		s.readers.forget(reader, c.Name)
		if err = s.ensure(ctx, b, c); err == nil {
			h, err = s.read(ctx, b, reader, c, limit)
		}
	}
	if err != nil {
		return History{}, unanswered(b, err)
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
			size += s.take(&h, m, c)
			size -= trim(&h, limit, size)
		}
		if err := batch.Error(); err != nil {
			return History{}, err
		}
		if got == before { // what was there has expired meanwhile
			break
		}
	}
	s.log.Debug("messages read", "stream", s.streamName(c.Name), "consumer", consumer.CachedInfo().Name,
		"messages", len(h.Messages), "skipped", h.Skipped, "omitted", h.Omitted)
	return h, nil
}

// last is the sequence of the newest message of a channel, 0 if there is none.
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

// rewind puts the consumer before the last limit messages and returns how many
// there are from there. Where messages in between were deleted it goes back
// further, so there may be more than limit.
func (s *Space) rewind(ctx context.Context, b *bus.Bus, consumer jetstream.Consumer, last uint64, limit int) (int, error) {
	info := consumer.CachedInfo()
	span := uint64(limit)
	for range maxWidenings {
		start := uint64(1)
		if last > span {
			start = last - span + 1
		}
		reset, err := b.JetStream().ResetConsumerToSequence(ctx, info.Stream, info.Name, start)
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

// take acknowledges m and adds it, if it can be read (REQ-TOOL-029,
// REQ-TOOL-034). It returns the size of what it added.
func (s *Space) take(h *History, m jetstream.Msg, c Channel) int {
	if err := m.Ack(); err != nil {
		s.log.Debug("a message was not acknowledged", "channel", c.Name, "error", err)
	}
	message, err := decode(m.Data())
	meta, metaErr := m.Metadata()
	if err = errors.Join(err, metaErr); err != nil {
		s.log.Error("a message is skipped: it is not of the channel's format", "channel", c.Name, "error", err)
		h.Skipped++
		return 0
	}
	message.Sequence, message.ID = meta.Sequence.Stream, m.Headers().Get(jetstream.MsgIDHeader)
	h.Messages = append(h.Messages, message)
	return message.Size()
}

// trim drops the oldest messages beyond limit and beyond MaxRead bytes, and
// returns the bytes it dropped.
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

// readers are the durable consumers of this process, one for each agent and
// channel, made by the first read.
type readers struct {
	mu    sync.Mutex
	byKey map[readerKey]*readerEntry
}

type readerKey struct{ reader, channel string }

type readerEntry struct {
	turn     chan struct{} // holds the token of who may use the consumer
	stream   string
	consumer jetstream.Consumer // nil until it is made
}

// acquire returns the consumer for the caller alone until release is called.
func (r *readers) acquire(ctx context.Context, b *bus.Bus, stream, reader, channel, instance string) (jetstream.Consumer, func(), error) {
	entry := r.entry(readerKey{reader, channel}, stream)
	select {
	case <-entry.turn:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	release := func() { entry.turn <- struct{}{} }
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
		// An agent that keeps changing its handle: forget one; the server drops
		// its consumer after a while.
		for old := range r.byKey {
			delete(r.byKey, old)
			break
		}
	}
	e := &readerEntry{turn: make(chan struct{}, 1), stream: stream}
	e.turn <- struct{}{}
	r.byKey[key] = e
	return e
}

func (r *readers) forget(reader, channel string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byKey, readerKey{reader, channel})
}

// deleteAll removes the consumers from the server, as far as ctx allows; the
// rest go by themselves after a while.
func (r *readers) deleteAll(ctx context.Context, b *bus.Bus) {
	r.mu.Lock()
	entries := r.byKey
	r.byKey = nil
	r.mu.Unlock()
	for _, e := range entries {
		select {
		case <-e.turn:
		case <-ctx.Done():
			return
		}
		if e.consumer != nil && b.Conn().IsConnected() {
			// Without effect where the server is gone.
			_ = b.JetStream().DeleteConsumer(ctx, e.stream, e.consumer.CachedInfo().Name)
		}
	}
}
