package chat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

const (
	// queueTimeout is how long a send waits for its channel's queue to be sent.
	queueTimeout = 2 * time.Second
	// maxStreamBackoff is the longest pause between two attempts to store a channel's queue while the bus is connected.
	maxStreamBackoff = 5 * time.Second
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
	// Queued is true in an outage, which Problem describes: the message is stored once it is over, by the next process if this
	// one ends first (see Config.KeepDir). Sequence is 0 then.
	Queued   bool
	Problem  *Error
	Sequence uint64
	// ID is unique among all messages.
	ID string
}

// Sender sends the messages of one agent, and recognizes them. It is safe for concurrent use.
type Sender struct {
	space *Space
	ids   string // prefix of the messages' ids
	sent  atomic.Uint64
}

// NewSender returns a Sender.
func (s *Space) NewSender() *Sender {
	return &Sender{space: s, ids: s.ids + "-" + strconv.FormatUint(s.senders.Add(1), 36) + "-"}
}

// Sent reports whether the Sender sent a message.
func (x *Sender) Sent(m Message) bool { return strings.HasPrefix(m.ID, x.ids) }

// Send is Send of a Sender that all callers share.
func (s *Space) Send(ctx context.Context, handle, channel, text string) (Receipt, error) {
	return s.sender.Send(ctx, handle, channel, text)
}

// Send stores a message in a channel. It returns when the message is durable, or in an outage when it is queued and kept
// (Receipt.Queued). Consecutive messages of one caller keep their order across an outage, and each is stored once. If ctx
// ends first, the message may be stored or not.
func (x *Sender) Send(ctx context.Context, handle, channel, text string) (Receipt, error) {
	s := x.space
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
	if limit := s.payload.Load(); limit > 0 && int64(len(data)+payloadOverhead) > limit {
		return Receipt{}, s.tooLargeForServer(len(data), nil)
	}
	id := x.ids + strconv.FormatUint(x.sent.Add(1), 36) // short: the server stores it with the message
	return s.send(ctx, &entry{channel: c, id: id, data: data, sent: at, stored: make(chan struct{}), journal: s.own})
}

func (s *Space) send(ctx context.Context, e *entry) (Receipt, error) {
	b, err := s.connected()
	if err != nil && !outage(err) {
		return Receipt{}, err
	}
	if err != nil {
		return s.enqueue(ctx, e, err), nil
	}
	if queued, problem := s.outbox.waiting(e.channel.Name); queued > 0 {
		if problem != nil && !outage(problem) {
			return Receipt{}, s.refusal(e, b, problem)
		}
		return s.enqueue(ctx, e, problem), nil
	}
	looked := s.isEnsured(e.channel.Name)
	if err = s.publish(ctx, b, e); outage(err) && looked && ctx.Err() == nil && b.Connection().State == bus.StateConnected {
		err = s.publish(ctx, b, e) // the stream may have been deleted; this creates it again
	}
	switch {
	case err == nil:
		return Receipt{Timestamp: e.sent, Sequence: e.seq, ID: e.id}, nil
	case ctx.Err() != nil:
		return Receipt{}, &Error{Code: ConnectionError, Message: "The send was cancelled; the message may have been stored.",
			Remedy: "Read the channel to check.", Err: err}
	case !outage(err):
		return Receipt{}, s.refusal(e, b, err)
	}
	s.log.Warn("a message is queued", "channel", e.channel.Name, "error", err)
	s.outbox.failed(e.channel.Name, err)
	return s.enqueue(ctx, e, err), nil
}

// enqueue appends e to its channel's queue, and keeps it. Without a problem, as when the queue is being sent, it waits up to
// queueTimeout until e is stored.
func (s *Space) enqueue(ctx context.Context, e *entry, problem error) Receipt {
	for _, dropped := range s.outbox.push(e) {
		s.log.Warn("the queue is full: the oldest message is dropped", "channel", dropped.channel.Name, "limit", MaxQueued)
	}
	if problem == nil {
		waiting, cancel := context.WithTimeout(ctx, queueTimeout)
		defer cancel()
		select {
		case <-e.stored:
			return Receipt{Timestamp: e.sent, Sequence: e.seq, ID: e.id}
		case <-waiting.Done():
			problem = &Error{Code: ConnectionError, Message: "Earlier messages of the channel are still being stored."}
		}
	}
	shown := queuedProblem(problem)
	if err := s.keep(e); err != nil {
		s.log.Error("a queued message is in memory only", "channel", e.channel.Name, "error", err)
		shown.Message += " The message is in memory only: " + local.Reason(err) + ". It is lost if this process ends before the outage."
	}
	return Receipt{Timestamp: e.sent, Queued: true, Problem: shown, ID: e.id}
}

// queuedProblem is connectionError with what ends the outage in the message: the sender does nothing else.
func queuedProblem(err error) *Error {
	e := *connectionError(err)
	if cause, ok := errors.AsType[*bus.Error](e.Err); ok && e.Remedy == text.Sentence(cause.Remedy) {
		e.Message += " " + e.Remedy
	}
	return &e
}

// flush sends each channel's queue in a goroutine of its own, unless one does already.
func (s *Space) flush(ctx context.Context, b *bus.Bus) {
	for _, channel := range s.outbox.begin() {
		s.done.Go(func() {
			defer s.outbox.end(channel)
			s.flushChannel(ctx, b, channel)
		})
	}
}

// flushChannel sends a channel's queue until it is empty, the connection is lost or ctx ends. A message that can never be
// stored is logged and dropped.
func (s *Space) flushChannel(ctx context.Context, b *bus.Bus, channel string) {
	retry := wait.Backoff{Most: maxStreamBackoff}
	for attempt := 1; ctx.Err() == nil && b.Connection().State == bus.StateConnected; {
		e := s.outbox.head(channel)
		if e == nil {
			return
		}
		err := s.publish(ctx, b, e)
		if err != nil && !lasting(err) {
			if ctx.Err() != nil {
				return
			}
			s.log.Warn("a queued message could not be stored yet", "channel", channel, "attempt", attempt, "error", err)
			s.outbox.failed(channel, err)
			retry.Pause(ctx)
			attempt++
			continue
		}
		if err != nil {
			s.log.Error("a queued message is dropped: it can never be stored", "channel", channel, "error", err)
		}
		s.outbox.remove(e)
		s.settleKept()
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
	ctx, cancel := s.request(ctx, b, e.channel)
	defer cancel()
	wasSet := s.clockSet(b, e)
	switch {
	case e.tried.IsZero():
		e.tried = s.cfg.Now()
	case wasSet || apart(e.tried, s.cfg.Now()) > dedupeWindow:
		since := e.tried.Add(-clockSkew)
		if wasSet { // the times of the messages are in no order
			since = time.Time{}
		}
		seq, err := s.find(ctx, b, e, since)
		if err != nil {
			return s.unanswered(ctx, b, e.channel, err)
		}
		if seq > 0 {
			if err := b.Commit(ctx); err != nil { // that attempt may have failed because the disk has
				return err
			}
			s.settle(e, seq)
			return nil
		}
	}
	ack, err := b.PublishOnce(ctx, &nats.Msg{Subject: s.subject(e.channel.Name), Data: e.data}, e.id, s.streamName(e.channel.Name))
	if err != nil {
		// The stream may have been deleted: the next attempt checks. A missing answer is the only sign, because our own
		// subscription hides the error that there are no responders.
		s.setEnsured(e.channel.Name, false)
		if outage(err) {
			return s.unanswered(ctx, b, e.channel, err)
		}
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

// clockSet reports whether this computer's clock may have been set since e's first attempt: the server, which forgets ids by its clock, may know e no more.
func (s *Space) clockSet(b *bus.Bus, e *entry) bool {
	at := s.watch.Changed()
	if e.former { // by which clock it was tried is not known
		return !at.IsZero() || !b.ClockSet().IsZero()
	}
	return at.After(e.tried)
}

func (s *Space) settle(e *entry, seq uint64) {
	e.seq = seq
	s.numberOwn(e)
	close(e.stored)
	s.news.Send() // the subscription may be idle
}

// find searches the messages stored since a time for e, all of them for the zero time, and returns its sequence or 0. The answer to a
// successful attempt can be lost, and after a long outage the server has forgotten the ids for deduplication.
func (s *Space) find(ctx context.Context, b *bus.Bus, e *entry, since time.Time) (seq uint64, err error) {
	cfg := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy, HeadersOnly: true}
	if !since.IsZero() {
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	}
	consumer, err := b.JetStream().OrderedConsumer(ctx, s.streamName(e.channel.Name), cfg)
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

// payloadOverhead is the room for the headers in a message that the server accepts.
const payloadOverhead = 128

// refusal converts the error of a server that does not accept e.
func (s *Space) refusal(e *entry, b *bus.Bus, err error) error {
	api, _ := errors.AsType[*jetstream.APIError](err)
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return s.tooLargeForServer(len(e.data), err)
	case api != nil && api.ErrorCode == errMessageTooLarge:
		return &Error{Code: ValidationError, Message: fmt.Sprintf("The message is larger than the channel %q accepts.", e.channel.Name), Remedy: splitRemedy, Err: err}
	}
	return s.requestError(b, e.channel, err)
}

// tooLargeForServer returns the error for a message beyond max_payload, which is 1 MB by default.
func (s *Space) tooLargeForServer(size int, err error) error {
	return tooLarge(size+payloadOverhead, s.payload.Load(), "the NATS server accepts", "raise max_payload of the NATS server", err)
}

func tooLarge(size int, limit int64, whose, or string, err error) error {
	return &Error{Code: ValidationError,
		Message: fmt.Sprintf("The message takes %d bytes as it is stored; %s at most %d.", size, whose, limit),
		Remedy:  fmt.Sprintf("Write the long part to a file and send its path, split the message, or %s.", or), Err: err}
}

// lasting reports whether a queued message can never be stored: it is too large. All else, such as a full disk, missing
// permissions or a stream of another program, somebody may resolve.
func lasting(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrMaxPayload) || ok && api.ErrorCode == errMessageTooLarge
}

// outage reports whether an error is an outage of the bus or of a stream, see bus.IsOutage. Messages are queued for no
// other reason.
func outage(err error) bool {
	if err == nil || errors.Is(err, nats.ErrMaxPayload) {
		return false
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code == ConnectionError && e.Err != nil && outage(e.Err)
	}
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) {
		return true
	}
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return slices.Contains(streamOutages, api.ErrorCode)
	}
	return bus.IsOutage(err)
}
