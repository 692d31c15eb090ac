package documents

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/crdt/snapshots"
)

// Document is one document of a Library. It is safe for concurrent use.
type Document struct {
	name  string
	store *store
	log   *slog.Logger
	*replica.Replica

	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	shares   atomic.Pointer[shares]
	used     atomic.Int64 // when it was asked for last, Unix time in nanoseconds
	watchers atomic.Int64 // who hear of changes

	gate    sync.RWMutex // held for reading while an edit is made
	retired bool         // another epoch takes its place

	mu      sync.Mutex
	seats   map[*seat]struct{} // of other processes' replicas
	queue   [][]byte           // changes that are not in the log yet
	queued  int                // their bytes
	number  uint64             // of the last change that was made
	stored  uint64             // of the last that is durable in the log
	changed chan struct{}
	failed  error // why the log does not take changes at the moment

	// Of the writer.
	damaged  bool // what is stored is to be replaced by what could be loaded
	head     snapshots.Head
	sequence uint64 // of the last change in the stream
	since    int    // bytes in the log behind the snapshot
}

// When a snapshot is taken, and how much may wait for the log.
const (
	snapshotChanges = 1000
	snapshotBytes   = 1 << 20
	maxQueued       = 32 << 20
	retryDelay      = time.Second
)

// opened is what a document begins with, besides what the store has.
type opened struct {
	interval time.Duration    // see Options
	former   *replica.Former  // of the epoch before, if this process ended it
	renew    func(why string) // told that a new epoch should begin
	max      int              // how many documents there may be
}

func openDocument(ctx context.Context, s *store, name string, create bool, with opened, log *slog.Logger) (*Document, error) {
	h, err := s.head(ctx, name)
	if err != nil {
		return nil, err
	}
	if h.Revision == 0 {
		if !create {
			return nil, &Error{Code: CodeNotFound, Message: "there is no document " + name, Remedy: "`parley doc list` shows those that there are; the first edit makes one"}
		}
		if err := s.roomForOne(ctx, with.max); err != nil {
			return nil, err
		}
		if h.Revision, err = s.setHead(ctx, name, h); err != nil {
			return nil, err
		}
	}
	d := &Document{name: name, store: s, log: log.With("document", name), head: h, changed: make(chan struct{}), seats: make(map[*seat]struct{})}
	roles, err := s.shares(ctx, name)
	if err != nil {
		return nil, err
	}
	d.shares.Store(roles)
	state, err := d.load(ctx)
	if err != nil {
		return nil, err
	}
	d.Replica, err = replica.New(replica.Options{
		Agent: hubAgent, State: name, Epoch: h.Epoch, Logger: d.log, Journal: d.journal, Access: d.rights,
		Interval: with.interval, Keeper: true, Renew: with.renew, Former: with.former,
		Saved: &replica.Saved{Epoch: h.Epoch, Update: state, Clock: h.Clock},
	})
	if err != nil {
		return nil, storage(err, "the document %s cannot be opened", name)
	}
	d.used.Store(time.Now().UnixNano())
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.done.Add(1)
	go d.write()
	return d, nil
}

// load returns the state of snapshot and log together, as far as they are whole: what is lost is
// logged, and the state that is left is stored anew.
func (d *Document) load(ctx context.Context) ([]byte, error) {
	doc, base, err := d.loadSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	end, err := d.store.end(ctx)
	if err != nil {
		return nil, err
	}
	if end < base.Sequence {
		// What is written now is behind the end and yet before the snapshot's place: only a new snapshot leads to it.
		d.damaged = true
		d.log.Error("the log of documents has lost its end, as one from a backup has; the document opens with its snapshot and what replicas bring back",
			"end", end, "snapshot", base.Sequence, "epoch", base.Epoch)
		base.Sequence = 0
	}
	d.number, d.sequence, err = d.store.replay(ctx, d.name, base, func(update []byte) error {
		d.since += len(update)
		_, err := doc.Apply(update, nil)
		return err
	}, func(first, last uint64, why error) {
		d.damaged = true
		d.log.Error("changes of a document are lost; it opens without them, and has them again once a replica that has them is linked",
			"first", first, "last", last, "epoch", base.Epoch, "error", why)
	})
	d.stored = d.number
	return doc.Snapshot(), err
}

// loadSnapshot loads the newest snapshot that is whole, and returns its head: of two there is one at least,
// and the log behind it.
func (d *Document) loadSnapshot(ctx context.Context) (*crdt.Doc, snapshots.Head, error) {
	doc := crdt.New(crdt.Options{})
	err := d.store.restore(ctx, d.head, doc)
	if err == nil || ctx.Err() != nil {
		return doc, d.head, err
	}
	base := d.head.Previous
	if base == nil || base.Epoch != d.head.Epoch {
		return nil, snapshots.Head{}, err
	}
	d.damaged = true
	d.log.Error("a snapshot of a document is broken; it opens from the one before", "number", d.head.Number, "epoch", d.head.Epoch, "error", err)
	doc = crdt.New(crdt.Options{})
	return doc, *base, d.store.restore(ctx, *base, doc)
}

// Name returns the document's name.
func (d *Document) Name() string { return d.name }

// journal takes a change for the log, in the goroutine that owns the document.
func (d *Document) journal(update []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.number++
	d.queue = append(d.queue, update)
	d.queued += len(update)
	d.signal()
}

// OnUpdate is as that of the replica. While somebody hears of changes the document stays open.
func (d *Document) OnUpdate(f func(replica.Update)) (cancel func()) {
	d.watchers.Add(1)
	end := d.Replica.OnUpdate(f)
	var once sync.Once
	return func() {
		once.Do(func() {
			end()
			d.watchers.Add(-1)
		})
	}
}

// idle reports whether nobody has anything to do with the document, or had for a while.
func (d *Document) idle(since time.Duration) bool {
	d.mu.Lock()
	seats := len(d.seats)
	d.mu.Unlock()
	return seats == 0 && d.watchers.Load() == 0 && time.Since(time.Unix(0, d.used.Load())) >= since
}

// signal wakes those who wait for a change of the queue; the lock is held.
func (d *Document) signal() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// Edit makes the edits of f one change and returns when it is durable. An error of
// f takes the edits back; one with [CodeUncertain] says that they were made and may not be stored.
func (d *Document) Edit(ctx context.Context, f func(doc *crdt.Doc) error) error {
	if err := d.enter(); err != nil {
		return err
	}
	err := d.Replica.Edit(ctx, f)
	d.gate.RUnlock()
	if err != nil {
		return err
	}
	if err := d.Durable(ctx); err != nil {
		return uncertain(d.name, err)
	}
	return nil
}

// Submit applies an update of a writer without a replica of its own, such as a browser; see
// [replica.Replica.Submit]. It does not wait until it is durable: such writers
// do not hear of that anyway.
func (d *Document) Submit(ctx context.Context, writer string, update []byte, whole bool) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.gate.RUnlock()
	return d.Replica.Submit(ctx, writer, update, whole)
}

// enter takes the gate for an edit, unless none may be made.
func (d *Document) enter() error {
	if err := d.room(); err != nil {
		return err
	}
	d.gate.RLock()
	if d.retired {
		d.gate.RUnlock()
		return &Error{Code: CodeClosed, Message: "the document " + d.name + " has just begun a new epoch", Remedy: "try again"}
	}
	return nil
}

// retire ends edits, waits for those under way and until all is in the log.
func (d *Document) retire(ctx context.Context) error {
	d.gate.Lock()
	d.retired = true
	d.gate.Unlock()
	d.mu.Lock()
	seats := slices.Collect(maps.Keys(d.seats))
	d.mu.Unlock()
	for _, s := range seats {
		s.leave()
	}
	if err := d.Durable(ctx); err != nil {
		return err
	}
	d.stop()
	d.done.Wait()
	return nil
}

// compact ends the replica and makes the next epoch's head from what the document holds, after
// retire.
func (d *Document) compact(ctx context.Context) (*replica.Former, error) {
	state, former, err := d.Succeed(ctx)
	if err != nil {
		return nil, &Error{Code: CodeInvalid, Message: "the document " + d.name + " cannot be compacted", Err: err}
	}
	_, err = d.store.point(ctx, d.name, d.head, snapshots.Head{Epoch: d.head.Epoch + 1, Sequence: d.sequence}, state)
	return former, err
}

// room refuses edits while too many wait for a store that does not answer.
func (d *Document) room() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queued > maxQueued {
		return &Error{Code: CodeStorage, Message: "the document " + d.name + " cannot be stored at the moment", Remedy: "`parley doctor` shows how the bus fares", Err: d.failed}
	}
	return nil
}

// Durable waits until all changes made so far are in the log.
func (d *Document) Durable(ctx context.Context) error {
	d.mu.Lock()
	number := d.number
	d.mu.Unlock()
	for {
		ended := d.ctx.Err() // before the look: what was stored before the end is stored
		d.mu.Lock()
		stored, changed := d.stored, d.changed
		d.mu.Unlock()
		switch {
		case stored >= number:
			return nil
		case ended != nil:
			return &Error{Code: CodeClosed, Message: "the hub stops"}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-d.ctx.Done():
		}
	}
}

// write brings changes to the log, and takes snapshots.
func (d *Document) write() {
	defer d.done.Done()
	if d.damaged {
		d.takeSnapshot()
	}
	for {
		d.mu.Lock()
		queue, first, changed := d.queue, d.stored+1, d.changed
		d.mu.Unlock()
		if len(queue) == 0 {
			select {
			case <-changed:
				continue
			case <-d.ctx.Done():
				return
			}
		}
		if err := d.append(d.ctx, first, queue); err != nil {
			if d.ctx.Err() != nil {
				return
			}
			d.pause(err)
			continue
		}
		if d.stored-d.head.Number >= snapshotChanges || d.since >= snapshotBytes {
			d.takeSnapshot()
		}
	}
}

func (d *Document) takeSnapshot() {
	err := d.snapshot(d.ctx)
	if err == nil {
		d.damaged = false
	} else if d.ctx.Err() == nil {
		d.log.Error("a snapshot was not taken", "error", err)
	}
}

// pause waits after a failure of the store. What is queued stays.
func (d *Document) pause(err error) {
	d.mu.Lock()
	d.failed = err
	d.mu.Unlock()
	d.log.Error("changes of a document are not stored; trying again", "error", err)
	select {
	case <-time.After(retryDelay):
	case <-d.ctx.Done():
	}
}

// append stores changes, of which the first has a number, and returns when they are
// durable.
func (d *Document) append(ctx context.Context, first uint64, queue [][]byte) error {
	queue = queue[:min(len(queue), 1000)]
	batch := d.store.bus.NewBatch()
	for i, update := range queue {
		n := first + uint64(i)
		if err := batch.Add(ctx, d.store.change(d.name, d.head.Epoch, n, update), jetstream.WithMsgID(changeID(d.name, d.head.Epoch, n))); err != nil {
			return err
		}
	}
	acks, err := batch.Wait(ctx)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, update := range queue {
		d.sequence = max(d.sequence, acks[i].Sequence)
		d.since += len(update)
		d.queued -= len(update)
	}
	d.queue = d.queue[len(queue):]
	d.stored += uint64(len(queue))
	d.failed = nil
	d.signal()
	return nil
}

// snapshot stores the state as of now, once the log has all that is in it.
func (d *Document) snapshot(ctx context.Context) error {
	var number uint64
	var saved replica.Saved
	if err := d.Checkpoint(ctx, func(s replica.Saved) {
		saved = s
		d.mu.Lock()
		number = d.number
		d.mu.Unlock()
	}); err != nil {
		return err
	}
	for d.stored < number {
		d.mu.Lock()
		queue, first := d.queue, d.stored+1
		d.mu.Unlock()
		if err := d.append(ctx, first, queue[:min(uint64(len(queue)), number-d.stored)]); err != nil {
			return err
		}
	}
	h, err := d.store.point(ctx, d.name, d.head, snapshots.Head{Epoch: d.head.Epoch, Number: number, Sequence: d.sequence, Clock: saved.Clock}, saved.Update)
	if err != nil {
		return err
	}
	d.head, d.since = h, 0
	return nil
}

// close stores what is queued, takes a snapshot of what has changed, and ends the
// document.
func (d *Document) close(ctx context.Context) error {
	err := d.Durable(ctx)
	d.stop()
	d.done.Wait()
	if err == nil && (d.stored > d.head.Number || d.damaged) {
		err = d.snapshot(ctx)
	}
	d.Replica.Close()
	return err
}
