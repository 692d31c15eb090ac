package crdt

import (
	"container/heap"
	"slices"
)

// A struct with missing dependencies is parked, with all later ones of its client. Runs of parked structs are
// ordered by their first clock. The first run waits until its own client's state reaches it, or is registered with
// the client that it depends on. So each struct is examined only a few times, whatever the order of the updates.

// run is a sequence of consecutive parked structs of one client.
type run struct {
	block
	seq uint64 // number of the update that contained it
}

// byClock is a heap of what begins at, or waits for, a clock.
type byClock[T interface{ first() uint64 }] []T

func (h byClock[T]) Len() int           { return len(h) }
func (h byClock[T]) Less(i, j int) bool { return h[i].first() < h[j].first() }
func (h byClock[T]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byClock[T]) Push(x any)        { *h = append(*h, x.(T)) }
func (h *byClock[T]) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	clear((*h)[last:])
	*h = (*h)[:last]
	return x
}

// waiter is a client whose next struct depends on a unit.
type waiter struct {
	clock  uint64
	client *client
}

func (w waiter) first() uint64 { return w.clock }

// Pending is the content that waits for missing structs.
type Pending struct {
	Structs int
	Bytes   int // of content, approximately
	Ranges  int // of deletes
	// Missing has the known clock of each client that is waited for.
	Missing StateVector
	// NeedsSync is set when parked content was dropped, until a whole state is applied: see [Doc.Synced].
	NeedsSync bool
}

// Pending returns what is parked.
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

// DropParked drops what is parked and sets NeedsSync.
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

// Synced clears NeedsSync. Call it after a whole state of another replica has been applied.
func (d *Doc) Synced() { d.needsSync = false }

type parkedSizes struct{ structs, bytes, ranges int }

const itemOverhead = 160

// add counts parked items (sign 1) or items that are no longer parked (-1).
func (s *parkedSizes) add(items []*item, sign int) {
	for _, it := range items {
		s.structs += sign
		s.bytes += sign * (len(it.data) + itemOverhead)
	}
}

// applyBlock integrates the structs of a block, parks those with missing dependencies, and integrates
// parked ones that depend on the block.
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

// integrateRun integrates consecutive structs until one has a missing dependency, and returns the rest.
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

// park keeps structs for later. Of two runs with the same first unit the longer one is kept.
func (d *Doc) park(c *client, items []*item, seq uint64) {
	r := c.starts[items[0].id.Clock]
	switch {
	case r == nil:
		r = &run{block{c.id, items}, seq}
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

// wake continues the clients that waited for c, and in turn those that waited for them.
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

// advance integrates a client's parked structs as far as possible.
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
			heap.Pop(&c.parked)
			continue
		}
		if c.starts[r.first()] == nil {
			c.starts[r.first()] = r
		}
		heap.Fix(&c.parked, 0)
	}
}

// admitsNext reports whether a struct can be integrated now. If a unit of another client is missing, c is
// registered as waiting for it.
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

// dropNewest drops the structs of an update that are still parked.
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

// parkDeletes keeps a range of unknown units, unless too many ranges are kept.
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

// insertRange inserts a range into a normal list.
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

// deleteKnown deletes the known units of a range and parks the rest.
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

// applyParkedDeletes deletes parked units that have become known.
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
