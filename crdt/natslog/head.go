package natslog

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/snapshots"
)

// start brings the replica to where the log can be read on: with the newest snapshot if it is new, or if what
// it had not read is gone.
func (d *Document) start(ctx context.Context) error {
	h, err := d.store.Head(ctx, d.options.Document)
	if err != nil {
		return err
	}
	info, err := d.store.Log.Info(ctx)
	if err != nil {
		return err
	}
	at := d.place.at()
	switch {
	case at == 0 && d.status(ctx).Items == 0, h.Epoch > d.Epoch() && !d.leadsTo(h, at):
		err = d.first(ctx, h)
	case h.Epoch == d.Epoch() && gone(h, at):
		if err = d.load(ctx, h); err == nil {
			d.place.set(h.Sequence, false)
		}
	}
	if err != nil {
		return err
	}
	if h.Epoch == d.Epoch() {
		d.head = h
	}
	at = d.place.at()
	if end := info.State.LastSeq; end < at || d.another(ctx, at) {
		// The server has lost the end of the log, or all of it. What this replica has it gets again, once this
		// has read what there is.
		d.log.Error("the log of a document has lost its end; what is known here is stored anew", "sequence", at, "end", end)
		d.place.set(0, false)
		d.owes = true
	}
	return nil
}

// another reports whether the entry that was read last is not the one that is at its place now.
func (d *Document) another(ctx context.Context, at uint64) bool {
	if d.lastID == "" || at != d.last {
		return false
	}
	m, err := d.store.Log.GetMsg(ctx, at)
	return err == nil && m.Header.Get(nats.MsgIdHdr) != d.lastID // if it is not there it was purged
}

func (d *Document) status(ctx context.Context) replica.Status {
	s, err := d.Status(ctx)
	if err != nil {
		return replica.Status{} // it is closed
	}
	return s
}

// gone reports whether entries behind a place were purged.
func gone(h snapshots.Head, at uint64) bool {
	return h.Previous != nil && h.Object != "" && at < h.Sequence && (h.Previous.Epoch != h.Epoch || h.Previous.Sequence > at)
}

// leadsTo reports whether the log still leads from a place in this epoch to the one of a head.
func (d *Document) leadsTo(h snapshots.Head, at uint64) bool {
	if h.Epoch != d.Epoch()+1 || h.Origin == nil || at == 0 {
		return false
	}
	return at >= h.Origin.Sequence || h.Previous != nil && h.Previous.Epoch == d.Epoch() && h.Previous.Sequence <= at
}

// first loads the newest snapshot that is whole: of two there is one at least, and the log behind it.
func (d *Document) first(ctx context.Context, h snapshots.Head) error {
	if h.Object == "" {
		return nil
	}
	err := d.take(ctx, h)
	if err == nil || ctx.Err() != nil || h.Previous == nil || h.Previous.Object == "" {
		return err
	}
	d.log.Error("a snapshot of a document is broken; it opens from the one before", "error", err)
	if err := d.take(ctx, *h.Previous); err != nil {
		return err
	}
	d.owes = true // it is to be replaced
	return nil
}

// take begins with a snapshot.
func (d *Document) take(ctx context.Context, h snapshots.Head) error {
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
	return d.Load(ctx, replica.Saved{Epoch: h.Epoch, Update: state, Clock: h.Clock})
}

// pointed hears of a head.
func (r *reading) pointed(e jetstream.KeyValueEntry) error {
	d := r.d
	if e == nil {
		return nil // the end of those that were there already
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
	at := d.place.at()
	switch {
	case h.Epoch < d.Epoch():
		return nil
	case h.Epoch > d.Epoch() && !d.leadsTo(h, at):
		return r.within(func(ctx context.Context) error { return errors.Join(d.leave(ctx, h), errAnew) })
	case h.Epoch > d.Epoch():
		r.next = &h
		if at >= h.Origin.Sequence {
			return r.adopt(h)
		}
		return nil
	}
	d.head, d.since, d.volume = h, 0, 0
	if gone(h, at) {
		return errAnew
	}
	r.unread = true
	return r.compare()
}

// compare takes over what the head has and this replica does not, although it has read the log that far.
func (r *reading) compare() error {
	d := r.d
	if h := d.head; r.unread && h.Epoch == d.Epoch() && h.Sequence <= d.place.at() {
		r.unread = false
		if d.lacks(r.ctx, h.Clock) {
			return r.within(func(ctx context.Context) error { return d.load(ctx, h) })
		}
	}
	return nil
}

// lacks reports whether a clock has updates that are not here.
func (d *Document) lacks(ctx context.Context, clock map[string]uint64) bool {
	here, err := d.VectorClock(ctx)
	if err != nil {
		return false // it is closed
	}
	for key, n := range clock {
		if here[key] < n {
			return true
		}
	}
	return false
}

// snapshot stores the state as of now and makes it the head. forced has it stored also if there is a head
// for a later place in the log, which then has lost its end, or for the same.
func (d *Document) snapshot(ctx context.Context, forced bool) error {
	if d.closed != nil {
		return failed(CodeStorage, nil, "the epoch has ended")
	}
	h, err := d.store.Head(ctx, d.options.Document)
	if err != nil {
		return err
	}
	at := d.place.at()
	switch {
	case h.Epoch > d.Epoch():
		return failed(CodeStorage, nil, "there is another epoch")
	case h.Sequence > at && !forced:
		return nil // it is newer than what is known here
	case h.Sequence == at && h.Object != "" && !forced && h.Epoch == d.Epoch():
		return nil
	}
	// What only the head has must not go.
	if h.Epoch == d.Epoch() && d.lacks(ctx, h.Clock) {
		if err := d.load(ctx, h); err != nil {
			d.log.Warn("a snapshot that is replaced could not be loaded", "error", err)
		}
	}
	saved, err := d.Save(ctx)
	if err != nil {
		return err
	}
	next, err := d.store.Point(ctx, d.options.Document, h, snapshots.Head{Epoch: saved.Epoch, Sequence: at, Clock: saved.Clock, Origin: h.Origin}, saved.Update)
	if err != nil {
		return failed(CodeStorage, err, "a snapshot of the document %s was not stored", d.options.Document)
	}
	d.head, d.since, d.volume = next, 0, 0
	d.log.Debug("a snapshot of a document was stored", "sequence", at, "bytes", len(saved.Update))
	return nil
}

// contribute stores a snapshot if the head does not have all that is known here.
func (d *Document) contribute(ctx context.Context) error {
	h, err := d.store.Head(ctx, d.options.Document)
	if err != nil {
		return err
	}
	clock, err := d.VectorClock(ctx)
	if err != nil {
		return err
	}
	for key, n := range clock {
		if h.Epoch != d.Epoch() || h.Clock[key] < n {
			return d.snapshot(ctx, d.owes || h.Sequence <= d.place.at())
		}
	}
	return nil
}

// end puts the end of the epoch into the log.
func (d *Document) end(ctx context.Context, epoch uint64) error {
	if d.Epoch() != epoch || d.closed != nil {
		return nil // somebody else has
	}
	if !d.mayEnd(d.options.Agent) {
		return failed(CodeInvalid, nil, "agent %s must not begin an epoch of the document", d.options.Agent)
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

// finish has read that the epoch ends here. Who ended it begins the next; if it does not, others do.
func (d *Document) finish(c *closing, source string) {
	switch {
	case c.Epoch != d.Epoch():
	case !d.mayEnd(source):
		d.log.Warn("an agent that may not has ended an epoch; that is ignored", "source", source)
	default:
		d.closed = c
		d.outbox.hold()
		d.place.signal()
	}
}

// succeed begins the next epoch from what is known here: all that the log had, and maybe what this replica
// has not sent.
func (d *Document) succeed(ctx context.Context) error {
	h, err := d.store.Head(ctx, d.options.Document)
	if err != nil || h.Epoch != d.Epoch() || d.closed == nil {
		return err
	}
	if d.lacks(ctx, h.Clock) {
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
	_, err = d.store.Point(ctx, d.options.Document, h, snapshots.Head{
		Epoch: next.Epoch, Sequence: at, Origin: &snapshots.Origin{Object: object, Hash: hash, Sequence: at, State: snapshots.Hash(state), Client: next.Client, Counters: slices.Clone(next.Counters)},
	}, state)
	if err != nil {
		// Another's head stands, or the next attempt makes it the same again.
		return errors.Join(err, d.store.Drop(ctx, object))
	}
	return nil // adopted once the head is heard of, as by all
}

// adopt goes on to the epoch of a head, whose beginning in the log has been reached.
func (r *reading) adopt(h snapshots.Head) error {
	err := r.within(func(ctx context.Context) error { return r.d.adopt(ctx, h) })
	return errors.Join(err, errAnew)
}

func (d *Document) adopt(ctx context.Context, h snapshots.Head) error {
	origin, err := d.store.Get(ctx, h.Origin.Object, h.Origin.Hash)
	if err == nil {
		err = d.Advance(ctx, replica.Next{Epoch: h.Epoch, Origin: origin, Client: h.Origin.Client, Counters: h.Origin.Counters},
			func(state []byte) bool { return snapshots.Hash(state) == h.Origin.State })
	}
	if err != nil && d.Epoch() != h.Epoch {
		if ctx.Err() != nil {
			return err
		}
		d.log.Error("a document's next epoch does not follow from this one", "error", err)
		return d.leave(ctx, h)
	}
	if err != nil {
		d.log.Error("some edits of a document's former epoch are lost", "error", err)
	}
	d.turned(h, h.Origin.Sequence)
	return nil
}

// leave goes on to a later epoch to which the log does not lead any more.
func (d *Document) leave(ctx context.Context, h snapshots.Head) error {
	state, err := d.store.Load(ctx, h)
	if err != nil {
		return err
	}
	if err := d.Leave(ctx, replica.Saved{Epoch: h.Epoch, Update: state, Clock: h.Clock}, d.outbox.unsent()); err != nil {
		return err
	}
	d.turned(h, h.Sequence)
	return nil
}

// turned says that the document is of a head's epoch now.
func (d *Document) turned(h snapshots.Head, at uint64) {
	d.head, d.closed, d.suspect, d.since, d.volume = h, nil, 0, 0, 0
	clear(d.needs)
	d.outbox.resume(h.Epoch)
	d.place.set(at, false)
}
