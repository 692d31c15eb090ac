package crdt

import (
	"cmp"
	"slices"
)

// Succession connects a document with its successor, which has the same content without the history: late
// updates for the former document are applied to the successor. It must be used by one goroutine at a time,
// like the documents.
type Succession struct {
	former *Doc
	moved  moves
	folded map[string]bool // names of root counters of which only the sum was kept
	into   *Doc            // the successor, while a late update is carried over
	size   int             // approximate size of into's open transaction
	update [][]byte
	err    error
}

// Succeed returns a successor of d with the visible content, no tombstones and a single client id, and the
// Succession that carries late updates over to it. Content of all kinds is preserved. Each of the root
// counters named is reduced to one entry with the sum.
//
// From then on d belongs to the Succession and must not be edited. The two documents must never be merged,
// or content is duplicated.
func Succeed(d *Doc, o Options, counters ...string) (*Doc, *Succession, error) {
	if d == nil || d.tx.open || d.notifying {
		return nil, nil, errorf(CodeInvalid, nil, "a document cannot be succeeded inside a transaction or an observer")
	}
	fresh := New(o)
	s := &Succession{former: d, moved: moves{}, folded: map[string]bool{}}
	for _, name := range counters {
		s.folded[name] = true
	}
	// A document may be larger and deeper than the limits of one update.
	limits := fresh.limits
	fresh.limits.Update, fresh.limits.Depth = 1<<30, maxDepth
	for _, name := range d.Roots() {
		from, to := d.roots[name], fresh.root(name)
		to.cast = from.cast
		// One transaction per root, since the journal of each is in memory until its end.
		if _, err := fresh.Transact(nil, func() error { return s.copyRoot(fresh, from, to) }); err != nil {
			return nil, nil, err
		}
	}
	fresh.limits = limits
	s.moved.sort()
	return fresh, s, nil
}

// Former returns the former document, for reading and [Doc.Admit].
func (s *Succession) Former() *Doc { return s.former }

// copyRoot copies the live content of a root, including the types inside it.
func (s *Succession) copyRoot(d *Doc, from, to *node) error {
	if s.folded[from.name] {
		return s.fold(d, from, to)
	}
	type pair struct{ from, to *node }
	for todo := []pair{{from, to}}; len(todo) > 0; {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		var last *item
		copyOne := func(it *item) error {
			one, err := d.insertCopy(p.to, last, it)
			if err != nil {
				return err
			}
			last = one
			s.moved.note(it.id, one)
			if it.kind == kindType {
				todo = append(todo, pair{it.node, one.node})
			}
			return nil
		}
		for it := p.from.head; it != nil; it = it.right {
			if it.deleted() {
				continue
			}
			if err := copyOne(it); err != nil {
				return err
			}
		}
		for _, key := range sortedKeys(p.from.keys) {
			if it := p.from.live(key); it != nil {
				if err := copyOne(it); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// fold reduces a counter to one entry.
func (s *Succession) fold(d *Doc, from, to *node) error {
	if sum := (&Counter{&Map{from}}).Value(); sum != 0 {
		return (&Counter{&Map{to}}).Add(sum)
	}
	return nil
}

// insertCopy inserts a new item in n with the content of an item of any document: as the value of the same
// key, or else after left.
func (d *Doc) insertCopy(n *node, left, from *item) (*item, error) {
	it, err := d.copyOf(n, from)
	switch {
	case err != nil:
		return nil, err
	case from.has(flagKeyed):
		d.put(n, from.key, it)
	default:
		d.insert(n, left, it)
	}
	return it, nil
}

// copyOf returns a new item, to be inserted in n, with the content of an item of any document.
func (d *Doc) copyOf(n *node, from *item) (*item, error) {
	if from.kind == kindType {
		it, err := d.newType(n, from.node.ref)
		if err == nil {
			it.node.tag = from.node.tag
		}
		return it, err
	}
	it := d.alloc()
	it.kind, it.length = from.kind, from.length
	it.data, it.ends = slices.Clip(from.data), from.ends
	if it.ends != nil {
		it.ends = &ends{base: it.ends.base, at: slices.Clip(it.ends.at)}
	}
	it.flags = from.flags & flagASCII
	return it, nil
}

// carryBytes is the approximate size of one transaction of carried changes, and so of its update.
const carryBytes = 128 << 10

// Carry applies a late update to the former document and repeats its changes in into, the successor, as
// edits of that replica: content is inserted beside the copies of its neighbours, even deleted ones; a key
// gets the value that it has in the former document. Known updates change nothing. Carry returns the
// updates to send to other replicas. Call [Doc.Admit] of the former document first for updates of a peer.
func (s *Succession) Carry(u *Update, into *Doc) (updates [][]byte, err error) {
	if into == nil || into == s.former || into.tx.open || into.notifying {
		return nil, errorf(CodeInvalid, nil, "a late update can only be carried over to another document, outside transactions and observers")
	}
	s.into, s.update, s.err = into, nil, nil
	s.former.successor = s
	defer func() { s.into, s.update, s.former.successor = nil, nil, nil }()
	if _, err := s.former.ApplyUpdate(u, nil); err != nil {
		return nil, err
	}
	return s.update, s.err
}

// capture repeats the changes of the former document's open transaction, before deleted content is freed.
func (s *Succession) capture() {
	t := &s.former.tx
	s.countFolded()
	for steps := 0; steps < len(t.removed)+len(t.added) && s.err == nil; {
		s.size = 0
		update, err := s.into.Transact(s, func() error {
			for ; steps < len(t.removed)+len(t.added) && s.size < carryBytes; steps++ {
				if steps < len(t.removed) {
					s.remove(t.removed[steps])
				} else if err := s.add(t.added[steps-len(t.removed)]); err != nil {
					return err
				}
			}
			return nil
		})
		if s.err = err; update != nil {
			s.update = append(s.update, update)
		}
	}
}

// countFolded adds the changes of folded counters' entries.
func (s *Succession) countFolded() {
	if len(s.folded) == 0 {
		return
	}
	t := &s.former.tx
	late := map[string]int64{}
	count := func(it *item, sign int64) {
		if it.parent == nil || it.parent.item != nil || !it.has(flagKeyed) || !s.folded[it.parent.name] {
			return
		}
		i, _ := integral(it.value(it.length - 1))
		late[it.parent.name] += sign * i
	}
	for _, it := range t.removed {
		if !s.former.isNew(it) {
			count(it, -1)
		}
	}
	for _, it := range t.added {
		if !it.deleted() {
			count(it, 1)
		}
	}
	for _, name := range sortedKeys(late) {
		if late[name] == 0 || s.err != nil {
			continue
		}
		update, err := s.into.Transact(s, func() error { return s.into.Counter(name).Add(late[name]) })
		if s.err = err; update != nil {
			s.update = append(s.update, update)
		}
	}
}

// remove deletes the copy of an item that was deleted.
func (s *Succession) remove(it *item) {
	if s.former.isNew(it) {
		return
	}
	for id, n := it.id, uint64(it.length); n > 0; {
		to, length, ok := s.moved.find(id, n)
		if ok && s.into.state(to.Client) >= to.Clock+length {
			s.into.deleteRange(to.Client, Range{to.Clock, length})
		}
		id.Clock += length
		n -= length
	}
}

// add inserts a copy of a new item at the item's place.
func (s *Succession) add(it *item) error {
	n := s.home(it)
	if n == nil {
		return nil
	}
	var left *item
	if !it.has(flagKeyed) {
		left = s.behind(n, it)
	}
	one, err := s.into.insertCopy(n, left, it)
	if err != nil {
		return err
	}
	s.moved.insert(it.id, one)
	s.size += len(it.data) + structOverhead
	return nil
}

// home returns the successor's type for a new item, nil if the item is not visible.
func (s *Succession) home(it *item) *node {
	if it.deleted() || it.parent == nil {
		return nil
	}
	holder := it.parent.item
	if holder == nil {
		if s.folded[it.parent.name] && it.has(flagKeyed) {
			return nil
		}
		return s.into.root(it.parent.name)
	}
	id, _, ok := s.moved.find(holder.id, 1)
	if !ok || !s.into.knows(id) {
		return nil
	}
	if n := s.into.get(id).node; n != nil && !n.deleted() {
		return n
	}
	return nil
}

// behind returns the item after which a copy is inserted: the copy of the nearest unit on the left that has
// one. All copies in a list are in the order of their originals.
func (s *Succession) behind(n *node, it *item) *item {
	for o := it.left; o != nil; o = o.left {
		id, ok := s.moved.last(o.id, o.length)
		if !ok || !s.into.knows(id) {
			continue
		}
		if left := s.into.get(id); left.kind != kindGC && left.parent == n {
			return s.into.endingAt(id)
		}
	}
	return nil
}

// moves maps units to their copies, by client and in order of their clocks.
type moves map[uint64][]movedRange

// movedRange is a range of units with the id of the first copy.
type movedRange struct {
	Range
	to ID
}

// note adds a copy; sort must be called afterwards.
func (m moves) note(old ID, it *item) {
	list := m[old.Client]
	if n := len(list); n > 0 && list[n-1].precedes(old, it.id) {
		list[n-1].Length += uint64(it.length)
		return
	}
	m[old.Client] = append(list, movedRange{Range{old.Clock, uint64(it.length)}, it.id})
}

// precedes reports whether a unit and its copy directly follow those of the range.
func (r movedRange) precedes(old, to ID) bool {
	return r.End() == old.Clock && r.to.Client == to.Client && r.to.Clock+r.Length == to.Clock
}

func (m moves) sort() {
	for client, list := range m {
		slices.SortFunc(list, func(a, b movedRange) int { return cmp.Compare(a.Clock, b.Clock) })
		kept := list[:0]
		for _, r := range list {
			if n := len(kept); n > 0 && kept[n-1].precedes(ID{client, r.Clock}, r.to) {
				kept[n-1].Length += r.Length
				continue
			}
			kept = append(kept, r)
		}
		m[client] = kept
	}
}

// insert adds a copy to sorted moves.
func (m moves) insert(old ID, it *item) {
	list := m[old.Client]
	i := m.after(old)
	if i > 0 && list[i-1].precedes(old, it.id) {
		list[i-1].Length += uint64(it.length)
		return
	}
	m[old.Client] = slices.Insert(list, i, movedRange{Range{old.Clock, uint64(it.length)}, it.id})
}

// after returns the index of the client's first range that begins after a unit.
func (m moves) after(id ID) int {
	i, _ := slices.BinarySearchFunc(m[id.Client], id.Clock, func(r movedRange, clock uint64) int {
		if r.Clock <= clock {
			return -1
		}
		return 1
	})
	return i
}

// find returns the copy of a unit, and how many of the n units from it on were copied with it; or, if it
// was not copied, how many of them were not.
func (m moves) find(id ID, n uint64) (to ID, length uint64, ok bool) {
	list := m[id.Client]
	i := m.after(id)
	if i > 0 && list[i-1].End() > id.Clock {
		r := list[i-1]
		return ID{r.to.Client, r.to.Clock + id.Clock - r.Clock}, min(n, r.End()-id.Clock), true
	}
	if i < len(list) {
		n = min(n, list[i].Clock-id.Clock)
	}
	return ID{}, n, false
}

// last returns the copy of the last of n units from id that was copied.
func (m moves) last(id ID, n uint32) (to ID, ok bool) {
	end := id.Clock + uint64(n)
	list := m[id.Client]
	i := m.after(ID{id.Client, end - 1})
	if i == 0 || list[i-1].End() <= id.Clock {
		return ID{}, false
	}
	r := list[i-1]
	return ID{r.to.Client, r.to.Clock + min(end, r.End()) - r.Clock - 1}, true
}

// Churn compares the size of a document's history with its visible content.
type Churn struct {
	Items, Live int // structs in the store, and those that are not deleted
	Clients     int // client ids in the document
	Bytes       int // approximate size of a snapshot
}

// Churn examines every item.
func (d *Doc) Churn() Churn {
	c := Churn{Items: d.items, Clients: len(d.clients), Bytes: d.bytes + 12*d.items}
	for it := range d.structs {
		if !it.deleted() {
			c.Live++
		}
	}
	return c
}

// Worn reports whether a successor is worthwhile: because most of the document is history, or because of
// the number of client ids. A large document is not worn for its size alone.
func (c Churn) Worn() bool {
	switch {
	case c.Items > 50_000 && c.Items > 10*c.Live:
	case c.Clients > 2000:
	case c.Bytes > 4<<20 && c.Items > 4*c.Live:
	default:
		return false
	}
	return true
}
