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

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

const (
	// queueTimeout is how long a send waits for the queue to be sent.
	queueTimeout = 2 * time.Second
	// dedupeWindow is the age of an attempt up to which the server surely knows its message id; the server's own window
	// is two minutes.
	dedupeWindow = 90 * time.Second
	// storedOverhead bounds what a stored message takes in addition to its payload, in bytes: subject, headers, store.
	storedOverhead = 256
	// clockSkew bounds the difference of the server's clock.
	clockSkew = 5 * time.Minute
)

// Receipt is the result of a send.
type Receipt struct {
	Timestamp time.Time
	// Queued is true if the bus is unreachable: the message is stored once it can be reached, unless the process ends
	// first. Sequence is 0 then.
	Queued   bool
	Sequence uint64
	// ID is unique among all messages.
	ID string
}

// Send stores a message in a channel. It returns when the message is durable, or queued (Receipt.Queued). Consecutive
// messages of one caller keep their order across an outage, and each is stored once. If ctx ends first, the message may
// be stored or not.
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
		return Receipt{}, &Error{Code: InternalError, Message: "The message could not be encoded.", Err: err}
	}
	if size := int64(len(data) + storedOverhead); size > c.MaxBytes {
		return Receipt{}, tooLarge(int(size), c.MaxBytes, fmt.Sprintf("the channel %q keeps", c.Name), "raise maxBytes of the channel", nil)
	}
	id := s.ids + "-" + strconv.FormatUint(s.sent.Add(1), 36) // short: the server stores it with the message
	return s.send(ctx, &entry{channel: c, id: id, data: data, stored: make(chan struct{})}, at)
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
		return Receipt{}, &Error{Code: ConnectionError, Message: "The send was cancelled; the message may have been stored.",
			Remedy: "Read the channel to check.", Err: err}
	case !temporary(err):
		return Receipt{}, refusal(e, b, err)
	}
	s.log.Warn("a message is queued", "channel", e.channel.Name, "error", err)
	return s.enqueue(ctx, e, at, false), nil
}

// enqueue appends e to the queue. With wait, as when the queue is being sent, it waits up to queueTimeout until e is
// stored.
func (s *Space) enqueue(ctx context.Context, e *entry, at time.Time, wait bool) Receipt {
	if dropped := s.outbox.push(e); dropped != nil {
		s.log.Warn("the queue is full: the oldest message is dropped", "channel", dropped.channel.Name, "limit", MaxQueued)
	}
	if wait {
		waiting, cancel := context.WithTimeout(ctx, queueTimeout)
		defer cancel()
		select {
		case <-e.stored:
			return Receipt{Timestamp: at, Sequence: e.seq, ID: e.id}
		case <-waiting.Done():
		}
	}
	return Receipt{Timestamp: at, Queued: true, ID: e.id}
}

// flush sends the queue until it is empty, the connection is lost or ctx ends. A message that can never be stored is
// logged and dropped.
func (s *Space) flush(ctx context.Context) {
	retry := wait.Backoff{Most: MaxBackoff}
	for attempt := 1; ctx.Err() == nil; {
		e := s.outbox.head()
		if e == nil {
			return
		}
		b := s.current()
		if !b.Conn().IsConnected() {
			return
		}
		err := s.publish(ctx, b, e)
		if err != nil && !lasting(err) {
			s.log.Warn("a queued message could not be stored yet", "channel", e.channel.Name, "attempt", attempt, "error", err)
			retry.Pause(ctx)
			attempt++
			continue
		}
		if err != nil {
			s.log.Error("a queued message is dropped: it can never be stored", "channel", e.channel.Name, "error", err)
		}
		s.outbox.remove(e)
		attempt = 1
		retry.Reset()
	}
}

// publish stores e, unless an earlier attempt has stored it. Preparing the channel and publishing have separate
// timeouts, so that a slow server makes progress over several attempts.
func (s *Space) publish(ctx context.Context, b *bus.Bus, e *entry) error {
	if err := s.ensure(ctx, b, e.channel); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	switch {
	case e.tried.IsZero():
		e.tried = s.cfg.Now()
	case apart(e.tried, s.cfg.Now()) > dedupeWindow:
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
		// The stream may have been deleted: the next attempt checks. A missing answer is the only sign, because our own
		// subscription hides the error that there are no responders.
		s.setEnsured(e.channel.Name, false)
		return err
	}
	if s.log.Enabled(ctx, slog.LevelDebug) {
		s.log.Debug("message stored", "subject", s.subject(e.channel.Name), "sequence", ack.Sequence, "duplicate", ack.Duplicate)
	}
	s.settle(e, ack.Sequence)
	return nil
}

// apart returns the longer of the differences by the wall clock, which jumps when it is set, and by the monotonic clock,
// which stops while the machine sleeps.
func apart(then, now time.Time) time.Duration {
	return max(now.Sub(then), now.Round(0).Sub(then.Round(0)).Abs())
}

func (s *Space) settle(e *entry, seq uint64) {
	e.seq = seq
	close(e.stored)
	s.news.Send() // the subscription may be idle
}

// find searches the messages stored since e's first attempt for e, and returns its sequence or 0. The answer to a
// successful attempt can be lost, and after a long outage the server has forgotten the ids for deduplication.
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

// refusal converts the error of a server that will never accept e.
func refusal(e *entry, b *bus.Bus, err error) error {
	api, _ := errors.AsType[*jetstream.APIError](err)
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return tooLarge(len(e.data), b.Conn().MaxPayload(), "the server accepts", "raise max_payload of the NATS server", err)
	case api != nil && api.ErrorCode == errMessageTooLarge:
		return &Error{Code: ValidationError, Message: fmt.Sprintf("The message is larger than the channel %q accepts.", e.channel.Name), Remedy: splitRemedy, Err: err}
	}
	return connectionError(err)
}

func tooLarge(size int, limit int64, whose, or string, err error) error {
	return &Error{Code: ValidationError,
		Message: fmt.Sprintf("The message takes %d bytes as it is stored; %s at most %d.", size, whose, limit),
		Remedy:  fmt.Sprintf("Write the long part to a file and send its path, split the message, or %s.", or), Err: err}
}

// lasting reports whether a queued message can never be stored. Errors of the server, such as a full disk, may be
// resolved.
func lasting(err error) bool {
	if temporary(err) {
		return false
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	return !ok || api.Code < http.StatusInternalServerError // the codes are those of HTTP
}

// temporary reports whether an error is an outage rather than a permanent refusal.
func temporary(err error) bool {
	if err == nil || errors.Is(err, nats.ErrMaxPayload) {
		return false
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code == ConnectionError
	}
	if _, ok := errors.AsType[*jetstream.APIError](err); ok {
		return errors.Is(err, jetstream.ErrNoStreamResponse)
	}
	e, ok := errors.AsType[*bus.Error](err)
	return !ok || (e.Code != bus.CodeAuth && e.Code != bus.CodeConfig)
}
