package chat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// Limits of a read.
const (
	DefaultLimit = 50      // messages
	MaxLimit     = 1000    // messages
	MaxRead      = 8 << 20 // bytes
)

const (
	readTimeout  = 10 * time.Second
	readBatch    = 100 // messages in one fetch
	maxWidenings = 64  // doublings that cover every sequence number
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
// has. reader is the agent's handle; the messages are acknowledged to its durable consumer, in the background.
func (s *Space) Read(ctx context.Context, reader, channel string, limit int) (History, error) {
	c, err := s.channel(channel)
	if err != nil {
		return History{}, err
	}
	if limit < 1 || limit > MaxLimit {
		return History{}, invalid(fmt.Sprintf("Use a limit from 1 to %d.", MaxLimit), "The limit %d is not allowed.", limit)
	}
	b, err := s.usable(ctx)
	if err != nil {
		return History{}, err
	}
	h, err := s.readFor(ctx, b, reader, c, limit)
	if err == nil || !outage(err) || !lost(b.Connection()) {
		return h, err
	}
	if b, err = s.usable(ctx); err != nil {
		return History{}, err
	}
	return s.readFor(ctx, b, reader, c, limit) // the connection was lost meanwhile
}

// readFor makes one attempt to read the last messages of a channel.
func (s *Space) readFor(ctx context.Context, b *bus.Bus, reader string, c Channel, limit int) (History, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	h, ok, err := s.readDirect(ctx, b, c, limit)
	if ok {
		s.readers.acknowledge(readerKey{reader, c.Name}, h.Last)
	}
	if ok || err != nil {
		return h, err
	}
	ctx, release := s.untilDenied(ctx, b, c)
	defer release()
	if err := s.ensure(ctx, b, c); err != nil {
		return History{}, s.unanswered(ctx, b, c, err)
	}
	h, err = s.read(ctx, b, reader, c, limit)
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

// read reads through the reader's consumer.
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
			size += s.receive(&h, m, c)
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

// receive acknowledges m and adds it to h, or counts it as skipped. It returns the size of what it added.
func (s *Space) receive(h *History, m jetstream.Msg, c Channel) int {
	if err := m.Ack(); err != nil {
		s.log.Debug("a message was not acknowledged", "channel", c.Name, "error", err)
	}
	meta, err := m.Metadata()
	if err != nil {
		s.log.Error("a message is skipped: it has no metadata", "channel", c.Name, "error", err)
		h.Skipped++
		return 0
	}
	return s.add(h, c, m.Headers(), m.Data(), meta.Sequence.Stream)
}

// add adds a stored message to h, or counts it as skipped. It returns the size of what it added.
func (s *Space) add(h *History, c Channel, header nats.Header, data []byte, seq uint64) int {
	message, ok := s.message(c, header, data)
	if !ok {
		h.Skipped++
		return 0
	}
	message.Sequence = seq
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
