package natslog

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/telemetry"
)

// Limits of the follower's queues.
const (
	maxEntries = 256 // received, not yet applied
	maxAsks    = 16
)

// Timing of questions and answers.
const (
	firstAsk      = 500 * time.Millisecond // a delayed entry arrives within this time
	maxAsk        = 5 * time.Minute
	maxSuspects   = 3 // how often to ask because of an unknown entry
	answerDelay   = 300 * time.Millisecond
	answerEvery   = 2 * time.Second
	closerGrace   = 5 * time.Second // for the replica that ended an epoch to begin the next
	waitForOthers = 4 * time.Second // for others to store what is missing, before an epoch ends without it
)

// question asks other replicas for missing updates, or, with a sum instead of the clock, whether those that
// have read equally far have the same updates.
type question struct {
	Epoch    uint64            `json:"epoch"`
	Clock    map[string]uint64 `json:"clock,omitempty"`
	Sequence uint64            `json:"sequence,omitempty"`
	Sum      string            `json:"sum,omitempty"`
}

// errRestart restarts the reading: after a break, or in another epoch.
var errRestart = errors.New("the log must be read again")

// follow reads the log until the document is closed.
func (d *Document) follow() {
	retry := wait.Backoff{First: firstPause, Most: maxPause}
	for d.ctx.Err() == nil {
		began := time.Now()
		err := d.read()
		if d.ctx.Err() != nil || errors.Is(err, errRestart) {
			retry.Reset()
			continue
		}
		d.log.Warn("the log of a document cannot be read; retrying", "error", err)
		if time.Since(began) > maxPause {
			retry.Reset()
		}
		retry.Pause(d.ctx)
	}
}

// reading is one continuous reading of the log.
type reading struct {
	d       *Document
	ctx     context.Context // ends with the reading
	entries chan jetstream.Msg
	errs    chan error
	heads   jetstream.KeyWatcher
	asks    chan *nats.Msg
	target  uint64 // the end of the log at the beginning
	asking  *time.Timer
	answer  *time.Timer
	grace   *time.Timer
	look    *time.Timer
	unread  bool // compare the head once the log has been read that far
}

// read reads the log until an error.
func (d *Document) read() error {
	ctx, stop := context.WithCancel(d.ctx)
	defer stop()
	// Requests to a server that disappears are not answered, so the reading ends with its connection.
	conn := d.js.Conn()
	states := conn.StatusChanged()
	defer conn.RemoveStatusListener(states)
	if err := connected(ctx, conn, states); err != nil {
		return err
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	watching.Go(func() {
		select {
		case <-states:
			stop()
		case <-ctx.Done():
		}
	})
	r := &reading{
		d: d, ctx: ctx, entries: make(chan jetstream.Msg, maxEntries), errs: make(chan error, 1), asks: make(chan *nats.Msg, maxAsks),
		asking: stopped(), answer: stopped(), grace: stopped(), look: time.NewTimer(d.lookAfter() / 10),
	}
	defer func() {
		for _, t := range []*time.Timer{r.asking, r.answer, r.grace, r.look} {
			t.Stop()
		}
	}()
	end, err := r.begin()
	defer end()
	if err == nil {
		err = r.run()
	}
	if ctx.Err() != nil {
		return errRestart
	}
	return err
}

// connected waits until the connection is established.
func connected(ctx context.Context, conn *nats.Conn, states <-chan nats.Status) error {
	for !conn.IsConnected() {
		if conn.IsClosed() {
			return nats.ErrConnectionClosed
		}
		select {
		case <-states:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// begin subscribes to entries, heads and questions. The caller calls end, even after an error.
func (r *reading) begin() (end func(), err error) {
	d := r.d
	var ends []func()
	end = func() {
		for _, f := range ends {
			f()
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, 4*requestTimeout)
	defer cancel()
	conn := d.js.Conn()
	if d.store, err = openStore(ctx, d.js, &d.options, d.writer); err != nil {
		return end, err
	}
	asks, err := conn.Subscribe(d.options.askSubject(), r.asked)
	if err != nil {
		return end, err
	}
	// It fails only if the connection is closed.
	ends = append(ends, func() { _ = asks.Unsubscribe() })
	if r.heads, err = d.store.Heads.Watch(r.ctx, d.options.Document); err != nil {
		return end, err
	}
	ends = append(ends, func() { _ = r.heads.Stop() }) // as above
	d.place.restarted()
	if err := d.start(ctx); err != nil {
		return end, err
	}
	r.unread = true
	subject := d.options.subject(d.options.Document, d.Epoch())
	last, err := d.store.Log.GetLastMsgForSubject(ctx, subject)
	if err == nil {
		r.target = last.Sequence
	} else if !errors.Is(err, jetstream.ErrMsgNotFound) {
		return end, err
	}
	consumer, err := d.store.Log.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: d.place.at() + 1,
	})
	if err != nil {
		return end, err
	}
	consuming, err := consumer.Consume(r.received, jetstream.ConsumeErrHandler(r.failed))
	if err != nil {
		return end, err
	}
	ends = append(ends, consuming.Stop)
	return end, nil
}

// received queues an entry, in the subscription's goroutine. It blocks while the queue is full.
func (r *reading) received(m jetstream.Msg) {
	select {
	case r.entries <- m:
	case <-r.ctx.Done():
	}
}

// failed handles a consumer's errors. Ordered consumers recover from most, but not if the stream was replaced.
func (r *reading) failed(_ jetstream.ConsumeContext, err error) {
	select {
	case r.errs <- err:
	default:
	}
}

func (r *reading) asked(m *nats.Msg) {
	select {
	case r.asks <- m:
	default: // the asking replica repeats the question
	}
}

func (r *reading) run() error {
	d := r.d
	if len(d.needs) > 0 || d.suspect > 0 {
		r.asking.Reset(firstAsk)
	}
	if d.closed != nil {
		r.grace.Reset(closerGrace)
	}
	for {
		var err error
		if err = r.compare(); err != nil {
			return err
		}
		if d.place.at() >= r.target && d.closed == nil {
			if err = r.caughtUp(); err != nil {
				return err
			}
		}
		select {
		case m := <-r.entries:
			err = r.entry(m)
		case e, open := <-r.heads.Updates():
			if !open {
				return errRestart
			}
			err = r.headChanged(e)
		case m := <-r.asks:
			r.question(m)
		case w := <-d.requests:
			w.ended <- r.within(w.do)
		case <-r.asking.C:
			err = r.ask()
		case <-r.answer.C:
			d.answered = time.Now()
			r.try("answering", d.contribute)
		case <-r.look.C:
			err = r.compareAll()
			r.look.Reset(d.lookAfter())
		case <-r.grace.C:
			if wait := time.Until(d.waitUntil); wait > 0 {
				r.grace.Reset(wait)
			} else if err = r.within(d.succeed); err != nil {
				d.log.Warn("a document's next epoch has not begun; trying again", "error", err)
				r.grace.Reset(firstAsk + rand.N(closerGrace))
				err = nil
			}
		case err = <-r.errs:
			d.log.Debug("the log of a document is read anew", "error", err)
		case <-r.ctx.Done():
			return errRestart // the server may be another
		}
		if err != nil {
			return err
		}
	}
}

// caughtUp runs after the entries that the log contained at the beginning have been read.
func (r *reading) caughtUp() error {
	d := r.d
	if d.joined != nil {
		d.joined <- nil // has room for one
		d.joined = nil
	}
	if !d.mustStore {
		return nil
	}
	if err := r.within(d.contribute); err != nil {
		return err
	}
	d.mustStore = false
	return nil
}

func (r *reading) try(what string, f func(ctx context.Context) error) {
	if err := r.within(f); err != nil && r.d.ctx.Err() == nil {
		r.d.log.Info(what+" failed", "error", err)
	}
}

// within runs f with a time limit.
func (r *reading) within(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(r.ctx, 6*requestTimeout)
	defer cancel()
	return f(ctx)
}

// entry applies an entry of the log.
func (r *reading) entry(m jetstream.Msg) error {
	d := r.d
	meta, err := m.Metadata()
	if err != nil {
		return err
	}
	sequence := meta.Sequence.Stream
	if d.closed != nil || sequence <= d.place.at() {
		return nil // entries after the end are carried over by their writer
	}
	e, err := readEntry(m.Headers(), m.Data())
	missing := false
	for _, one := range e.messages {
		lacks, bad := d.receive(one)
		missing = missing || lacks
		if err == nil {
			err = bad
		}
	}
	if d.ctx.Err() != nil {
		return nil
	}
	if err != nil {
		d.skip(m, sequence, err)
		d.suspect = maxSuspects
		missing = true
	}
	if e.closing != nil {
		d.finish(e.closing, source(m.Headers()))
	}
	d.since++
	d.volume += len(m.Data())
	d.last, d.lastID = sequence, m.Headers().Get(nats.MsgIdHdr)
	d.place.set(sequence, err != nil)
	if missing {
		d.waitUntil = time.Now().Add(waitForOthers)
		d.asking.Reset()
		r.asking.Reset(d.asking.Next())
	}
	return r.after()
}

// after handles what is due after an entry.
func (r *reading) after() error {
	d := r.d
	switch {
	case d.closed != nil:
		if r.grace.Reset(closerGrace + rand.N(closerGrace)); d.closed.Writer == d.writer {
			r.grace.Reset(0)
		}
	case d.since >= d.due || d.volume >= d.due<<10:
		d.since, d.volume = 0, 0 // on a failure, retry after as many again
		r.try("a snapshot", func(ctx context.Context) error { return d.snapshot(ctx, false, 0) })
		d.draw()
	}
	return nil
}

// draw chooses when the next snapshot is due, at random, so that replicas do not store them at the same time.
func (d *Document) draw() {
	n := d.options.SnapshotEvery
	d.due = n - n/4 + rand.IntN(n/2+1)
}

func (d *Document) receive(m *replica.Message) (missing bool, err error) {
	missing, err = d.Receive(d.ctx, m)
	if missing {
		key := m.SourceAgentID + "/" + m.Session
		d.needs[key] = max(d.needs[key], m.Seq)
	}
	if replica.CodeOf(err) == replica.CodeLate {
		return false, nil // of another epoch
	}
	return missing, err
}

// skip logs an entry that cannot be decoded, with its source.
func (d *Document) skip(m jetstream.Msg, sequence uint64, err error) {
	d.log.Warn("skipped an entry of the log that cannot be decoded", slog.String("source", source(m.Headers())), slog.Uint64("sequence", sequence), slog.Any("error", err))
	if d.options.Telemetry != nil {
		d.options.Telemetry.Emit(telemetry.Event{
			Type: telemetry.ErrorEvent, Sender: source(m.Headers()), Timestamp: time.Now().UnixMilli(), Code: "CRDT_DESERIALIZATION_FAILED", Detail: err.Error(),
		})
	}
}

// ask asks the other replicas for missing updates, and again as long as some are missing.
func (r *reading) ask() error {
	d := r.d
	clock, err := d.VectorClock(r.ctx)
	if err != nil {
		return nil // the document is closed
	}
	for key, n := range d.needs {
		if clock[key] >= n {
			delete(d.needs, key)
		}
	}
	if len(d.needs) == 0 && d.suspect == 0 {
		return nil
	}
	d.suspect = max(d.suspect-1, 0)
	r.asking.Reset(d.asking.Next())
	return d.send(question{Epoch: d.Epoch(), Clock: clock})
}

// send sends a question to the other replicas.
func (d *Document) send(q question) error {
	b, err := json.Marshal(q)
	if err != nil {
		return err
	}
	return d.js.Conn().Publish(d.options.askSubject(), b)
}

// question handles another replica's question. A replica that has more stores a snapshot after a random
// delay, in which another may do so, and at a limited rate, since anybody can ask.
func (r *reading) question(m *nats.Msg) {
	d := r.d
	var q question
	if json.Unmarshal(m.Data, &q) != nil || q.Epoch != d.Epoch() {
		return
	}
	clock, err := d.VectorClock(r.ctx)
	if err != nil {
		return // the document is closed
	}
	switch {
	case q.Sum == "":
		if more(clock, q.Clock) {
			r.answerSoon()
		}
	case q.Sequence == d.place.at() && !d.outbox.unsent() && q.Sum != sumOfClock(clock):
		// Either replica may have more, or both.
		r.answerSoon()
		d.suspect, d.waitUntil = max(d.suspect, 1), time.Now().Add(waitForOthers)
		r.asking.Reset(rand.N(answerDelay))
	}
}

func (r *reading) answerSoon() {
	r.answer.Reset(max(0, answerEvery-time.Since(r.d.answered)) + rand.N(answerDelay))
}

// compareAll asks whether all replicas that have read equally far have the same updates: nothing else
// reveals that a writer's last entries are missing.
func (r *reading) compareAll() error {
	d := r.d
	clock, err := d.VectorClock(r.ctx)
	if err != nil || d.outbox.unsent() {
		return nil // the document is closed, or has unsent changes
	}
	return d.send(question{Epoch: d.Epoch(), Sequence: d.place.at(), Sum: sumOfClock(clock)})
}

// lookAfter returns the time until the next comparison.
func (d *Document) lookAfter() time.Duration {
	return d.options.Interval*4/5 + rand.N(d.options.Interval*2/5+1)
}

// more reports whether a clock includes updates that another lacks.
func more(clock, than map[string]uint64) bool {
	for key, n := range clock {
		if than[key] < n {
			return true
		}
	}
	return false
}
