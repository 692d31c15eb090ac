package events

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// Options are the options of [Open]. Zero fields mean the default in the comment.
type Options struct {
	Bus    *bus.Bus     // required; it outlives the Log
	Name   string       // the hub's name on the bus; required
	Logger *slog.Logger // nil discards

	// Retention: the oldest events are removed beyond any of these.
	MaxAge    time.Duration // 7 days
	MaxEvents int64         // 100,000
	MaxBytes  int64         // 64 MiB

	MaxReaders int // at a time: 64
	Queue      int // events that wait to be stored: 4096
	Window     int // the latest events, in memory for all readers: 1024

	// Gather is how long an event waits for others, unless there is a batch before: 20 ms. One write for all of them costs a fraction, and
	// a sync that a task or message waits for takes longer if there are events to sync with it.
	Gather time.Duration
}

const (
	batchSize    = 256              // events that are stored with one wait, and that a reader reads at once
	storeTimeout = 10 * time.Second // of a batch
	readTimeout  = 10 * time.Second // of a page of stored events
)

// Log stores the events of one hub. A nil *Log discards events. It is safe for concurrent use.
type Log struct {
	opts    Options
	log     *slog.Logger
	js      jetstream.JetStream
	stream  jetstream.Stream
	subject string
	epoch   uint32

	base context.Context // of reads and writes; ends when Close gives up
	stop context.CancelFunc
	done chan struct{} // closed when run has returned

	wake  chan struct{} // there are events or the log closes; see wait.Nudge
	hurry chan struct{} // they wait for no others
	// queued guards the queue. It is held for a few instructions only: parts of the hub publish under their locks.
	queued  sync.Mutex
	queue   []Event
	lost    int // events that did not fit in the queue, all of them after it
	closing bool
	counts  map[Kind]uint64 // since the start

	// mu guards the window: the latest events, without a gap in their sequences. Readers copy them.
	mu      sync.Mutex
	window  []Event
	first   uint64   // the sequence of window[0], or of the next event
	last    Position // of the latest stored event
	readers int
	ended   bool // no event follows
	added   wait.Signal
}

// Open opens the stream of events on the bus, and starts the goroutine that stores events, which Close ends.
func Open(ctx context.Context, o Options) (*Log, error) {
	defaults.Set(&o.Gather, 20*time.Millisecond)
	defaults.Set(&o.MaxAge, 7*24*time.Hour)
	defaults.Set(&o.MaxEvents, 100_000)
	defaults.Set(&o.MaxBytes, 64<<20)
	defaults.Set(&o.MaxReaders, 64)
	defaults.Set(&o.Queue, 4096)
	defaults.Set(&o.Window, 1024)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	subject := "parley.hub." + o.Name + ".event"
	stream, err := o.Bus.EnsureStream(ctx, jetstream.StreamConfig{
		Name:        "PARLEY_HUB_" + o.Name + "_EVENTS",
		Description: "what has changed in a hub",
		Subjects:    []string{subject},
		Storage:     jetstream.FileStorage,
		Discard:     jetstream.DiscardOld,
		MaxAge:      o.MaxAge,
		MaxMsgs:     o.MaxEvents,
		MaxBytes:    o.MaxBytes,
		AllowDirect: true,
		Metadata:    map[string]string{"parley": "hub", "hub": o.Name},
	})
	if err != nil {
		return nil, &Error{Code: CodeStorage, Message: "cannot open the hub's stream of events", Err: err}
	}
	l := &Log{
		opts: o, log: o.Logger, js: o.Bus.JetStream(), stream: stream, subject: subject, epoch: newEpoch(),
		done: make(chan struct{}), wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1), counts: map[Kind]uint64{},
	}
	l.base, l.stop = context.WithCancel(context.Background())
	if err := l.findLast(ctx); err != nil {
		l.stop()
		return nil, err
	}
	go l.run()
	return l, nil
}

// newEpoch returns a random epoch, never 0.
func newEpoch() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return max(1, binary.BigEndian.Uint32(b[:]))
}

// findLast sets the position of the latest stored event. Close stores a [Here] as the last one: after any other event the hub was killed.
func (l *Log) findLast(ctx context.Context) error {
	info, err := l.stream.Info(ctx)
	if err != nil {
		return &Error{Code: CodeStorage, Message: "cannot read the hub's stream of events", Err: err}
	}
	sequence := info.State.LastSeq
	l.first, l.last = sequence+1, Position{sequence, l.epoch}
	last, err := l.eventAt(ctx, sequence)
	if err != nil { // it has expired or is damaged
		return nil
	}
	l.last.Epoch = last.Position.Epoch
	if last.Kind != Here {
		l.queue = append(l.queue, gap(reasonKilled, 0))
		wait.Nudge(l.wake)
	}
	return nil
}

// Publish records an event. It sets the time unless the event has one, and never blocks. The event's data must not be
// changed afterwards.
func (l *Log) Publish(e Event) {
	if l == nil {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	l.queued.Lock()
	switch {
	case l.closing:
	case len(l.queue) >= l.opts.Queue:
		l.lost++
		l.counts[Gap]++
	default:
		l.queue = append(l.queue, e)
		l.counts[e.Kind]++
	}
	full := len(l.queue) >= batchSize
	l.queued.Unlock()
	wait.Nudge(l.wake)
	if full {
		wait.Nudge(l.hurry)
	}
}

// Counts returns how many events of each kind were published since the start; under [Gap], how many were lost.
func (l *Log) Counts() map[Kind]uint64 {
	if l == nil {
		return nil
	}
	l.queued.Lock()
	defer l.queued.Unlock()
	counts := make(map[Kind]uint64, len(l.counts))
	for k, n := range l.counts {
		counts[k] = n
	}
	return counts
}

// take returns the queue, and how many events were lost after it.
func (l *Log) take() (batch []Event, lost int, closing bool) {
	l.queued.Lock()
	defer l.queued.Unlock()
	batch, lost = l.queue, l.lost
	l.queue, l.lost = nil, 0
	return batch, lost, l.closing
}

// gap returns the event of a loss; n is 0 if nobody knows how many events were lost.
func gap(reason string, n int) Event {
	e := Event{Time: time.Now(), Kind: Gap, Data: map[string]any{"reason": reason}}
	if n > 0 {
		e.Data["count"] = n
	}
	return e
}

// The reasons of a gap.
const (
	reasonOverload = "overload" // events were published faster than they could be stored
	reasonStorage  = "storage"  // the bus could not store them
	reasonKilled   = "killed"   // the hub ended without storing its latest events
	reasonExpired  = "expired"  // the reader was away for longer than events are kept
	reasonBrief    = "brief"    // a brief reader did not get them
	reasonReset    = "reset"    // the reader's position is not of this stream, or the stream has lost its end
)

// run stores the queue whenever there is something in it, until Close.
func (l *Log) run() {
	defer close(l.done)
	retry := wait.Backoff{First: 100 * time.Millisecond, Most: 5 * time.Second}
	unstored := 0
	for {
		select {
		case <-l.wake:
			l.gather()
		case <-l.base.Done():
		}
		batch, lost, closing := l.take()
		if lost > 0 {
			batch = append(batch, gap(reasonOverload, lost))
		}
		for chunk := range slices.Chunk(batch, batchSize) {
			if unstored > 0 {
				chunk = append([]Event{gap(reasonStorage, unstored)}, chunk...)
			}
			failed, err := l.store(chunk)
			if err == nil {
				unstored = 0
				retry.Reset()
				continue
			}
			if unstored == 0 {
				l.log.Warn("events cannot be stored; they are lost", "error", err)
			}
			unstored += failed
			retry.Pause(l.base)
		}
		if closing || l.base.Err() != nil { // nothing is queued any more
			l.EndReaders()
			return
		}
	}
}

// gather waits for the events that follow the first one.
func (l *Log) gather() {
	others := time.NewTimer(l.opts.Gather)
	defer others.Stop()
	select {
	case <-others.C:
	case <-l.hurry:
	case <-l.base.Done():
	}
	select {
	case <-l.wake: // of an event that the next take returns
	default:
	}
}

// store stores events and shows them to readers. It returns how many were not stored, with the error.
//
// Only the last event asks for an acknowledgement: the bus stores what one connection publishes in order, so that its
// sequence tells whether all are stored.
func (l *Log) store(batch []Event) (failed int, err error) {
	ctx, cancel := context.WithTimeout(l.base, storeTimeout)
	defer cancel()
	conn := l.js.Conn()
	var ack acknowledgement
	for i := range batch {
		batch[i] = batch[i].bounded()
		body, err := encode(l.epoch, batch[i])
		if err != nil {
			return len(batch), err
		}
		if i < len(batch)-1 {
			err = conn.Publish(l.subject, body)
		} else {
			ack, err = acknowledged(conn.RequestWithContext(ctx, l.subject, body))
		}
		if err != nil {
			return len(batch), err
		}
	}
	if missing := l.show(batch, ack.Sequence); missing > 0 {
		return missing, fmt.Errorf("the bus has not stored %d of %d events", missing, len(batch))
	}
	return 0, nil
}

// acknowledgement is the bus's answer to a published message.
type acknowledgement struct {
	Sequence uint64              `json:"seq"`
	Error    *jetstream.APIError `json:"error"`
}

func acknowledged(m *nats.Msg, err error) (a acknowledgement, _ error) {
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return a, err
	}
	if a.Error != nil {
		return a, a.Error
	}
	return a, nil
}

// show adds a batch to the window and returns 0. If the sequence of its last event tells that some of it is not stored,
// show returns their number, and readers read from the bus what is.
func (l *Log) show(batch []Event, last uint64) (missing int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.added.Send()
	if last < l.last.Sequence+uint64(len(batch)) {
		missing = len(batch) - int(last-min(last, l.last.Sequence))
		l.forget(last)
		return missing
	}
	before := last - uint64(len(batch))
	if before > l.last.Sequence { // one between was stored although its acknowledgement was lost
		l.forget(before)
	}
	for i := range batch {
		if len(l.window) >= l.opts.Window {
			// Half at once: one copy for each event would be slow.
			half := len(l.window) - l.opts.Window/2
			n := copy(l.window, l.window[half:])
			clear(l.window[n:])
			l.window = l.window[:n]
			l.first += uint64(half)
		}
		l.last = Position{before + 1 + uint64(i), l.epoch}
		batch[i].Position, batch[i].encoded = l.last, new(encoding)
		l.window = append(l.window, batch[i])
	}
	return 0
}

// forget empties the window; last is the sequence of the latest stored event. mu must be held.
func (l *Log) forget(last uint64) {
	clear(l.window)
	l.window, l.first, l.last = l.window[:0], last+1, Position{last, l.epoch}
}

// EndReaders ends the readers when they have read everything that is stored, and refuses new ones. Events are still
// stored until Close. Call it before the server that waits for the readers' requests stops.
func (l *Log) EndReaders() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.added.Send()
}

// Close stores what is in the queue and that nothing is missing, and ends the readers, who get everything that was stored. Events that are
// published afterwards are discarded. When ctx ends first, Close gives up what is not stored. It is idempotent.
func (l *Log) Close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	l.queued.Lock()
	if !l.closing {
		l.closing = true
		l.queue = append(l.queue, Event{Time: time.Now(), Kind: Here})
	}
	l.queued.Unlock()
	wait.Nudge(l.wake)
	wait.Nudge(l.hurry)
	defer l.stop()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		l.stop()
		<-l.done
		return fmt.Errorf("the latest events were not stored: %w", ctx.Err())
	}
}
