package natslog

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/crdt/snapshots"
)

// How long, and how many, last states of epochs are kept for replicas that were offline.
const (
	originAge  = time.Hour
	maxOrigins = 16
)

// start prepares for reading the log: it loads the newest snapshot if the replica is empty, or if entries
// that it has not read were purged.
func (d *Document) start(ctx context.Context) error {
	h, err := d.store.Head(ctx, d.options.Document)
	if err == nil && h.Revision == 0 && d.head.Revision == 0 {
		h, err = d.recover(ctx)
	}
	if err != nil {
		return err
	}
	info, err := d.store.Log.Info(ctx)
	if err != nil {
		return err
	}
	status, err := d.Status(ctx)
	if err != nil {
		return err // the document is closed
	}
	if d.place.at() == 0 && status.Items == 0 {
		err = d.first(ctx, h)
	}
	if err == nil {
		err = d.enterEpoch(ctx, h)
	}
	if err == nil && h.Epoch == d.Epoch() && gone(h, d.place.at()) {
		err = d.startFrom(ctx, h)
	}
	if err != nil {
		return err
	}
	if h.Revision < d.head.Revision || h.Epoch < d.Epoch() {
		d.log.Error("the server has lost the newest snapshot of a document; storing the state of this replica", "revision", d.head.Revision, "now", h.Revision)
		d.mustStore = true
	}
	if d.head = h; h.Epoch != d.Epoch() {
		d.head = snapshots.Head{Epoch: d.Epoch(), Revision: h.Revision}
	}
	at := d.place.at()
	if end := info.State.LastSeq; end < at || d.replaced(ctx, at) {
		// The server has lost the end of the log, or all of it. This replica stores its state after it has
		// read what there is.
		d.log.Error("the log of a document has lost its end; storing the state of this replica", "sequence", at, "end", end)
		d.place.set(0, false)
		d.mustStore = true
	}
	return nil
}

// recover rebuilds the head of a document whose head is lost. It returns one of revision 0 if the document is new, or
// if there is no snapshot yet.
func (d *Document) recover(ctx context.Context) (snapshots.Head, error) {
	h, found, err := d.store.Recover(ctx, d.options.Document)
	if errors.Is(err, snapshots.ErrUnrecoverable) {
		// Running replicas may have the rest.
		d.log.Error("a document's head and snapshots are lost; it is opened with what the log has", "error", err)
		return snapshots.Head{}, nil
	}
	if err != nil || !found || h.Object == "" {
		return snapshots.Head{}, err
	}
	d.log.Error("the head of a document was lost; it is rebuilt from a snapshot and the log", "epoch", h.Epoch, "sequence", h.Sequence)
	return d.store.Restore(ctx, d.options.Document, h, 0)
}

// replaced reports whether the last entry read is no longer the one with its sequence.
func (d *Document) replaced(ctx context.Context, at uint64) bool {
	if d.lastID == "" || at != d.last {
		return false
	}
	m, err := d.store.Log.GetMsg(ctx, at)
	return err == nil && m.Header.Get(nats.MsgIdHdr) != d.lastID // if it is missing, it was purged
}

// gone reports whether entries after a position were purged.
func gone(h snapshots.Head, at uint64) bool {
	return h.Previous != nil && h.Object != "" && at < h.Sequence && (h.Previous.Epoch != h.Epoch || h.Previous.Sequence > at)
}

// first loads the newest intact snapshot: at least one of the last two is, with the log after it.
func (d *Document) first(ctx context.Context, h snapshots.Head) error {
	if h.Object == "" {
		return nil
	}
	err := d.startFrom(ctx, h)
	if err == nil || ctx.Err() != nil || h.Previous == nil || h.Previous.Object == "" {
		return err
	}
	d.log.Error("a snapshot of a document is damaged; using the previous one", "error", err)
	if err := d.startFrom(ctx, *h.Previous); err != nil {
		return err
	}
	d.mustStore = true // replace it
	return nil
}

// startFrom starts from a snapshot.
func (d *Document) startFrom(ctx context.Context, h snapshots.Head) error {
	if h.Epoch > d.Epoch() {
		return d.leave(ctx, h)
	}
	err := d.load(ctx, h)
	if err == nil {
		d.place.set(h.Sequence, false)
	}
	return err
}

// load merges a snapshot of this epoch into the document.
func (d *Document) load(ctx context.Context, h snapshots.Head) error {
	state, err := d.store.Load(ctx, h)
	if err != nil || state == nil {
		return err
	}
	if err := d.Load(ctx, replica.Saved{Epoch: h.Epoch, Update: state, Clock: h.Clock}); err != nil {
		return err
	}
	d.number = max(d.number, h.Number)
	return nil
}

// headChanged handles a change of the head.
func (r *reading) headChanged(e jetstream.KeyValueEntry) error {
	d := r.d
	if e == nil {
		return nil // marks the end of the initial values
	}
	if e.Operation() != jetstream.KeyValuePut {
		return nil
	}
	h, err := snapshots.ReadHead(e)
	if err != nil {
		return err
	}
	if h.Revision <= d.head.Revision {
		return nil
	}
	switch {
	case h.Epoch < d.Epoch():
		return nil
	case h.Epoch > d.Epoch():
		return errors.Join(r.within(func(ctx context.Context) error { return d.enterEpoch(ctx, h) }), errRestart)
	}
	d.head, d.since, d.volume = h, 0, 0
	if gone(h, d.place.at()) {
		return errRestart
	}
	r.unread = true
	return nil
}

// compare loads the head's snapshot if it has content that this replica lacks although it has read the log that far.
func (r *reading) compare() error {
	d := r.d
	if h := d.head; r.unread && h.Epoch == d.Epoch() && h.Sequence <= d.place.at() {
		r.unread = false
		if d.lacks(r.ctx, h) {
			return r.within(func(ctx context.Context) error { return d.load(ctx, h) })
		}
	}
	return nil
}

// lacks reports whether a snapshot has updates that are missing here, by its clock, or states without an entry.
func (d *Document) lacks(ctx context.Context, h snapshots.Head) bool {
	if h.Number > d.number {
		return true
	}
	here, err := d.VectorClock(ctx)
	if err != nil {
		return false // the document is closed
	}
	return more(h.Clock, here)
}

// snapshot stores the current state, with a number of further states without an entry, and makes it the head.
// With forced it does so even if the head is of the same or a later position in the log, which then has lost
// its end. It may run after the end of the epoch: the next epoch begins with the head's content.
func (d *Document) snapshot(ctx context.Context, forced bool, states uint64) error {
	h, err := d.store.Head(ctx, d.options.Document)
	if err != nil {
		return err
	}
	at := d.place.at()
	switch {
	case h.Epoch > d.Epoch():
		return failed(CodeStorage, nil, "the document is in another epoch")
	case h.Sequence > at && !forced:
		return nil // the head is newer than this replica
	case h.Sequence == at && h.Object != "" && !forced && h.Epoch == d.Epoch():
		return nil
	}
	// Keep content that only the head has.
	if h.Epoch == d.Epoch() && d.lacks(ctx, h) {
		if err := d.load(ctx, h); err != nil {
			d.log.Warn("the snapshot to be replaced could not be loaded", "error", err)
		}
	}
	saved, err := d.Save(ctx)
	if err != nil {
		return err
	}
	next, err := d.store.Point(ctx, d.options.Document, h, snapshots.Head{Epoch: saved.Epoch, Number: max(h.Number, d.number) + states, Sequence: at, Clock: saved.Clock, Origins: kept(h.Origins)}, saved.Update)
	if err != nil {
		return failed(CodeStorage, err, "a snapshot of the document %s was not stored", d.options.Document)
	}
	d.head, d.number, d.since, d.volume = next, next.Number, 0, 0
	d.log.Debug("a snapshot of a document was stored", "sequence", at, "bytes", len(saved.Update))
	return nil
}

// contribute stores a snapshot if this replica has content that the head lacks.
func (d *Document) contribute(ctx context.Context) error {
	h, err := d.store.Head(ctx, d.options.Document)
	if err != nil {
		return err
	}
	clock, err := d.VectorClock(ctx)
	if err != nil {
		return err
	}
	if h.Epoch == d.Epoch() && h.Number >= d.number && !more(clock, h.Clock) {
		return nil
	}
	return d.snapshot(ctx, d.mustStore || h.Sequence <= d.place.at(), 0)
}

// errLacking reports that an epoch cannot end yet, because others may have entries that the log has lost.
var errLacking = failed(CodeEntry, nil, "entries of the log are missing here that others may have: retry in a few seconds")

// end appends the end of the epoch to the log.
func (d *Document) end(ctx context.Context, epoch uint64) error {
	if d.Epoch() != epoch || d.closed != nil {
		return nil // it has ended already
	}
	if !d.mayEnd(d.options.Agent) {
		return failed(CodeInvalid, nil, "agent %s must not begin an epoch of the document", d.options.Agent)
	}
	if time.Now().Before(d.waitUntil) {
		return errLacking
	}
	var client [4]byte
	rand.Read(client[:]) // never fails
	body, err := json.Marshal(closing{Epoch: epoch, Writer: d.writer, Client: uint64(binary.BigEndian.Uint32(client[:])) | 1, Counters: d.options.Counters})
	if err != nil {
		return err
	}
	entry := newEntry(d.options.subject(d.options.Document, epoch), d.options.Agent, d.writer+"/"+nats.NewInbox(), kindClose, body)
	if _, err := d.js.PublishMsg(ctx, entry); err != nil {
		return failed(CodeStorage, err, "the end of the epoch is not in the log")
	}
	return nil
}

func (d *Document) mayEnd(agent string) bool {
	return d.options.Access == nil || d.options.Access(agent)&replica.Keep != 0
}

// finish handles the end of the epoch. The replica that ended it begins the next; if it does not, others do.
func (d *Document) finish(c *closing, source string) {
	switch {
	case c.Epoch != d.Epoch():
	case !d.mayEnd(source):
		d.log.Warn("ignored the end of an epoch by an agent without the right to end it", "source", source)
	default:
		d.closed = c
		d.outbox.hold()
		d.place.changed.Send()
	}
}

// succeed begins the next epoch from the state of this replica: all content of the log, and possibly unsent
// edits of this replica.
func (d *Document) succeed(ctx context.Context) error {
	h, err := d.store.Head(ctx, d.options.Document)
	if err != nil || h.Epoch != d.Epoch() || d.closed == nil {
		return err
	}
	if d.lacks(ctx, h) {
		if err := d.load(ctx, h); err != nil {
			return err
		}
	}
	saved, err := d.Save(ctx)
	if err != nil {
		return err
	}
	next := replica.Next{Epoch: saved.Epoch + 1, Origin: saved.Update, Client: d.closed.Client, Counters: d.closed.Counters}
	state, err := next.State(d.options.Limits)
	if err != nil {
		return err
	}
	at := d.place.at()
	object, hash, err := d.store.PutOrigin(ctx, d.options.Document, saved.Epoch, at, saved.Update)
	if err != nil {
		return err
	}
	origin := snapshots.Origin{
		Epoch: next.Epoch, Began: time.Now().UnixMilli(), Object: object, Hash: hash, Sequence: at, State: snapshots.Hash(state),
		Client: next.Client, Counters: slices.Clone(next.Counters),
	}
	_, err = d.store.Point(ctx, d.options.Document, h, snapshots.Head{
		Epoch: next.Epoch, Sequence: at, Origins: kept(append(slices.Clip(h.Origins), origin)),
	}, state)
	if err != nil {
		// Another replica's head was faster, or the next attempt stores the same.
		return errors.Join(err, d.store.DropOrigin(ctx, d.options.Document, object))
	}
	return nil // adopted when the watcher reports the head, as on all replicas
}

// kept returns the origins for a new head: those that are recent enough for carrying edits over. The newest
// is always kept, since the epoch's first snapshot can be rebuilt from it.
func kept(origins []snapshots.Origin) []snapshots.Origin {
	fresh := slices.Clone(origins[max(0, len(origins)-maxOrigins):])
	for len(fresh) > 1 && time.Since(time.UnixMilli(fresh[0].Began)) > originAge {
		fresh = fresh[1:]
	}
	return fresh
}

// enterEpoch enters the epoch of a head, through all epochs between.
func (d *Document) enterEpoch(ctx context.Context, h snapshots.Head) error {
	for d.Epoch() < h.Epoch {
		o, ok := h.Origin(d.Epoch() + 1)
		if !ok {
			return d.leave(ctx, h)
		}
		if err := d.advance(ctx, h, o); err != nil {
			return err
		}
	}
	return nil
}

// advance enters the next epoch. Its origin has everything that the log of this epoch contained, so nothing
// more has to be read of it. Other edits of this replica are carried over.
func (d *Document) advance(ctx context.Context, h snapshots.Head, o snapshots.Origin) error {
	state, err := d.store.Get(ctx, o.Object, o.Hash)
	if err != nil && !snapshots.Gone(err) {
		return err
	}
	if err == nil {
		err = d.Advance(ctx, replica.Next{Epoch: o.Epoch, Origin: state, Client: o.Client, Counters: o.Counters},
			func(begin []byte) bool { return snapshots.Hash(begin) == o.State })
	}
	if err != nil && ctx.Err() != nil {
		return err
	}
	if d.Epoch() != o.Epoch {
		d.log.Error("a document's next epoch cannot be derived from this one", "error", err)
		return d.leave(ctx, h)
	}
	if err != nil {
		d.log.Error("some edits of a document's former epoch are lost", "error", err)
	}
	d.number = 0
	d.entered(snapshots.Head{Epoch: o.Epoch}, o.Sequence, err != nil)
	return nil
}

// leave enters a later epoch that cannot be reached through the log any more.
func (d *Document) leave(ctx context.Context, h snapshots.Head) error {
	state, err := d.store.Load(ctx, h)
	if err != nil {
		return err
	}
	lost := d.outbox.unsent()
	if err := d.Leave(ctx, replica.Saved{Epoch: h.Epoch, Update: state, Clock: h.Clock}, lost); err != nil {
		return err
	}
	d.number = h.Number
	d.entered(h, h.Sequence, lost)
	return nil
}

// entered records that the document is in a head's epoch; lost reports missing edits.
func (d *Document) entered(h snapshots.Head, at uint64, lost bool) {
	d.head, d.closed, d.suspect, d.since, d.volume = h, nil, 0, 0, 0
	clear(d.needs)
	d.outbox.resume(h.Epoch, lost)
	d.place.set(at, false)
}
