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

// What the follower has on hand.
const (
	maxEntries = 256 // that were received and not applied
	maxAsks    = 16
)

// When replicas ask for what they miss, and answer.
const (
	firstAsk    = 500 * time.Millisecond // an entry that is late is soon here
	maxAsk      = 5 * time.Minute
	maxSuspects = 3 // times to ask because of an entry of which nothing is known
	answerDelay = 300 * time.Millisecond
	answerEvery = 2 * time.Second
	closerGrace = 5 * time.Second // for who ended an epoch to begin the next
	hopeFor     = 4 * time.Second // for others to bring what is missing, before an epoch ends without it
)

// question is what a replica sends that misses something, or, with a sum instead of the clock, that looks
// whether others who have read as much have the same.
type question struct {
	Epoch    uint64            `json:"epoch"`
	Clock    map[string]uint64 `json:"clock,omitempty"`
	Sequence uint64            `json:"sequence,omitempty"`
	Sum      string            `json:"sum,omitempty"`
}

// errAnew has the log read from where it was left: after a break, or in another epoch.
var errAnew = errors.New("the log is read anew")

// follow reads the log until the document is closed.
func (d *Document) follow() {
	defer d.done.Done()
	retry := wait.Backoff{First: firstPause, Most: maxPause}
	for d.ctx.Err() == nil {
		began := time.Now()
		err := d.read()
		if d.ctx.Err() != nil || errors.Is(err, errAnew) {
			retry.Reset()
			continue
		}
		d.log.Warn("the log of a document is not read; trying again", "error", err)
		if time.Since(began) > maxPause {
			retry.Reset()
		}
		retry.Pause(d.ctx)
	}
}

// reading is one reading of the log.
type reading struct {
	d       *Document
	ctx     context.Context // ends with the reading
	entries chan jetstream.Msg
	errs    chan error
	heads   jetstream.KeyWatcher
	asks    chan *nats.Msg
	target  uint64 // the end of the log when this began
	asking  *time.Timer
	answer  *time.Timer
	grace   *time.Timer
	look    *time.Timer
	unread  bool // the head is to be compared, once the log has been read that far
}

// read reads the log until something breaks.
func (d *Document) read() error {
	ctx, stop := context.WithCancel(d.ctx)
	defer stop()
	// What is asked of a server that goes away is not answered; so the reading ends with its connection.
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
		return errAnew
	}
	return err
}

// connected waits until there is a connection.
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

// begin subscribes to all there is to hear. end is to be called, also after an error.
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
	// It fails only where the connection is closed.
	ends = append(ends, func() { _ = asks.Unsubscribe() })
	if r.heads, err = d.store.Heads.Watch(r.ctx, d.options.Document); err != nil {
		return end, err
	}
	ends = append(ends, func() { _ = r.heads.Stop() }) // as above
	d.place.anew()
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

// received takes an entry, in the connection's goroutine: a follower that is behind holds up only itself.
func (r *reading) received(m jetstream.Msg) {
	select {
	case r.entries <- m:
	case <-r.ctx.Done():
	}
}

// failed hears of a consumer's errors. Ordered consumers mend most themselves, but not where the stream is another.
func (r *reading) failed(_ jetstream.ConsumeContext, err error) {
	if errors.Is(err, jetstream.ErrNoHeartbeat) || errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrConsumerDeleted) {
		r.d.log.Debug("the log of a document stalls", "error", err)
	}
	select {
	case r.errs <- err:
	default:
	}
}

func (r *reading) asked(m *nats.Msg) {
	select {
	case r.asks <- m:
	default: // who asks asks again
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
				return errAnew
			}
			err = r.pointed(e)
		case m := <-r.asks:
			r.question(m)
		case w := <-d.wants:
			w.ended <- r.within(w.do)
		case <-r.asking.C:
			err = r.ask()
		case <-r.answer.C:
			d.told = time.Now()
			r.try("answering", d.contribute)
		case <-r.look.C:
			err = r.compareAll()
			r.look.Reset(d.lookAfter())
		case <-r.grace.C:
			if wait := time.Until(d.hopes); wait > 0 {
				r.grace.Reset(wait)
			} else if err = r.within(d.succeed); err != nil {
				d.log.Warn("a document's next epoch has not begun; trying again", "error", err)
				r.grace.Reset(firstAsk + rand.N(closerGrace))
				err = nil
			}
		case err = <-r.errs:
			d.log.Debug("the log of a document is read anew", "error", err)
		case <-r.ctx.Done():
			return errAnew // the server may be another
		}
		if err != nil {
			return err
		}
	}
}

// caughtUp has read what the log had in the beginning.
func (r *reading) caughtUp() error {
	d := r.d
	if d.joined != nil {
		d.joined <- nil // it has room for one
		d.joined = nil
	}
	if !d.owes {
		return nil
	}
	if err := r.within(d.contribute); err != nil {
		return err
	}
	d.owes = false
	return nil
}

func (r *reading) try(what string, f func(ctx context.Context) error) {
	if err := r.within(f); err != nil && r.d.ctx.Err() == nil {
		r.d.log.Info(what+" failed", "error", err)
	}
}

// within bounds what the follower does on the server.
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
		return nil // one after the end its writer carries over
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
		d.asking, d.hopes = firstAsk, time.Now().Add(hopeFor)
		r.asking.Reset(firstAsk)
	}
	return r.after()
}

// after does what is due after an entry.
func (r *reading) after() error {
	d := r.d
	switch {
	case d.closed != nil:
		if r.grace.Reset(closerGrace + rand.N(closerGrace)); d.closed.Writer == d.writer {
			r.grace.Reset(0)
		}
	case d.since >= d.due || d.volume >= d.due<<10:
		d.since, d.volume = 0, 0 // if it fails, after as many again
		r.try("a snapshot", func(ctx context.Context) error { return d.snapshot(ctx, false) })
		d.draw()
	}
	return nil
}

// draw says when the next snapshot is due: not at the same time everywhere.
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
		return false, nil // a stray of another epoch
	}
	return missing, err
}

// skip logs what cannot be read, with its source, and goes on (Req 9.5).
func (d *Document) skip(m jetstream.Msg, sequence uint64, err error) {
	d.log.Warn("skipped an entry of the log that cannot be read", slog.String("source", source(m.Headers())), slog.Uint64("sequence", sequence), slog.Any("error", err))
	if d.options.Telemetry != nil {
		d.options.Telemetry.Emit(telemetry.Event{
			Type: telemetry.ErrorEvent, Sender: source(m.Headers()), Timestamp: time.Now().UnixMilli(), Code: "CRDT_DESERIALIZATION_FAILED", Detail: err.Error(),
		})
	}
}

// ask asks the others for what is missing, as long as something is.
func (r *reading) ask() error {
	d := r.d
	clock, err := d.VectorClock(r.ctx)
	if err != nil {
		return nil // it is closed
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
	b, err := json.Marshal(question{Epoch: d.Epoch(), Clock: clock})
	if err != nil {
		return err
	}
	if err := d.js.Conn().Publish(d.options.askSubject(), b); err != nil {
		return err
	}
	d.asking = min(2*max(d.asking, firstAsk), maxAsk)
	r.asking.Reset(d.asking)
	return nil
}

// question hears that somebody misses something, or asks whether all have the same. Who has more stores a snapshot
// with it, after a moment in which another may have, and not too often, for anybody can ask.
func (r *reading) question(m *nats.Msg) {
	d := r.d
	var q question
	if json.Unmarshal(m.Data, &q) != nil || q.Epoch != d.Epoch() {
		return
	}
	clock, err := d.VectorClock(r.ctx)
	if err != nil {
		return // it is closed
	}
	switch {
	case q.Sum == "":
		if more(clock, q.Clock) {
			r.answerSoon()
		}
	case q.Sequence == d.place.at() && !d.outbox.unsent() && q.Sum != sumOfClock(clock):
		// Which of the two has more is not known; it may be both.
		r.answerSoon()
		d.suspect, d.hopes = max(d.suspect, 1), time.Now().Add(hopeFor)
		r.asking.Reset(rand.N(answerDelay))
	}
}

func (r *reading) answerSoon() {
	r.answer.Reset(max(0, answerEvery-time.Since(r.d.told)) + rand.N(answerDelay))
}

// compareAll asks whether all who have read as much of the log have the same: of the last entries of a writer nobody
// knows that they are missing.
func (r *reading) compareAll() error {
	d := r.d
	clock, err := d.VectorClock(r.ctx)
	if err != nil || d.outbox.unsent() {
		return nil // it is closed, or has what the log has not
	}
	b, err := json.Marshal(question{Epoch: d.Epoch(), Sequence: d.place.at(), Sum: sumOfClock(clock)})
	if err != nil {
		return err
	}
	return d.js.Conn().Publish(d.options.askSubject(), b)
}

// lookAfter is the time to the next look.
func (d *Document) lookAfter() time.Duration {
	return d.options.Interval*4/5 + rand.N(d.options.Interval*2/5+1)
}

// more reports whether a clock has what another has not.
func more(clock, than map[string]uint64) bool {
	for key, n := range clock {
		if than[key] < n {
			return true
		}
	}
	return false
}
