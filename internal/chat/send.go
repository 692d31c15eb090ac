package chat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

const (
	// publishTimeout bounds one attempt to store a message in a channel that is
	// ready. To make it ready has a time of its own: what one takes of a slow
	// server's, the other would lack again at each attempt.
	publishTimeout = requestTimeout
	// queuePatience is how long a send waits for those before it.
	queuePatience = 2 * time.Second
	// dedupeTrust is how old an attempt may be for the server to remember its
	// id surely; its window is two minutes.
	dedupeTrust = 90 * time.Second
	// storedOverhead is what a stored message takes besides its payload: the
	// subject, the headers and the store's own, in bytes and rounded up.
	storedOverhead = 256
	// clockSkew is how far the server's clock may be from ours.
	clockSkew = 5 * time.Minute
)

// Receipt says what became of a message.
type Receipt struct {
	Timestamp time.Time
	// Queued is set where the bus cannot be reached: the message is stored once
	// it can be, unless the process ends before. Sequence is 0 then.
	Queued   bool
	Sequence uint64
	// ID is the message's own, unlike that of every other.
	ID string
}

// Send stores a message in a channel. It returns when the message is durable,
// or queued (Receipt.Queued). Messages that one caller sends one after another
// keep their order, also across an outage; each is stored once. If ctx ends
// before, the message may be stored or not.
func (s *Space) Send(ctx context.Context, handle, channel, text string) (Receipt, error) {
	if err := CheckHandle(handle); err != nil {
		return Receipt{}, err
	}
	c, err := s.channel(channel)
	if err != nil {
		return Receipt{}, err
	}
	if err := checkText(text); err != nil {
		return Receipt{}, err
	}
	at := s.cfg.Now()
	data, err := encode(handle, text, at)
	if err != nil {
		return Receipt{}, &Error{Category: InternalError, Message: "The message could not be encoded.", Err: err}
	}
	if size := int64(len(data) + storedOverhead); size > c.MaxBytes {
		return Receipt{}, tooLarge(int(size), c.MaxBytes, fmt.Sprintf("the channel %q keeps", c.Name), "raise maxBytes of the channel", nil)
	}
	e := &entry{channel: c, id: s.nextID(), data: data, stored: make(chan struct{})}
	return s.send(ctx, e, at)
}

// nextID returns a message id that no other Space has. It is short, for the
// server keeps it with the message.
func (s *Space) nextID() string {
	return s.ids + "-" + strconv.FormatUint(s.sent.Add(1), 36)
}

func (s *Space) send(ctx context.Context, e *entry, at time.Time) (Receipt, error) {
	b, err := s.connected()
	if errors.Is(err, errClosed) {
		return Receipt{}, err
	}
	if queued, _ := s.outbox.counts(); err != nil || queued > 0 {
		return s.enqueue(ctx, e, at, b != nil), nil
	}
	err = s.publish(ctx, b, e)
	switch {
	case err == nil:
		return Receipt{Timestamp: at, Sequence: e.seq, ID: e.id}, nil
	case ctx.Err() != nil:
		return Receipt{}, &Error{Category: ConnectionError, Message: "The send was cancelled; the message may have been stored.",
			Remedy: "Read the channel to see.", Err: err}
	case !temporary(err):
		return Receipt{}, refusal(e, b, err)
	}
	s.log.Warn("a message is queued", "channel", e.channel.Name, "error", err)
	return s.enqueue(ctx, e, at, false), nil
}

// enqueue puts e behind what waits already. Where the bus is there, the queue
// is just being worked off: it waits a little for its turn.
func (s *Space) enqueue(ctx context.Context, e *entry, at time.Time, wait bool) Receipt {
	if dropped := s.outbox.push(e); dropped != nil {
		s.log.Warn("the queue is full: the oldest message is dropped", "channel", dropped.channel.Name, "limit", MaxQueued)
	}
	if wait {
		patience := time.NewTimer(queuePatience)
		defer patience.Stop()
		select {
		case <-e.stored:
			return Receipt{Timestamp: at, Sequence: e.seq, ID: e.id}
		case <-patience.C:
		case <-ctx.Done():
		}
	}
	return Receipt{Timestamp: at, Queued: true, ID: e.id}
}

// flush works the queue off until it is empty, the bus is gone or ctx ends. A
// message that can never be stored is dropped with an error in the log.
func (s *Space) flush(ctx context.Context) {
	for attempt := 1; ctx.Err() == nil; {
		e := s.outbox.head()
		if e == nil {
			return
		}
		s.mu.Lock()
		b := s.bus
		s.mu.Unlock()
		if !b.Conn().IsConnected() {
			return
		}
		err := s.publish(ctx, b, e)
		if err != nil && !lasting(err) {
			s.log.Warn("a queued message could not be stored yet", "channel", e.channel.Name, "attempt", attempt, "error", err)
			pause(ctx, bus.Backoff(attempt, MaxBackoff))
			attempt++
			continue
		}
		if err != nil {
			s.log.Error("a queued message is dropped: it can never be stored", "channel", e.channel.Name, "error", err)
		}
		s.outbox.remove(e)
		attempt = 1
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// publish stores e, if an earlier attempt has not done so unnoticed.
func (s *Space) publish(ctx context.Context, b *bus.Bus, e *entry) error {
	if err := s.ensure(ctx, b, e.channel); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	switch {
	case e.tried.IsZero():
		e.tried = s.cfg.Now()
	case apart(e.tried, s.cfg.Now()) > dedupeTrust:
		seq, err := s.find(ctx, b, e)
		if err != nil {
			return err
		}
		if seq > 0 {
			s.settle(e, seq)
			return nil
		}
	}
	ack, err := b.Publish(ctx, &nats.Msg{Subject: s.subject(e.channel.Name), Data: e.data},
		jetstream.WithMsgID(e.id), jetstream.WithExpectStream(s.streamName(e.channel.Name)))
	if err != nil {
		// Somebody may have deleted the stream: the next attempt looks again. No
		// answer is all that tells it, because we listen on the subject ourselves.
		s.setEnsured(e.channel.Name, false)
		return err
	}
	if s.log.Enabled(ctx, slog.LevelDebug) {
		s.log.Debug("message stored", "subject", s.subject(e.channel.Name), "sequence", ack.Sequence, "duplicate", ack.Duplicate)
	}
	s.settle(e, ack.Sequence)
	return nil
}

// apart is how far two times are apart, by whichever clock says more: the wall's
// jumps when it is set, the other one stands still while the machine sleeps.
func apart(then, now time.Time) time.Duration {
	return max(now.Sub(then), now.Round(0).Sub(then.Round(0)).Abs())
}

func (s *Space) settle(e *entry, seq uint64) {
	e.seq = seq
	close(e.stored)
	s.news.Send() // the connection may not echo it
}

// find looks for e among what was stored since its first attempt. An attempt
// can succeed without our learning of it, and after a long outage the server
// no longer remembers the ids by which it refuses duplicates.
func (s *Space) find(ctx context.Context, b *bus.Bus, e *entry) (seq uint64, err error) {
	since := e.tried.Add(-clockSkew)
	consumer, err := b.JetStream().OrderedConsumer(ctx, s.streamName(e.channel.Name), jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since, HeadersOnly: true,
	})
	if err != nil {
		return 0, err
	}
	for {
		batch, err := consumer.FetchNoWait(500)
		if err != nil {
			return 0, err
		}
		got := 0
		for m := range batch.Messages() {
			got++
			if meta, err := m.Metadata(); err == nil && m.Headers().Get(jetstream.MsgIDHeader) == e.id {
				seq = meta.Sequence.Stream
			}
		}
		if err := batch.Error(); err != nil {
			return 0, fmt.Errorf("look for a message that may be stored: %w", err)
		}
		if got == 0 || seq > 0 {
			return seq, nil
		}
	}
}

// refusal says why the server will never take e.
func refusal(e *entry, b *bus.Bus, err error) error {
	api, _ := errors.AsType[*jetstream.APIError](err)
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return tooLarge(len(e.data), b.Conn().MaxPayload(), "the server takes", "raise max_payload of the NATS server", err)
	case api != nil && api.ErrorCode == errMessageTooLarge:
		return &Error{Category: ValidationError, Message: fmt.Sprintf("The message is larger than the channel %q takes.", e.channel.Name),
			Remedy: "Write the long part to a file and send its path, or split the message.", Err: err}
	}
	return connectionError(err)
}

func tooLarge(size int, limit int64, whose, or string, err error) error {
	return &Error{Category: ValidationError,
		Message: fmt.Sprintf("The message takes %d bytes as it is stored; %s at most %d.", size, whose, limit),
		Remedy:  fmt.Sprintf("Write the long part to a file and send its path, split the message, or %s.", or), Err: err}
}

// lasting says whether a message that waits in the queue can never be stored. What
// is the server's trouble rather than the message's, as a full disk, may pass.
func lasting(err error) bool {
	if temporary(err) {
		return false
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	return !ok || api.Code < http.StatusInternalServerError // they are as those of HTTP
}

// temporary tells an outage from a refusal that stays.
func temporary(err error) bool {
	if errors.Is(err, nats.ErrMaxPayload) {
		return false
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Category == ConnectionError
	}
	if _, ok := errors.AsType[*jetstream.APIError](err); ok {
		return errors.Is(err, jetstream.ErrNoStreamResponse)
	}
	e, ok := errors.AsType[*bus.Error](err)
	return !ok || (e.Code != bus.CodeAuth && e.Code != bus.CodeConfig)
}
