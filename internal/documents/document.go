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
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Document is one document of a Library. It is safe for concurrent use.
type Document struct {
	name  string
	store *store
	log   *slog.Logger
	saved func(name string) // see Options.Changed
	*replica.Replica

	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	shares   atomic.Pointer[shares]
	used     atomic.Int64 // Unix time of the last use, in nanoseconds
	watchers atomic.Int64 // subscriptions of OnUpdate

	gate    sync.RWMutex // held for reading during an edit
	retired bool         // the epoch ends: no further edits

	mu       sync.Mutex
	attached map[*attachment]struct{}
	queue    [][]byte    // changes that are not in the log yet
	queued   int         // bytes in the queue
	number   uint64      // of the last change
	stored   uint64      // number of the last change that is durable in the log
	changed  wait.Signal // queue or stored changed
	failed   error       // of the last attempt to write the log

	grouping time.Duration // groupPause, except in tests
	hurry    chan struct{} // has an element once the queue should be stored without a pause

	// The rest belongs to the writer goroutine.
	damaged  bool // the store is damaged; a snapshot of the loaded state replaces it
	lost     bool // changes are lost
	head     snapshots.Head
	sequence uint64 // in the stream, of the last change
	since    int    // bytes in the log since the snapshot
}

const (
	snapshotChanges = 1000                 // changes since the snapshot that cause the next one
	snapshotBytes   = 1 << 20              // bytes since the snapshot that cause the next one
	maxQueued       = 32 << 20             // bytes that wait for the log
	maxBatch        = 1000                 // changes in one batch for the log
	groupBytes      = 1 << 20              // bytes in the queue that are not kept for later ones
	groupPause      = 5 * time.Millisecond // between batches that nobody waits for
	retryDelay      = time.Second
)

// openDocument opens a document; former is its previous epoch, if this process ended it.
func (l *Library) openDocument(ctx context.Context, name string, create bool, former *replica.Former) (*Document, error) {
	s := l.store
	h, _, err := s.currentHead(ctx, name, l.log)
	if err != nil {
		return nil, err
	}
	if h.Revision == 0 {
		if !create {
			return nil, &Error{Code: CodeNotFound, Message: "there is no document " + name, Remedy: "`" + local.Program() + " doc list` lists the documents; the first edit creates one"}
		}
		if err := s.checkCount(ctx, l.most); err != nil {
			return nil, err
		}
		if h.Revision, err = s.setHead(ctx, name, h); err != nil {
			return nil, err
		}
	}
	d := &Document{name: name, store: s, log: l.log.With("document", name), saved: l.changed, head: h, attached: make(map[*attachment]struct{}),
		grouping: l.grouping, hurry: make(chan struct{}, 1)}
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
		Agent: hubAgent, State: name, Epoch: h.Epoch, Logger: d.log, Journal: d.journal, Access: d.accessOf,
		Interval: l.interval, Keeper: true, Renew: func(why string) { l.renew(name, why) }, Former: former,
		Saved: &replica.Saved{Epoch: h.Epoch, Update: state, Clock: h.Clock},
	})
	if err != nil {
		return nil, storage(err, "the document %s cannot be opened", name)
	}
	d.used.Store(time.Now().UnixNano())
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.done.Go(d.write)
	return d, nil
}

// load returns the state of snapshot and log together. Damaged or missing parts are logged and skipped; the writer
// then replaces them by a new snapshot.
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
		// New changes would get sequences that the snapshot claims to contain: only a new snapshot makes them readable.
		d.damaged = true
		d.log.Error("the log of documents ends before a snapshot, as after a restore from a backup; the document is opened from its snapshot, and linked replicas restore the rest",
			"end", end, "snapshot", base.Sequence, "epoch", base.Epoch)
		base.Sequence = 0
	}
	d.number, d.sequence, err = d.store.replay(ctx, d.name, base, func(update []byte) error {
		d.since += len(update)
		_, err := doc.Apply(update, nil)
		return err
	}, func(first, last uint64, why error) {
		d.damaged, d.lost = true, true
		d.log.Error("changes of a document are lost; it is opened without them, and a linked replica that has them restores them",
			"first", first, "last", last, "epoch", base.Epoch, "error", why)
	})
	d.stored = d.number
	return doc.Snapshot(), err
}

// loadSnapshot loads the newest intact snapshot and returns its head. The store keeps the last two snapshots and the
// log since the older one.
func (d *Document) loadSnapshot(ctx context.Context) (*crdt.Doc, snapshots.Head, error) {
	doc := crdt.New(crdt.Options{})
	err := d.store.restore(ctx, d.head, doc)
	if err == nil || ctx.Err() != nil {
		return doc, d.head, err
	}
	d.damaged = true
	d.log.Error("a snapshot of a document is damaged; the document is opened from another one", "number", d.head.Number, "epoch", d.head.Epoch, "error", err)
	if base := d.head.Previous; base != nil && base.Epoch == d.head.Epoch {
		doc = crdt.New(crdt.Options{})
		if perr := d.store.restore(ctx, *base, doc); perr == nil || ctx.Err() != nil {
			return doc, *base, perr
		}
	}
	base, err := d.store.substitute(ctx, d.name, d.head)
	if err != nil {
		return nil, snapshots.Head{}, err
	}
	doc = crdt.New(crdt.Options{})
	return doc, base, d.store.restore(ctx, base, doc)
}

// Name returns the document's name.
func (d *Document) Name() string { return d.name }

// journal queues a change for the log. It is called for one change at a time, in their order.
func (d *Document) journal(update []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.number++
	d.queue = append(d.queue, update)
	d.queued += len(update)
	d.changed.Send()
	if d.many() {
		wait.Nudge(d.hurry)
	}
}

// OnUpdate subscribes f to updates, as [replica.Replica.OnUpdate] does, and keeps the document open until cancel is
// called. Cancel is idempotent.
func (d *Document) OnUpdate(f func(replica.Update)) (cancel func()) {
	d.watchers.Add(1)
	end := d.Replica.OnUpdate(f)
	return sync.OnceFunc(func() {
		end()
		d.watchers.Add(-1)
	})
}

// idle reports whether the document has no users and was not used for this long.
func (d *Document) idle(since time.Duration) bool {
	d.mu.Lock()
	attached := len(d.attached)
	d.mu.Unlock()
	return attached == 0 && d.watchers.Load() == 0 && time.Since(time.Unix(0, d.used.Load())) >= since
}

// Edit applies the edits of f as one change and returns when it is durable. An error of f reverts the edits; an
// error with [CodeUncertain] means that they were applied and may not be stored.
func (d *Document) Edit(ctx context.Context, f func(doc *crdt.Doc) error) error {
	if err := d.beginEdit(); err != nil {
		return err
	}
	err := d.Replica.Edit(ctx, f)
	d.gate.RUnlock()
	if err != nil {
		return err
	}
	if err := d.Durable(ctx); err != nil {
		return uncertain(err, "the edit of the document %s was not confirmed: it is stored as a whole, or not at all", d.name)
	}
	return nil
}

// Submit applies an update of a writer that has no replica, such as a browser; see [replica.Replica.Submit]. It does
// not wait until the update is durable.
func (d *Document) Submit(ctx context.Context, writer string, update []byte, whole bool) error {
	if err := d.beginEdit(); err != nil {
		return err
	}
	defer d.gate.RUnlock()
	return d.Replica.Submit(ctx, writer, update, whole)
}

// beginEdit locks the gate for an edit; the caller unlocks it. It fails while the queue is full and once the epoch ends.
func (d *Document) beginEdit() error {
	if err := d.checkQueue(); err != nil {
		return err
	}
	d.gate.RLock()
	if d.retired {
		d.gate.RUnlock()
		return &Error{Code: CodeClosed, Message: "the document " + d.name + " has just begun a new epoch", Remedy: "try again"}
	}
	return nil
}

// retire refuses further edits, detaches all replicas and waits until every change is in the log.
func (d *Document) retire(ctx context.Context) error {
	d.gate.Lock()
	d.retired = true
	d.gate.Unlock()
	d.mu.Lock()
	attached := slices.Collect(maps.Keys(d.attached))
	d.mu.Unlock()
	for _, a := range attached {
		a.detach()
	}
	if err := d.Durable(ctx); err != nil {
		return err
	}
	d.stop()
	d.done.Wait()
	return nil
}

// compact ends the replica and stores the document's content as the next epoch. Call it after retire.
func (d *Document) compact(ctx context.Context) (*replica.Former, error) {
	state, former, err := d.Succeed(ctx)
	if err != nil {
		return nil, &Error{Code: CodeInvalid, Message: "the document " + d.name + " cannot be compacted", Err: err}
	}
	_, err = d.store.point(ctx, d.name, d.head, snapshots.Head{Epoch: d.head.Epoch + 1, Sequence: d.sequence}, state)
	return former, err
}

// checkQueue returns an error while the queue for the log is full.
func (d *Document) checkQueue() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queued > maxQueued {
		return &Error{Code: CodeStorage, Message: "the document " + d.name + " cannot be stored at the moment", Remedy: "`" + local.Program() + " doctor` shows the state of the bus", Err: d.failed}
	}
	return nil
}

// Durable blocks until all changes so far are in the log, and has them stored without a pause. The error has [CodeClosed]
// if the document ends first.
func (d *Document) Durable(ctx context.Context) error {
	d.mu.Lock()
	number := d.number
	d.mu.Unlock()
	wait.Nudge(d.hurry)
	stored := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.stored >= number
	}
	switch {
	case d.changed.Until(ctx, d.ctx.Done(), stored), stored(): // perhaps by the last batch before the end
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return &Error{Code: CodeClosed, Message: "the hub stops"}
}

// write moves changes from the queue to the log and takes snapshots, until the document ends.
func (d *Document) write() {
	if d.damaged {
		d.takeSnapshot()
	} else {
		d.healed()
	}
	var last time.Time // when the last batch was stored
	for {
		if !d.changes() {
			return
		}
		d.gather(d.grouping - time.Since(last))
		_, err := d.append(d.ctx, maxBatch)
		last = time.Now()
		if err != nil {
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

// many reports whether the queue is to be stored without a pause; d.mu is held.
func (d *Document) many() bool { return len(d.queue) >= maxBatch || d.queued >= groupBytes }

// changes waits until changes are queued. It reports false if the document ends before.
func (d *Document) changes() bool {
	return d.changed.Until(d.ctx, nil, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.queue) > 0
	})
}

// gather waits for more changes, so that those that follow each other quickly are stored together, as long as nobody waits
// for the log.
func (d *Document) gather(rest time.Duration) {
	d.mu.Lock()
	many := d.many()
	d.mu.Unlock()
	if rest <= 0 || many {
		return
	}
	late := time.NewTimer(rest)
	defer late.Stop()
	select {
	case <-late.C:
	case <-d.hurry:
	case <-d.ctx.Done():
	}
}

// healed notes that nothing is missing of the document, whatever of its snapshots is damaged.
func (d *Document) healed() {
	if !d.lost {
		d.store.snapshotsRebuilt(d.name)
	}
}

func (d *Document) takeSnapshot() {
	err := d.snapshot(d.ctx)
	if err == nil {
		d.damaged = false
		d.healed()
	} else if d.ctx.Err() == nil {
		d.log.Error("a snapshot was not taken", "error", err)
	}
}

// pause waits after a failure of the store. The queue is kept.
func (d *Document) pause(err error) {
	d.mu.Lock()
	d.failed = err
	d.mu.Unlock()
	d.log.Error("changes of a document cannot be stored; retrying", "error", err)
	wait.Pause(d.ctx, retryDelay)
}

// append moves up to limit changes from the queue to the log and returns how many, once they are durable.
func (d *Document) append(ctx context.Context, limit int) (int, error) {
	d.mu.Lock()
	queue, first := d.queue[:min(len(d.queue), limit)], d.stored+1
	d.mu.Unlock()
	if len(queue) == 0 {
		return 0, nil
	}
	batch := d.store.bus.NewBatch()
	for i, update := range queue {
		n := first + uint64(i)
		if err := batch.Add(ctx, d.store.change(d.name, d.head.Epoch, n, update), jetstream.WithMsgID(changeID(d.name, d.head.Epoch, n))); err != nil {
			return 0, err
		}
	}
	acks, err := batch.Wait(ctx)
	if err != nil {
		return 0, err
	}
	d.saved(d.name)
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
	d.changed.Send()
	return len(queue), nil
}

// snapshot stores the current state, after the log contains all changes of it.
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
		if _, err := d.append(ctx, int(min(maxBatch, number-d.stored))); err != nil {
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

// close stores the queue, takes a snapshot if something has changed since the last one, and ends the document. A snapshot that
// takes longer than ctx is no error: the log has all of it, and the document takes longer to open.
func (d *Document) close(ctx context.Context) error {
	err := d.Durable(ctx)
	d.stop()
	d.done.Wait()
	if err == nil && ctx.Err() == nil && (d.stored > d.head.Number || d.damaged) {
		if err = d.snapshot(ctx); ctx.Err() != nil {
			err = nil
		}
	}
	d.Replica.Close()
	return err
}
