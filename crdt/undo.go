package crdt

import "slices"

// UndoManager undoes this replica's edits; those of others stay. Create it before the edits.
type UndoManager struct {
	d       *Doc
	track   func(origin any) bool
	undo    []undoStep
	redo    []undoStep
	moved   moves           // the copies of restored content
	clients map[uint64]bool // ids under which this replica wrote
	running *[]undoStep     // receives the open transaction during Undo and Redo
}

// maxUndo bounds the steps; the oldest are dropped.
const maxUndo = 1000

// undoStep is the effect of one transaction.
type undoStep struct {
	client   uint64 // that wrote it
	inserted Range
	deleted  []removed
}

// removed is deleted content with its place.
type removed struct {
	id     ID
	after  *ID   // what preceded it in the list
	parent *item // holds the type that contained it; nil in a root
	root   string
	item   *item // a copy with content
	inside []removed
}

// NewUndo returns a manager for this replica's transactions whose origin track accepts; nil accepts all.
// Close it to free its memory.
func (d *Doc) NewUndo(track func(origin any) bool) *UndoManager {
	m := &UndoManager{d: d, track: track, moved: moves{}, clients: make(map[uint64]bool)}
	d.undo = append(d.undo, m)
	return m
}

// Close ends the recording.
func (m *UndoManager) Close() {
	m.d.undo = slices.DeleteFunc(m.d.undo, func(o *UndoManager) bool { return o == m })
	m.undo, m.redo, m.moved = nil, nil, nil
}

// CanUndo reports whether there is a transaction to undo.
func (m *UndoManager) CanUndo() bool { return len(m.undo) > 0 }

// CanRedo reports whether there is a transaction to redo.
func (m *UndoManager) CanRedo() bool { return len(m.redo) > 0 }

// Undo undoes the last transaction that still has an effect and returns the update, nil if there is none.
func (m *UndoManager) Undo() ([]byte, error) { return m.revert(&m.undo, &m.redo) }

// Redo repeats the transaction that was undone last.
func (m *UndoManager) Redo() ([]byte, error) { return m.revert(&m.redo, &m.undo) }

func (m *UndoManager) revert(from, to *[]undoStep) ([]byte, error) {
	for len(*from) > 0 {
		last := len(*from) - 1
		step := (*from)[last]
		m.running = to
		update, err := m.d.Transact(m, func() error { return m.apply(step) })
		m.running = nil
		if err != nil {
			return nil, err
		}
		(*from)[last] = undoStep{}
		*from = (*from)[:last]
		if update != nil {
			return update, nil
		}
	}
	return nil, nil
}

// captureUndo records the open transaction for the managers that may undo it.
func (d *Doc) captureUndo() {
	if !d.tx.local {
		return
	}
	for _, m := range d.undo {
		into := m.running
		if into == nil {
			if d.tx.origin != nil {
				if _, other := d.tx.origin.(*UndoManager); other {
					continue
				}
			}
			if m.track != nil && !m.track(d.tx.origin) {
				continue
			}
			m.redo = nil
			into = &m.undo
		}
		m.capture(into)
	}
}

func (m *UndoManager) capture(into *[]undoStep) {
	d := m.d
	m.clients[d.id] = true
	var step undoStep
	for _, b := range d.tx.before { // only this replica's
		step.client, step.inserted = b.client.id, Range{b.state, b.client.state - b.state}
	}
	lives := false
	for _, e := range d.tx.journal {
		lives = lives || e.added && !e.it.deleted()
		if e.added || d.isNew(e.it) || e.it.parent == nil || e.it.parent.deleted() {
			continue
		}
		step.deleted = append(step.deleted, d.keep(e.it))
	}
	if !lives && len(step.deleted) == 0 {
		return // everything inserted was deleted again
	}
	*into = append(*into, step)
	if len(*into) > maxUndo {
		*into = slices.Delete(*into, 0, 1)
	}
}

// keep copies a deleted item, before its content is freed.
func (d *Doc) keep(it *item) removed {
	one := *it
	one.left, one.right, one.span = nil, nil, nil
	r := removed{id: it.id, item: &one, parent: it.parent.item, root: it.parent.name}
	for left := it.left; left != nil && !it.has(flagKeyed); left = left.left {
		if !left.deleted() || left.has(flagJournal) {
			id := left.lastID()
			r.after = &id
			break
		}
	}
	if it.kind == kindType {
		it.node.each(func(o *item) {
			if o.has(flagJournal) && !d.isNew(o) { // deleted by this transaction
				r.inside = append(r.inside, d.keep(o))
			}
		})
	}
	return r
}

func (m *UndoManager) apply(step undoStep) error {
	m.eachNow(ID{step.client, step.inserted.Clock}, step.inserted.Length, m.d.deleteRange)
	for _, r := range step.deleted {
		if err := m.restore(r); err != nil {
			return err
		}
	}
	return nil
}

// eachNow calls f with the present ids of units.
func (m *UndoManager) eachNow(id ID, n uint64, f func(client uint64, now Range)) {
	for n > 0 {
		to, length := m.now(id, n)
		f(to.Client, Range{to.Clock, length})
		id.Clock += length
		n -= length
	}
}

// now returns the present id of a unit, and how many of the n units from it on follow it there.
func (m *UndoManager) now(id ID, n uint64) (ID, uint64) {
	for {
		to, length, ok := m.moved.find(id, n)
		if n = length; !ok {
			return id, n
		}
		id = to
	}
}

// restore inserts deleted content at its former place, under new ids.
func (m *UndoManager) restore(r removed) error {
	n := m.home(r)
	if n == nil || n.deleted() {
		return nil
	}
	var left *item
	if !r.item.has(flagKeyed) {
		left = m.place(n, r)
	} else if !m.mayRestore(n, r) {
		return nil
	}
	_, err := m.copy(n, left, r)
	return err
}

// copy inserts a copy of deleted content, with what was inside it: as the value of its key, or after left.
func (m *UndoManager) copy(n *node, left *item, r removed) (*item, error) {
	it, err := m.d.insertCopy(n, left, r.item)
	if err != nil {
		return nil, err
	}
	m.moved.insert(r.id, it)
	var last *item
	for _, o := range r.inside {
		one, err := m.copy(it.node, last, o)
		if err != nil {
			return nil, err
		}
		if !o.item.has(flagKeyed) {
			last = one
		}
	}
	return it, nil
}

// place returns the item after which content is restored: before its tombstone, or, if the type was itself
// deleted and restored, after what preceded it.
func (m *UndoManager) place(n *node, r removed) *item {
	old, _ := m.now(r.id, 1)
	if mark := m.d.get(old); mark.kind != kindGC && mark.parent == n {
		return m.d.startingAt(old).left
	}
	if r.after == nil {
		return nil
	}
	id, _ := m.now(*r.after, 1)
	if left := m.d.get(id); left.kind == kindGC || left.parent != n {
		return nil
	}
	return m.d.endingAt(id)
}

// home returns the type that contained the content, as it is now.
func (m *UndoManager) home(r removed) *node {
	if r.parent == nil {
		return m.d.root(r.root)
	}
	id, _ := m.now(r.parent.id, 1)
	if !m.d.knows(id) {
		return nil
	}
	return m.d.get(id).node
}

// mayRestore reports whether the key has no value and only this replica has written it since.
func (m *UndoManager) mayRestore(n *node, r removed) bool {
	c := n.keys[r.item.key]
	if c == nil {
		return true
	}
	for it := c.tail; it != nil && !(it.id.Client == r.id.Client && it.id.Clock <= r.id.Clock && r.id.Clock < it.end()); it = it.left {
		if !it.deleted() || !m.clients[it.id.Client] {
			return false
		}
	}
	return c.tail.deleted()
}
