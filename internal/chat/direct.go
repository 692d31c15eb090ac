package chat

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

const (
	recentMessages = 100     // new ones that one request reads beside those that are asked for
	recentBytes    = 1 << 20 // of one request that may be in vain
	indirectFor    = time.Minute
)

// ends is where the channels ended at their last reads, so that the next needs no request for that.
type ends struct {
	mu sync.Mutex
	at map[string]uint64
	// indirect has when a channel could not be read directly, which is not tried again for indirectFor: streams of other
	// programs may not allow it, and users may not be permitted to.
	indirect map[string]time.Time
}

func (e *ends) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.at)
	clear(e.indirect)
}

// of returns where a channel ended, 0 if that is not known, and whether it can be read directly.
func (e *ends) of(channel string) (seq uint64, direct bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	since, indirect := e.indirect[channel]
	return e.at[channel], !indirect || time.Since(since) > indirectFor
}

// set records where a channel ends, after it was read directly.
func (e *ends) set(channel string, seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at == nil {
		e.at = map[string]uint64{}
	}
	e.at[channel] = seq
	delete(e.indirect, channel)
}

// fail records that a channel could not be read directly.
func (e *ends) fail(channel string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.indirect == nil {
		e.indirect = map[string]time.Time{}
	}
	delete(e.at, channel)
	e.indirect[channel] = time.Now()
}

// readDirect is Read without a consumer: the server sends all messages for one request. ok is false if they have to be
// read otherwise: when the stream is missing, does not allow it, or its server does not know it, or the user may not.
func (s *Space) readDirect(ctx context.Context, b *bus.Bus, c Channel, limit int) (h History, ok bool, err error) {
	end, direct := s.ends.of(c.Name)
	if !direct || !s.isEnsured(c.Name) {
		return History{}, false, nil
	}
	ctx, release := s.untilDenied(ctx, b, c)
	defer release()
	if end > 0 && !s.clustered.Load() { // in a cluster the copy that answers may lack the newest
		h, ok = s.readRecent(ctx, b, c, end, limit)
	}
	if !ok {
		h, err = s.readLast(ctx, b, c, limit)
	}
	if err != nil {
		s.ends.fail(c.Name)
		s.log.Debug("a channel is not read directly", "stream", s.streamName(c.Name), "error", err)
		if b.DeniedBy(ctx) == nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)) {
			return History{}, false, s.unanswered(ctx, b, c, err)
		}
		return History{}, false, nil
	}
	s.ends.set(c.Name, h.Last)
	s.log.Debug("messages read", "stream", s.streamName(c.Name), "messages", len(h.Messages), "skipped", h.Skipped, "omitted", h.Omitted)
	return h, true, nil
}

// readRecent reads the last messages of a channel that had ended at a sequence and has few later ones.
func (s *Space) readRecent(ctx context.Context, b *bus.Bus, c Channel, end uint64, limit int) (h History, ok bool) {
	start := max(end, uint64(limit)) - uint64(limit) + 1
	stored, more, err := b.Messages(ctx, s.streamName(c.Name), start, limit+recentMessages, recentBytes)
	if err != nil || more || len(stored) == 0 || len(stored) < limit && start > 1 {
		return History{}, false
	}
	h.Last = stored[len(stored)-1].Sequence
	if h.Last < end { // another stream of the name
		return History{}, false
	}
	h.Messages = make([]Message, 0, min(limit, len(stored)))
	size := 0
	for _, m := range stored[max(len(stored), limit)-limit:] {
		size += s.add(&h, c, m.Header, m.Data, m.Sequence)
		size -= trim(&h, limit, size)
	}
	return h, true
}

// Errors of a direct read, after which the read goes through a consumer.
var (
	errIndirect = errors.New("the stream does not allow direct access to several messages")
	errShort    = errors.New("the copy of the stream that answered lacks the newest messages")
)

// readLast reads the last messages of a channel, after it has asked where that ends. Gaps of deleted messages make it
// widen the range.
func (s *Space) readLast(ctx context.Context, b *bus.Bus, c Channel, limit int) (History, error) {
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	stream, err := b.JetStream().Stream(request, s.streamName(c.Name))
	cancel()
	if err != nil {
		return History{}, err
	}
	info := stream.CachedInfo()
	state := info.State
	if !info.Config.AllowDirect {
		return History{}, errIndirect
	}
	if state.Msgs == 0 {
		return History{}, nil
	}
	for span := uint64(limit); ; span *= 2 {
		start := max(state.FirstSeq, max(state.LastSeq, span)-span+1)
		h, got, err := s.readFrom(ctx, b, c, start, state.LastSeq, limit)
		if err != nil {
			return History{}, err
		}
		if got >= limit || start <= state.FirstSeq {
			return h, nil
		}
	}
}

// readFrom reads the messages from start to last, of which it keeps limit, and returns how many there were.
func (s *Space) readFrom(ctx context.Context, b *bus.Bus, c Channel, start, last uint64, limit int) (h History, got int, err error) {
	h.Messages = make([]Message, 0, limit)
	size := 0
	for more := true; more && start <= last; {
		var stored []bus.StoredMessage
		stored, more, err = b.Messages(ctx, s.streamName(c.Name), start, MaxLimit, MaxRead)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break // the rest has expired meanwhile, or is missing in this copy
		}
		if err != nil {
			return History{}, got, err
		}
		for _, m := range stored {
			got++
			start, h.Last = m.Sequence+1, m.Sequence
			size += s.add(&h, c, m.Header, m.Data, m.Sequence)
			size -= trim(&h, limit, size)
		}
		if more && len(stored) <= 1 && start <= last {
			return History{}, got, errIndirect // of a server before 2.11, or of huge messages
		}
	}
	if h.Last < last && s.clustered.Load() {
		return History{}, got, errShort
	}
	h.Last = max(h.Last, last)
	return h, got, nil
}
