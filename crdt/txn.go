package crdt

import (
	"cmp"
	"slices"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// transaction is the state of the open transaction.
type transaction struct {
	open    bool
	local   bool
	seq     uint64
	origin  any
	before  []clientState // the former state of each client that grew
	deletes IDSet
	merges  []ID    // items that may be joined with a neighbour
	journal []entry // steps of a local transaction, for its rollback
	whole   int     // structs integrated without trimming
	update  []byte  // the applied update, if it was new as a whole
	added   []*item // for observers
	removed []*item // for observers
}

type clientState struct {
	client *client
	state  uint64
}

// entry is one step of a local transaction.
type entry struct {
	it    *item
	added bool // else deleted
}

// noteClient records a client's state before its first new struct.
func (d *Doc) noteClient(c *client) {
	if c.txn != d.tx.seq {
		c.txn = d.tx.seq
		d.tx.before = append(d.tx.before, clientState{c, c.state})
	}
}

func (d *Doc) noteAdded(it *item) {
	if d.tx.local {
		d.tx.journal = append(d.tx.journal, entry{it, true})
	}
	if d.observed() {
		d.tx.added = append(d.tx.added, it)
	}
}

func (d *Doc) noteRemoved(it *item) {
	if d.tx.local {
		it.flags |= flagJournal
		d.tx.journal = append(d.tx.journal, entry{it, false})
	}
	if d.observed() {
		d.tx.removed = append(d.tx.removed, it)
	}
}

// noteSplit updates the transaction's records when an item is split.
func (d *Doc) noteSplit(it, right *item) {
	d.tx.merges = append(d.tx.merges, right.id)
	if d.isNew(it) {
		d.noteAdded(right)
	}
	if it.has(flagJournal) {
		d.noteRemoved(right)
	}
}

// isNew reports whether the open transaction added an item.
func (d *Doc) isNew(it *item) bool {
	c := d.clients[it.id.Client]
	if c.txn != d.tx.seq {
		return false
	}
	for i := range d.tx.before {
		if d.tx.before[i].client == c {
			return it.id.Clock >= d.tx.before[i].state
		}
	}
	return false
}

func (d *Doc) begin(origin any, local bool) {
	t := &d.tx
	t.open, t.local, t.origin = true, local, origin
	t.seq++
	if t.deletes == nil {
		t.deletes = make(IDSet)
	}
}

// end resets the transaction but keeps its slices, unless they are large.
func (d *Doc) end() {
	t := &d.tx
	if len(t.before)+len(t.deletes)+len(t.merges)+len(t.journal) > 4096 {
		*t = transaction{seq: t.seq}
		return
	}
	clear(t.before)
	clear(t.deletes)
	clear(t.journal)
	*t = transaction{seq: t.seq, before: t.before[:0], deletes: t.deletes, merges: t.merges[:0], journal: t.journal[:0]}
}

// Transact makes the edits of f one change: one update, one call of each observer and one step of undo. If
// f fails or panics, the edits are rolled back. Transact returns the update to send to other replicas, nil
// if nothing changed. Nested calls only call their function.
func (d *Doc) Transact(origin any, f func() error) (update []byte, err error) {
	if d.tx.open {
		if !d.tx.local {
			return nil, errorf(CodeInvalid, nil, "the document cannot be edited while it applies an update")
		}
		return nil, f()
	}
	if d.notifying {
		return nil, errorf(CodeInvalid, nil, "an observer must not edit the document that it observes")
	}
	d.begin(origin, true)
	done := false
	defer func() {
		if !done {
			d.rollback()
		}
	}()
	if err := f(); err != nil {
		return nil, err
	}
	if err := d.checkSize(); err != nil {
		return nil, err
	}
	done = true
	return d.commit(), nil
}

// checkSize refuses a transaction that other replicas, with the same limits, would refuse for its size.
func (d *Doc) checkSize() error {
	size := 0
	for _, e := range d.tx.journal {
		if e.added {
			size += len(e.it.data) + len(e.it.key) + structOverhead
		}
	}
	if size > d.limits.Update {
		return errorf(CodeLimit, nil, "the transaction has about %d bytes; the maximum is %d", size, d.limits.Update)
	}
	return nil
}

// structOverhead is the largest size of a struct without content and key.
const structOverhead = 48

// rollback undoes a local transaction.
func (d *Doc) rollback() {
	t := &d.tx
	for _, e := range slices.Backward(t.journal) {
		if e.added {
			d.unlink(e.it)
		} else {
			d.undelete(e.it)
		}
	}
	for _, b := range t.before {
		d.truncate(b.client, b.state)
	}
	for _, id := range t.merges {
		d.mergeAround(id)
	}
	d.end()
}

// unlink removes an added item from its list or chain.
func (d *Doc) unlink(it *item) {
	n := it.parent
	if it.span != nil {
		n.uncount(it)
	}
	if it.right != nil {
		it.right.left = it.left
	}
	if it.left != nil {
		it.left.right = it.right
	}
	if c := n.keys[it.key]; it.has(flagKeyed) {
		switch {
		case it.left == nil && it.right == nil:
			delete(n.keys, it.key)
		case it.left == nil:
			c.head = it.right
		case it.right == nil:
			c.tail = it.left
		}
	} else if it.left == nil {
		n.head = it.right
	}
	d.items--
	d.bytes -= len(it.data)
	it.flags |= flagDeleted // a handle of its type then reports it as deleted
}

func (d *Doc) undelete(it *item) {
	it.flags &^= flagDeleted | flagJournal
	if it.span != nil {
		it.span.add(0, int64(it.units()), it.formats())
	}
}

// truncate removes a client's structs from a clock on, at which one begins.
func (d *Doc) truncate(c *client, state uint64) {
	if c.state == state {
		return
	}
	p := c.find(state)
	clear(c.chunks[p.chunk][p.i:])
	c.chunks[p.chunk] = c.chunks[p.chunk][:p.i]
	n := p.chunk + 1
	if p.i == 0 {
		n--
	}
	clear(c.chunks[n:])
	c.chunks = c.chunks[:n]
	c.state = state
}

// commit ends a transaction: it frees deleted content, joins neighbours and encodes the update, nil if
// nothing changed.
func (d *Doc) commit() []byte {
	t := &d.tx
	t.deletes.normalize()
	t.before = slices.DeleteFunc(t.before, func(b clientState) bool { return b.client.state == b.state })
	if len(t.before) == 0 && len(t.deletes) == 0 {
		for _, id := range t.merges {
			d.mergeAround(id)
		}
		d.end()
		return nil
	}
	change := d.describe()
	d.captureUndo()
	if d.successor != nil {
		d.successor.capture()
	}
	for _, e := range t.journal {
		e.it.flags &^= flagJournal
	}
	d.collect()
	d.mergeTouched()
	update := d.encodeTransaction()
	local, origin := t.local, t.origin
	d.end()
	d.notify(change, update, local, origin)
	return update
}

func (d *Doc) mergeTouched() {
	t := &d.tx
	for client, ranges := range t.deletes {
		for _, r := range ranges {
			d.items -= d.clients[client].merge(r.Clock, r.End())
		}
	}
	for _, b := range t.before {
		d.items -= b.client.merge(b.state, b.client.state)
	}
	for _, id := range t.merges {
		d.mergeAround(id)
	}
}

// mergeAround joins the item that begins with a unit with its neighbours if possible.
func (d *Doc) mergeAround(id ID) {
	if c := d.clients[id.Client]; id.Clock < c.state {
		d.items -= c.merge(id.Clock, id.Clock+1)
	}
}

// Compact joins all neighbours that can be joined. Replicas with the same content encode to the same bytes
// only then: see [Doc.Snapshot].
func (d *Doc) Compact() {
	for _, c := range d.clients {
		d.items -= c.merge(0, c.state)
	}
}

func (d *Doc) encodeTransaction() []byte {
	t := &d.tx
	if t.update != nil {
		return slices.Clone(t.update) // the document refers to it
	}
	slices.SortFunc(t.before, func(a, b clientState) int { return cmp.Compare(b.client.id, a.client.id) })
	b := lib0.AppendUint(make([]byte, 0, 32), uint64(len(t.before)))
	for _, s := range t.before {
		b = s.client.appendSince(b, s.state)
	}
	return t.deletes.append(b)
}
