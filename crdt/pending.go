package crdt

import (
	"container/heap"
	"slices"
)

// A struct whose dependencies are not here is parked, with all later ones of its
// client. Runs of parked structs are ordered by their first clock; the first
// waits for its own client's state to reach it, or, if it has, is registered with the
// client that it depends on. So whatever the order in which updates come, each
// struct is looked at a few times only.

// run is a stretch of parked structs of one client.
type run struct {
	items []*item
	seq   uint64 // of the update that brought it
}

func (r *run) first() uint64 { return r.items[0].id.Clock }
func (r *run) end() uint64   { return r.items[len(r.items)-1].end() }

type runHeap []*run

func (h runHeap) Len() int           { return len(h) }
func (h runHeap) Less(i, j int) bool { return h[i].first() < h[j].first() }
func (h runHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *runHeap) Push(x any)        { *h = append(*h, x.(*run)) }
func (h *runHeap) Pop() any {
	old := *h
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return r
}

// waiter is a client whose next struct needs a unit.
type waiter struct {
	clock  uint64
	client *client
}

type waiterHeap []waiter

func (h waiterHeap) Len() int           { return len(h) }
func (h waiterHeap) Less(i, j int) bool { return h[i].clock < h[j].clock }
func (h waiterHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *waiterHeap) Push(x any)        { *h = append(*h, x.(waiter)) }
func (h *waiterHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	*h = old[:len(old)-1]
	return w
}

// Pending tells what waits in a document for what is not here yet.
type Pending struct {
	Structs int
	Bytes   int // of their content, about
	Ranges  int // of deletes
	// Missing has, for each client that is waited for, the clock known of it.
	Missing StateVector
	// NeedsSync is set once something had to be dropped because too much was
	// parked, until a state from elsewhere is applied: see [Doc.Synced].
	NeedsSync bool
}

// Pending returns what waits in the document.
func (d *Doc) Pending() Pending {
	p := Pending{Structs: d.parked.structs, Bytes: d.parked.bytes, Ranges: d.parked.ranges, NeedsSync: d.needsSync}
	if p.Structs+p.Ranges == 0 {
		return p
	}
	p.Missing = make(StateVector)
	for id, c := range d.clients {
		if len(c.waiters) > 0 || len(c.deletes) > 0 || len(c.parked) > 0 && c.parked[0].first() > c.state {
			p.Missing[id] = c.state
		}
	}
	return p
}

// DropParked forgets what waits, because it has waited too long. NeedsSync is set.
func (d *Doc) DropParked() {
	if d.parked == (parkedSizes{}) {
		return
	}
	for _, c := range d.clients {
		c.parked, c.starts, c.waiters, c.waits, c.deletes = nil, nil, nil, false, nil
	}
	d.parked = parkedSizes{}
	d.needsSync = true
}

// Synced says that a whole state has been applied, so that nothing is missing for
// what had been dropped.
func (d *Doc) Synced() { d.needsSync = false }

type parkedSizes struct{ structs, bytes, ranges int }

const itemOverhead = 160

// add counts items that are parked (sign 1) or no longer (-1).
func (s *parkedSizes) add(items []*item, sign int) {
	for _, it := range items {
		s.structs += sign
		s.bytes += sign * (len(it.data) + itemOverhead)
	}
}

// applyBlock brings in what can go of a block, parks the rest, and lets those go on
// that waited for it.
func (d *Doc) applyBlock(b block, seq uint64) {
	c := d.client(b.client)
	before := c.state
	items := b.items
	if len(c.parked) == 0 {
		items = d.integrateRun(c, items)
	}
	if len(items) > 0 && items[len(items)-1].end() > c.state {
		d.park(c, items, seq)
		d.advance(c)
	}
	if c.state > before {
		d.wake(c)
	}
}

// integrateRun brings in the first of consecutive structs, as far as nothing is missing,
// and returns the rest.
func (d *Doc) integrateRun(c *client, items []*item) []*item {
	for len(items) > 0 {
		it := items[0]
		if it.end() > c.state {
			if !d.admitsNext(c, it) {
				break
			}
			d.integrate(c, it)
		}
		items = items[1:]
	}
	return items
}

// park keeps structs until they can go in. Of two runs that begin with the same
// unit the longer one is kept.
func (d *Doc) park(c *client, items []*item, seq uint64) {
	r := c.starts[items[0].id.Clock]
	switch {
	case r == nil:
		r = &run{items: items, seq: seq}
		if c.starts == nil {
			c.starts = make(map[uint64]*run)
		}
		c.starts[r.first()] = r
		heap.Push(&c.parked, r)
	case r.end() < items[len(items)-1].end():
		d.parked.add(r.items, -1)
		r.items, r.seq = items, seq
	default:
		return
	}
	d.parked.add(items, 1)
}

// wake lets the clients go on that waited for c, and those that wait for them.
func (d *Doc) wake(c *client) {
	work := append(d.work[:0], c)
	for len(work) > 0 {
		c := work[len(work)-1]
		work = work[:len(work)-1]
		for len(c.waiters) > 0 && c.waiters[0].clock < c.state {
			w := heap.Pop(&c.waiters).(waiter).client
			w.waits = false
			before := w.state
			d.advance(w)
			if w.state > before {
				work = append(work, w)
			}
		}
	}
	d.work = work
}

// advance brings in what can go of a client's parked structs.
func (d *Doc) advance(c *client) {
	for len(c.parked) > 0 {
		r := c.parked[0]
		rest := d.integrateRun(c, r.items)
		if n := len(r.items) - len(rest); n > 0 {
			delete(c.starts, r.first())
			d.parked.add(r.items[:n], -1)
		}
		if len(rest) == len(r.items) {
			return
		}
		if r.items = rest; len(rest) == 0 {
			last := len(c.parked) - 1
			c.parked[0], c.parked[last] = c.parked[last], nil
			c.parked = c.parked[:last]
		} else if o := c.starts[r.first()]; o == nil {
			c.starts[r.first()] = r
		}
		if len(c.parked) > 0 {
			heap.Fix(&c.parked, 0)
		}
	}
}

// admitsNext reports whether a struct can go in now. If a unit of another client
// is missing, c is registered as waiting for it.
func (d *Doc) admitsNext(c *client, it *item) bool {
	if it.id.Clock > c.state {
		return false
	}
	id, missing := d.missing(it)
	if missing && !(c.waits && c.waitsFor == id) {
		c.waits, c.waitsFor = true, id
		heap.Push(&d.client(id.Client).waiters, waiter{id.Clock, c})
	}
	return !missing
}

// dropNewest forgets what an update brought and is still parked.
func (d *Doc) dropNewest(u *Update, seq uint64) {
	d.needsSync = true
	for _, b := range u.blocks {
		c := d.clients[b.client]
		if c == nil {
			continue
		}
		c.parked = slices.DeleteFunc(c.parked, func(r *run) bool {
			if r.seq != seq {
				return false
			}
			d.parked.add(r.items, -1)
			if c.starts[r.first()] == r {
				delete(c.starts, r.first())
			}
			return true
		})
		heap.Init(&c.parked)
	}
}

// parkDeletes keeps a range of units that are not here, unless too many are kept.
func (d *Doc) parkDeletes(id uint64, r Range) {
	if d.parked.ranges >= d.limits.ParkedRanges {
		d.needsSync = true
		return
	}
	c := d.client(id)
	before := len(c.deletes)
	c.deletes = insertRange(c.deletes, r)
	d.parked.ranges += len(c.deletes) - before
}

// insertRange puts a range into a normal list.
func insertRange(list []Range, r Range) []Range {
	i, _ := slices.BinarySearchFunc(list, r.Clock, func(o Range, clock uint64) int {
		if o.End() < clock {
			return -1
		}
		return 1
	})
	j := i
	for ; j < len(list) && list[j].Clock <= r.End(); j++ {
		start := min(r.Clock, list[j].Clock)
		r = Range{start, max(r.End(), list[j].End()) - start}
	}
	return slices.Replace(list, i, j, r)
}

// applyDeletes deletes what is here of an update's delete set and parks the rest.
func (d *Doc) applyDeletes(s IDSet) {
	for _, id := range descending(s) {
		for _, r := range s[id] {
			d.deleteKnown(id, r)
		}
	}
}

func (d *Doc) deleteKnown(id uint64, r Range) {
	state := d.state(id)
	if known := min(r.End(), state); known > r.Clock {
		d.deleteRange(id, Range{r.Clock, known - r.Clock})
		r = Range{known, r.End() - known}
	}
	if r.Length > 0 {
		d.parkDeletes(id, r)
	}
}

// applyParkedDeletes deletes what was parked and has come meanwhile.
func (d *Doc) applyParkedDeletes() {
	for i := 0; i < len(d.tx.before); i++ {
		c := d.tx.before[i].client
		for len(c.deletes) > 0 && c.deletes[0].Clock < c.state {
			r := c.deletes[0]
			c.deletes = c.deletes[1:]
			d.parked.ranges--
			d.deleteKnown(c.id, r)
		}
	}
}

// encodeParked returns what is parked and not covered by sv as an update, nil if
// there is nothing.
func (d *Doc) encodeParked(sv StateVector) []byte {
	if d.parked == (parkedSizes{}) {
		return nil
	}
	var all []block
	deletes := make(IDSet)
	for id, c := range d.clients {
		for _, r := range c.parked {
			if r.end() > sv[id] {
				all = append(all, block{client: id, items: r.items})
			}
		}
		if len(c.deletes) > 0 {
			deletes[id] = c.deletes
		}
	}
	return writeBlocks(all, sv, deletes)
}
