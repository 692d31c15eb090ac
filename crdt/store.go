package crdt

import (
	"slices"
	"sort"
)

// client holds the structs of one client, without gaps from clock 0, and its parked structs and deletes.
// Structs are stored in chunks, so that an insertion moves only a few.
type client struct {
	id     uint64
	state  uint64 // the clock after the last struct
	chunks [][]*item
	txn    uint64 // the last transaction that recorded the client's state

	parked   byClock[*run]   // runs of structs that cannot be integrated yet
	starts   map[uint64]*run // the same by their first clock
	waiters  byClock[waiter] // clients whose next struct depends on this one
	waits    bool            // registered as a waiter
	waitsFor ID              // the unit it depends on
	deletes  []Range         // of unknown units, normal
}

const chunkSize = 256

// append appends the struct that begins at the client's state.
func (c *client) append(it *item) {
	n := len(c.chunks)
	if n == 0 || len(c.chunks[n-1]) >= chunkSize {
		var chunk []*item
		if n > 0 { // the first chunk may stay small
			chunk = make([]*item, 0, chunkSize)
		}
		c.chunks = append(c.chunks, chunk)
		n++
	}
	c.chunks[n-1] = append(c.chunks[n-1], it)
	c.state = it.end()
}

// at is the position of a struct in the store.
type at struct{ chunk, i int }

// find returns the position of the struct that contains a clock below the state.
func (c *client) find(clock uint64) at {
	// Most lookups are for the last chunk.
	n := len(c.chunks) - 1
	if c.chunks[n][0].id.Clock > clock {
		n = sort.Search(n, func(i int) bool { return c.chunks[i][0].id.Clock > clock }) - 1
	}
	chunk := c.chunks[n]
	lo, hi := 0, len(chunk)-1
	if chunk[hi].id.Clock <= clock {
		return at{n, hi}
	}
	// Structs are often of similar length: interpolate first, then try a neighbour, then bisect.
	first := chunk[lo].id.Clock
	mid := int((clock - first) * uint64(hi) / (chunk[hi].id.Clock - first))
	for try := 0; lo < hi-1; try++ {
		if try > 1 {
			mid = int(uint(lo+hi) / 2)
		}
		mid = min(max(mid, lo+1), hi-1)
		if chunk[mid].id.Clock <= clock {
			lo = mid
			mid++
		} else {
			hi = mid
			mid--
		}
	}
	return at{n, lo}
}

func (c *client) item(p at) *item { return c.chunks[p.chunk][p.i] }

// next returns the position after p; its chunk may be beyond the end.
func (c *client) next(p at) at {
	if p.i++; p.i == len(c.chunks[p.chunk]) {
		return at{p.chunk + 1, 0}
	}
	return p
}

// insertAfter inserts the right half of a split struct.
func (c *client) insertAfter(p at, it *item) {
	chunk := slices.Insert(c.chunks[p.chunk], p.i+1, it)
	c.chunks[p.chunk] = chunk
	if len(chunk) > 2*chunkSize {
		half := slices.Clone(chunk[chunkSize:])
		clear(chunk[chunkSize:])
		c.chunks[p.chunk] = chunk[:chunkSize]
		c.chunks = slices.Insert(c.chunks, p.chunk+1, half)
	}
}

// merge joins neighbours among the structs that contain the clocks from-1 to to, and returns how many
// structs were removed.
func (c *client) merge(from, to uint64) (gone int) {
	if c.state == 0 || from >= c.state {
		return 0
	}
	if from > 0 {
		from--
	}
	p := c.find(from)
	var before *item // the last kept struct
	empty := false
	for n := p.chunk; n < len(c.chunks); n++ {
		chunk, first := c.chunks[n], 0
		if n == p.chunk {
			before, first = chunk[p.i], p.i+1
		}
		end := first
		for end < len(chunk) && chunk[end].id.Clock <= to {
			end++
		}
		kept := slices.DeleteFunc(chunk[first:end], func(it *item) bool {
			if joins(before, it) {
				join(before, it)
				return true
			}
			before = it
			return false
		})
		if joined := end - first - len(kept); joined > 0 {
			gone += joined
			c.chunks[n] = slices.Delete(chunk, end-joined, end)
			empty = empty || len(c.chunks[n]) == 0
		}
		if end < len(chunk) {
			break
		}
	}
	if empty {
		c.chunks = slices.DeleteFunc(c.chunks, func(chunk []*item) bool { return len(chunk) == 0 })
	}
	return gone
}

// get returns the struct that contains a known unit.
func (d *Doc) get(id ID) *item {
	c := d.known(id.Client)
	return c.item(c.find(id.Clock))
}

// splitAt splits the struct that contains a known unit before or, with after 1, after the unit, and returns both
// parts: the whole struct twice if it begins or ends there. GC structs are never split.
func (d *Doc) splitAt(id ID, after uint64) (left, right *item) {
	c := d.known(id.Client)
	p := c.find(id.Clock)
	it := c.item(p)
	k := id.Clock + after - it.id.Clock
	if k == 0 || k == uint64(it.length) || it.kind == kindGC {
		return it, it
	}
	right = d.split(it, uint32(k))
	c.insertAfter(p, right)
	d.items++
	return it, right
}

// startingAt returns the struct that begins with a unit.
func (d *Doc) startingAt(id ID) *item {
	_, it := d.splitAt(id, 0)
	return it
}

// endingAt returns the struct that ends with a unit.
func (d *Doc) endingAt(id ID) *item {
	it, _ := d.splitAt(id, 1)
	return it
}

// knows reports whether a unit is in the store.
func (d *Doc) knows(id ID) bool { return id.Clock < d.state(id.Client) }

func (d *Doc) state(id uint64) uint64 {
	if c := d.known(id); c != nil {
		return c.state
	}
	return 0
}

// known returns a client's structs, nil if there are none. Most lookups repeat the last one.
func (d *Doc) known(id uint64) *client {
	if c := d.recent; c != nil && c.id == id {
		return c
	}
	c := d.clients[id]
	if c != nil {
		d.recent = c
	}
	return c
}

// client returns a client's structs, creating an empty record if necessary.
func (d *Doc) client(id uint64) *client {
	c := d.known(id)
	if c == nil {
		c = &client{id: id}
		d.clients[id] = c
	}
	return c
}

// slabSize is how many items are allocated at once. It is small, because one item that is in use keeps the
// slab in memory.
const slabSize = 32

func (d *Doc) alloc() *item {
	if len(d.slab) == 0 {
		d.slab = make([]item, slabSize)
	}
	it := &d.slab[0]
	d.slab = d.slab[1:]
	return it
}
