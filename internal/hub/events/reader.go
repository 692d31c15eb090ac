package events

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/wait"
)

// Query says which events a reader gets.
type Query struct {
	// After is the position of the last event that the reader has seen. The zero Position means Since.
	After Position
	// Since is the time of the first event; zero means events from now on.
	Since time.Time
	// Latest bounds how many of the events since Since, or of all if Since is zero, the reader begins with; 0 is no bound.
	Latest int
	Filter Filter
	// Follow waits for further events; without it the reader ends at the latest event.
	Follow bool
	// Pace is the shortest time between two reads of new events, so that a reader of a busy hub wakes up once for many of
	// them. An event after a pause of this length is read at once.
	Pace time.Duration
	// Brief is for those who show events as they happen: when many come between two reads, those of tasks, turns and work
	// are left out, and so are all that were not read in time. A [Gap] says how many.
	Brief bool
}

// briefMost is how many events a brief reader gets at once, besides the gap.
const briefMost = 64

// skipMark is how many events a filter skips before the reader gets its position, so that it need not read them
// again after a reconnect, nor loses its place when they expire.
const skipMark = 512

// Reader reads events from its own position. It holds at most one page of events, however slow it is. Next is for one
// goroutine at a time; Close may be called from any.
type Reader struct {
	log     *Log
	query   Query
	next    uint64   // the sequence of the next event to read
	at      Position // of the last event that was read, whether or not the filter selected it
	page    []Event
	skipped int
	caught  time.Time // when the reader had read everything
	closed  chan struct{}
}

// Subscribe returns a reader. Its first event is of the kind [Here] or, if events between the query's position and the
// next one are lost, [Gap]. The error has CodeBusy if there are too many readers, CodeInvalid for a wrong filter.
func (l *Log) Subscribe(ctx context.Context, q Query) (*Reader, error) {
	if err := q.Filter.Check(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	switch {
	case l.ended:
		l.mu.Unlock()
		return nil, &Error{Code: CodeClosed, Message: "the hub is stopping", Remedy: "try again when it runs"}
	case l.readers >= l.opts.MaxReaders:
		l.mu.Unlock()
		return nil, &Error{Code: CodeBusy, Message: fmt.Sprintf("%d readers follow the hub's events already", l.readers), Remedy: "end one of them, or try again later"}
	}
	l.readers++
	last := l.last
	l.mu.Unlock()
	r := &Reader{log: l, query: q, closed: make(chan struct{})}
	if err := r.start(ctx, last); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// start finds the reader's first position; last is that of the latest event.
func (r *Reader) start(ctx context.Context, last Position) (err error) {
	switch {
	case r.query.After != (Position{}):
		return r.resume(ctx, last)
	case !r.query.Since.IsZero() || r.query.Latest > 0:
		r.at, err = r.log.before(ctx, r.query.Since, last)
		if n := uint64(r.query.Latest); err == nil && n > 0 && r.at.Sequence+n < last.Sequence {
			r.at, err = r.log.positionAt(ctx, Position{last.Sequence - n, r.log.epoch})
		}
	default:
		r.at = last
	}
	r.begin(Event{Time: time.Now(), Kind: Here, Position: r.at})
	return err
}

func (r *Reader) begin(first Event) {
	r.next = r.at.Sequence + 1
	r.page = append(r.page, first)
}

// resume continues after the query's position, or after the last event of its epoch if the stream has lost some.
func (r *Reader) resume(ctx context.Context, last Position) error {
	l, after := r.log, r.query.After
	r.at = after
	if after.Sequence <= last.Sequence {
		epoch, err := l.epochAt(ctx, after.Sequence)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound), err == nil && epoch == after.Epoch:
			// Whether events after one that has expired are missing, too, shows the next page.
			r.begin(Event{Time: time.Now(), Kind: Here, Position: r.at})
			return nil
		case err != nil:
			return unreadable(err)
		}
	}
	return r.reset(ctx, last)
}

// reset continues after the last stored event that the query's position covers: those of its epoch, up to its
// sequence.
func (r *Reader) reset(ctx context.Context, last Position) error {
	l, after := r.log, r.query.After
	r.at = last
	for next, found := uint64(1), false; next <= min(after.Sequence, last.Sequence); {
		page, err := l.stored(ctx, from(next), batchSize)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		if !found {
			r.at, found = page[0].previous(), true
		}
		for _, e := range page {
			if e.Position.Epoch == after.Epoch && e.Position.Sequence <= after.Sequence {
				r.at = e.Position
			}
		}
		next = page[len(page)-1].Position.Sequence + 1
	}
	e := gap(reasonReset, 0)
	e.Position = r.at
	r.begin(e)
	return nil
}

// previous returns the position before the event's own.
func (e *Event) previous() Position { return Position{e.Position.Sequence - 1, e.Position.Epoch} }

// Position returns where the reader is: that of the last event that was read, including those that the filter has
// skipped. It must not be called during Next.
func (r *Reader) Position() Position { return r.at }

// Next blocks until the next event. It returns io.EOF at the end: when the hub stops, after Close and, unless the query
// follows, after the latest event.
func (r *Reader) Next(ctx context.Context) (Event, error) {
	for {
		for len(r.page) > 0 {
			e := r.page[0]
			r.page = r.page[1:]
			r.at = e.Position
			if e.Kind == Here || r.query.Filter.Match(&e) {
				r.skipped = 0
				return e, nil
			}
			if r.skipped++; r.skipped == skipMark {
				r.skipped = 0
				return Event{Time: e.Time, Kind: Here, Position: r.at}, nil
			}
		}
		if err := r.load(ctx); err != nil {
			return Event{}, err
		}
	}
}

// load blocks until there is a page of further events.
func (r *Reader) load(ctx context.Context) error {
	select {
	case <-r.closed:
		return io.EOF
	default:
	}
	if pause := r.query.Pace - time.Since(r.caught); r.query.Follow && pause > 0 {
		if err := r.pause(ctx, pause); err != nil {
			return err
		}
	}
	added := r.log.added.Wait()
	brief := r.query.Brief && r.query.Follow
	page, first, last, ended := r.log.latest(r.next, brief)
	if r.next > last+1 { // the stream was deleted and made again
		r.at, r.next = Position{0, r.log.epoch}, 1
		e := gap(reasonReset, 0)
		e.Position = r.at
		r.page = append(r.page, e)
		return nil
	}
	if brief && r.next <= last {
		r.shorten(page, first, last)
		r.caught = time.Now()
		return nil
	}
	if len(page) == 0 && r.next < first {
		var err error
		if page, err = r.log.stored(ctx, from(r.next), batchSize); err != nil {
			return err
		}
		if len(page) == 0 { // all of them have expired
			e := gap(reasonExpired, int(first-r.next))
			e.Position = Position{first - 1, r.log.epoch}
			r.page, r.next = append(r.page, e), first
			return nil
		}
	}
	if len(page) > 0 {
		if lost := page[0].Position.Sequence - r.next; lost > 0 {
			e := gap(reasonExpired, int(lost))
			e.Position = page[0].previous()
			r.page = append(r.page, e)
		}
		r.page = append(r.page, page...)
		r.next = page[len(page)-1].Position.Sequence + 1
		if r.next > last && !ended {
			r.caught = time.Now()
		}
		return nil
	}
	if ended || !r.query.Follow {
		return io.EOF
	}
	select {
	case <-added:
	case <-r.closed:
		return io.EOF
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// shorten adds to the page what a brief reader gets of the window's events, the first of which has the sequence first.
func (r *Reader) shorten(events []Event, first, last uint64) {
	end := Position{last, r.log.epoch}
	if len(events) > 0 {
		end = events[len(events)-1].Position
	}
	left := int(first - min(first, r.next))
	events = slices.DeleteFunc(events, func(e Event) bool { return !r.query.Filter.Match(&e) })
	if n := len(events); n > briefMost {
		events = slices.DeleteFunc(events, func(e Event) bool { return e.Kind.frequent() })
		events = events[max(0, len(events)-briefMost):]
		left += n - len(events)
	}
	r.page, r.next = append(r.page, events...), last+1
	if left > 0 {
		e := gap(reasonBrief, left)
		e.Position = end
		r.page = append(r.page, e)
	}
}

// frequent reports whether a busy hub has many events of the kind.
func (k Kind) frequent() bool { return k.under("task") || k.under("turn") || k.under("work") }

// pause waits for a time, the end of the reader or that of ctx.
func (r *Reader) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-r.closed:
		return io.EOF
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the reader. It is idempotent.
func (r *Reader) Close() {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if wait.Closed(r.closed) {
		return
	}
	close(r.closed)
	l.readers--
}

// latest returns a page of the window from a sequence on, the sequence with which the window begins, and that of the
// latest stored event. With whole, it returns all that the window has from there on, else nothing if the window begins
// later.
func (l *Log) latest(next uint64, whole bool) (page []Event, first, last uint64, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if next < l.first && !whole {
		return nil, l.first, l.last.Sequence, l.ended
	}
	rest := l.window[min(max(next, l.first)-l.first, uint64(len(l.window))):]
	if !whole {
		rest = rest[:min(len(rest), batchSize)]
	}
	return slices.Clone(rest), l.first, l.last.Sequence, l.ended
}

// from selects the stored events from a sequence on.
func from(sequence uint64) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: sequence}
}

// before returns the position before the first event that was stored at or after a time; last is that of the latest.
func (l *Log) before(ctx context.Context, at time.Time, last Position) (Position, error) {
	page, err := l.stored(ctx, jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &at}, 1)
	if err != nil || len(page) == 0 {
		return last, err
	}
	return l.positionAt(ctx, page[0].previous())
}

// positionAt returns the position with the epoch of its event, if that is still stored.
func (l *Log) positionAt(ctx context.Context, position Position) (Position, error) {
	switch epoch, err := l.epochAt(ctx, position.Sequence); {
	case err == nil:
		position.Epoch = epoch
	case !errors.Is(err, jetstream.ErrMsgNotFound):
		return position, unreadable(err)
	}
	return position, nil
}

// stored reads up to n stored events, the oldest first. A gap stands for one that cannot be decoded.
func (l *Log) stored(ctx context.Context, which jetstream.ConsumerConfig, n int) ([]Event, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	which.AckPolicy, which.MemoryStorage, which.Replicas = jetstream.AckNonePolicy, true, 1
	which.InactiveThreshold = time.Minute
	c, err := l.stream.CreateConsumer(ctx, which)
	if err != nil {
		return nil, unreadable(err)
	}
	defer func() {
		// After an error the server deletes the inactive consumer.
		_ = l.stream.DeleteConsumer(context.WithoutCancel(ctx), c.CachedInfo().Name)
	}()
	batch, err := c.FetchNoWait(n)
	if err != nil {
		return nil, unreadable(err)
	}
	var page []Event
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return nil, unreadable(err)
		}
		e, err := decode(m.Data(), meta.Sequence.Stream)
		if err != nil {
			l.log.Warn("an event is left out", "sequence", meta.Sequence.Stream, "error", err)
			e = gap(reasonStorage, 1)
			e.Position = Position{meta.Sequence.Stream, l.epoch}
		}
		page = append(page, e)
	}
	if err := batch.Error(); err != nil {
		return nil, unreadable(err)
	}
	return page, nil
}

// epochAt returns the epoch of a stored event; jetstream.ErrMsgNotFound if it has expired or never was.
func (l *Log) epochAt(ctx context.Context, sequence uint64) (uint32, error) {
	e, err := l.eventAt(ctx, sequence)
	return e.Position.Epoch, err
}

// eventAt returns a stored event, with the errors of epochAt.
func (l *Log) eventAt(ctx context.Context, sequence uint64) (Event, error) {
	if sequence == 0 {
		return Event{}, jetstream.ErrMsgNotFound
	}
	m, err := l.stream.GetMsg(ctx, sequence)
	if err != nil {
		return Event{}, err
	}
	return decode(m.Data, sequence)
}

func unreadable(err error) error {
	return &Error{Code: CodeStorage, Message: "the hub's events cannot be read", Remedy: "try again; the hub's log has the reason", Err: err}
}
