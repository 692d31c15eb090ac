package crdt

import (
	"cmp"
	"slices"
)

// Succession leads from a document to the one that took its place, with the same content and none
// of the history: updates that were written for the former and come late are carried over. It
// belongs to one goroutine at a time, as the documents do.
type Succession struct {
	former *Doc
	moved  moves
	folded map[string]bool // counters
	into   *Doc            // while an update is carried over
	size   int             // about what the open transaction of into has
	update [][]byte
	err    error
}

// Succeed returns a document with what d shows and none of its history, no marks of what was deleted
// and one client id, and what carries late updates of d over to it. Content of all
// kinds comes along as it is. Of the root counters that are named one entry is left each.
//
// From now on d belongs to the Succession: it must not be edited. The two must never be merged, or
// content doubles.
func Succeed(d *Doc, o Options, counters ...string) (*Doc, *Succession, error) {
	if d == nil || d.tx.open || d.notifying {
		return nil, nil, errorf(CodeInvalid, nil, "a document cannot be succeeded inside a transaction or an observer")
	}
	fresh := New(o)
	s := &Succession{former: d, moved: moves{}, folded: map[string]bool{}}
	for _, name := range counters {
		s.folded[name] = true
	}
	// A document may be larger and deeper than what one update may bring.
	limits := fresh.limits
	fresh.limits.Update, fresh.limits.Depth = 1<<30, maxDepth
	for _, name := range d.Roots() {
		from, to := d.roots[name], fresh.root(name)
		to.cast = from.cast
		// Each root in a transaction of its own: the journal of one is kept until its end.
		if _, err := fresh.Transact(nil, func() error { return s.copyRoot(fresh, from, to) }); err != nil {
			return nil, nil, err
		}
	}
	fresh.limits = limits
	s.moved.sort()
	return fresh, s, nil
}

// Former returns the document before: to be read, and asked what it would admit.
func (s *Succession) Former() *Doc { return s.former }

// copyRoot copies what is live in a root and in the types inside it.
func (s *Succession) copyRoot(d *Doc, from, to *node) error {
	if s.folded[from.name] {
		return s.fold(d, from, to)
	}
	type pair struct{ from, to *node }
	for todo := []pair{{from, to}}; len(todo) > 0; {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		copyOne := func(it *item, put func(one *item)) error {
			one, err := d.copyOf(p.to, it)
			if err != nil {
				return err
			}
			put(one)
			s.moved.note(it.id, one)
			if it.kind == kindType {
				todo = append(todo, pair{it.node, one.node})
			}
			return nil
		}
		var last *item
		for it := p.from.head; it != nil; it = it.right {
			if it.deleted() {
				continue
			}
			if err := copyOne(it, func(one *item) { d.insert(p.to, last, one); last = one }); err != nil {
				return err
			}
		}
		for _, key := range sortedKeys(p.from.keys) {
			if it := p.from.live(key); it != nil {
				if err := copyOne(it, func(one *item) { d.put(p.to, key, one) }); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// fold makes one entry of a counter's.
func (s *Succession) fold(d *Doc, from, to *node) error {
	if sum := (&Counter{&Map{from}}).Value(); sum != 0 {
		return (&Counter{&Map{to}}).Add(sum)
	}
	return nil
}

// copyOf returns a new item for a type with the content of another, which may be of another document.
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

// carryBytes is about how much one transaction carries over, so that its update can travel.
const carryBytes = 128 << 10

// Carry applies a late update to the former document and makes what it changes there in the document
// that took its place, which has the ids that Succeed gave, in edits of that replica: content goes beside
// what it was beside, also if that is no longer there; a key gets the value that it has in the former. What is
// known changes nothing. It returns the updates to send to others. Call
// [Doc.Admit] of the former document first with one from a peer.
func (s *Succession) Carry(u *Update, into *Doc) (updates [][]byte, err error) {
	if into == nil || into == s.former || into.tx.open || into.notifying {
		return nil, errorf(CodeInvalid, nil, "a late update can only be carried into another document, outside transactions and observers")
	}
	s.into, s.update, s.err = into, nil, nil
	s.former.successor = s
	defer func() { s.into, s.update, s.former.successor = nil, nil, nil }()
	if _, err := s.former.ApplyUpdate(u, nil); err != nil {
		return nil, err
	}
	return s.update, s.err
}

// capture carries over what the former document's open transaction changed, while the content
// that it deleted is still there.
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

// countFolded adds what late entries of folded counters add.
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
		if f, ok := it.value(it.length - 1).(float64); ok && f == float64(int64(f)) {
			late[it.parent.name] += sign * int64(f)
		}
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

// remove deletes what took the place of an item that was deleted.
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

// add puts a copy of a new item where the item is.
func (s *Succession) add(it *item) error {
	n := s.home(it)
	if n == nil {
		return nil
	}
	one, err := s.into.copyOf(n, it)
	if err != nil {
		return err
	}
	if it.has(flagKeyed) {
		s.into.put(n, it.key, one)
	} else {
		s.into.insert(n, s.behind(n, it), one)
	}
	s.moved.insert(it.id, one)
	s.size += len(it.data) + structOverhead
	return nil
}

// home returns the type that a new item goes into, nil if it shows nowhere.
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

// behind returns the item behind which a copy goes: that of the nearest unit on the left which has
// one. All copies in a list are in the order of what they are copies of.
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

// moves has where units are that were copied, by client and in order of their clocks.
type moves map[uint64][]movedRange

// movedRange says that units were copied under other ids.
type movedRange struct {
	Range
	to ID
}

// note adds a copy; sort must follow.
func (m moves) note(old ID, it *item) {
	list := m[old.Client]
	if n := len(list); n > 0 && list[n-1].precedes(old, it.id) {
		list[n-1].Length += uint64(it.length)
		return
	}
	m[old.Client] = append(list, movedRange{Range{old.Clock, uint64(it.length)}, it.id})
}

// precedes reports whether a unit and its copy both follow those of the range.
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

// insert adds a copy to sorted ones.
func (m moves) insert(old ID, it *item) {
	list := m[old.Client]
	i := m.after(old)
	if i > 0 && list[i-1].precedes(old, it.id) {
		list[i-1].Length += uint64(it.length)
		return
	}
	m[old.Client] = slices.Insert(list, i, movedRange{Range{old.Clock, uint64(it.length)}, it.id})
}

// after returns the index of the first range of the client that begins behind a unit.
func (m moves) after(id ID) int {
	i, _ := slices.BinarySearchFunc(m[id.Client], id.Clock, func(r movedRange, clock uint64) int {
		if r.Clock <= clock {
			return -1
		}
		return 1
	})
	return i
}

// find returns where a unit is now, and how many of the n units from it on are with it; or, if it was
// not copied, how many were not.
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

// last returns where the last of the units is that were copied of n from id on.
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

// Churn is what a document carries along for what it shows.
type Churn struct {
	Items, Live int // structs in the store, and those of them that are not deleted
	Clients     int // ids under which it was written
	Bytes       int // about what a snapshot takes
}

// Churn counts what the document consists of. It looks at every item.
func (d *Doc) Churn() Churn {
	c := Churn{Items: d.items, Clients: len(d.clients), Bytes: d.bytes + 12*d.items}
	for _, cl := range d.clients {
		for _, chunk := range cl.chunks {
			for _, it := range chunk {
				if !it.deleted() {
					c.Live++
				}
			}
		}
	}
	return c
}

// Worn reports whether a successor would be worth while: much of the document is history, or many have
// written it. A document that is only large is not worn.
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
