package crdt

import (
	"cmp"
	"slices"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Change is what one transaction changed.
type Change struct {
	Update []byte // to send to other replicas
	Origin any    // the argument of Transact or Apply
	Local  bool   // an edit of this replica
	Types  []TypeChange
}

// TypeChange is what changed in one shared type, without the types inside it.
type TypeChange struct {
	// Path is the path from the root: its name, then keys (string) and indexes (int).
	Path []any
	Type any // *Map, *Array or *Text; nil for a root that was not used as one
	Keys map[string]KeyChange
	// List describes the changes of the list, in order from its beginning.
	List []ListChange
	// Formatted reports that attributes changed: read them with [Text.Runs].
	Formatted bool
	node      *node
}

// KeyChange is the change of a key's value.
type KeyChange struct {
	Old, New       any
	HadOld, HasNew bool
}

// ListChange is one step through a list; one field is set.
type ListChange struct {
	Retain int // units that are unchanged
	Delete int // units that were deleted here
	Insert any // inserted content: string in a text, []any otherwise
}

// observers are called in the order in which they were added.
type observers struct {
	changes callbacks[observer]
	updates callbacks[func(update []byte, origin any, local bool)]
}

type observer struct {
	on *node // nil for all types
	f  func(Change)
}

// callbacks is a list of functions that may be changed while they are called.
type callbacks[F any] []*F

func (l *callbacks[F]) add(f F) (cancel func()) {
	*l = append(slices.Clip(*l), &f)
	return func() {
		*l = slices.DeleteFunc(slices.Clone(*l), func(other *F) bool { return other == &f })
	}
}

// Observe calls f after each transaction that changed something, in the goroutine of Transact or Apply,
// until cancel is called. f must not edit the document.
func (d *Doc) Observe(f func(Change)) (cancel func()) { return d.observe(nil, f) }

// OnUpdate calls f with each update, made or applied here, that changed something. It costs less than Observe.
func (d *Doc) OnUpdate(f func(update []byte, origin any, local bool)) (cancel func()) {
	return d.observers.updates.add(f)
}

func (d *Doc) observe(on *node, f func(Change)) func() {
	return d.observers.changes.add(observer{on, f})
}

// Observe calls f with the changes of the map, but not of its values.
func (m *Map) Observe(f func(Change)) (cancel func()) { return m.n.doc.observe(m.n, f) }

// Observe calls f with the changes of the array, but not of its elements.
func (a *Array) Observe(f func(Change)) (cancel func()) { return a.n.doc.observe(a.n, f) }

// Observe calls f with the changes of the text.
func (t *Text) Observe(f func(Change)) (cancel func()) { return t.n.doc.observe(t.n, f) }

func (d *Doc) observed() bool { return len(d.observers.changes) > 0 || d.successor != nil }

func (d *Doc) notify(types []TypeChange, update []byte, local bool, origin any) {
	if len(d.observers.changes)+len(d.observers.updates) == 0 {
		return
	}
	d.notifying = true
	defer func() { d.notifying = false }()
	for _, f := range d.observers.updates {
		d.call(func() { (*f)(update, origin, local) })
	}
	change := Change{Update: update, Origin: origin, Local: local, Types: types}
	for _, o := range d.observers.changes {
		if o.on == nil {
			d.call(func() { o.f(change) })
			continue
		}
		for _, t := range types {
			if t.node == o.on {
				one := change
				one.Types = []TypeChange{t}
				d.call(func() { o.f(one) })
			}
		}
	}
}

// call calls an observer.
func (d *Doc) call(f func()) {
	if d.panicked == nil {
		f()
		return
	}
	if p := fault.Catch(f); p != nil {
		d.panicked(p)
	}
}

// describe returns what the open transaction changed, before deleted content is freed.
func (d *Doc) describe() []TypeChange {
	if len(d.observers.changes) == 0 {
		return nil
	}
	touched := make(map[*node][]*item)
	for _, it := range d.tx.added {
		touched[it.parent] = append(touched[it.parent], it)
	}
	for _, it := range d.tx.removed {
		if !d.isNew(it) {
			touched[it.parent] = append(touched[it.parent], it)
		}
	}
	var changes []TypeChange
	for n, items := range touched {
		if n.deleted() {
			continue // part of the change of the type that contained it
		}
		c := TypeChange{Path: n.path(), node: n}
		if n.ref != typeRoot {
			c.Type = n.handle()
		} else if n.cast != typeRoot {
			c.Type = n.handleAs(n.cast)
		}
		d.describeKeys(&c, items)
		d.describeList(&c, items)
		if len(c.Keys)+len(c.List) > 0 || c.Formatted {
			changes = append(changes, c)
		}
	}
	slices.SortFunc(changes, func(a, b TypeChange) int {
		if c := cmp.Compare(a.node.depth, b.node.depth); c != 0 {
			return c
		}
		if a.node.item == nil || b.node.item == nil {
			return cmp.Compare(a.node.name, b.node.name)
		}
		return compareIDs(a.node.item.id, b.node.item.id)
	})
	return changes
}

// path returns the path from the root to a type that is not deleted.
func (n *node) path() []any {
	var p []any
	for ; n.item != nil; n = n.item.parent {
		if n.item.has(flagKeyed) {
			p = append(p, n.item.key)
		} else {
			_, units := n.item.before()
			p = append(p, int(units))
		}
	}
	p = append(p, n.name)
	slices.Reverse(p)
	return p
}

func (d *Doc) describeKeys(c *TypeChange, items []*item) {
	for _, it := range items {
		if !it.has(flagKeyed) {
			continue
		}
		if _, done := c.Keys[it.key]; done {
			continue
		}
		k := KeyChange{}
		tail := c.node.keys[it.key].tail
		if !tail.deleted() {
			k.New, k.HasNew = tail.value(tail.length-1), true
		}
		old := tail
		for old != nil && d.isNew(old) {
			old = old.left
		}
		if old != nil && (!old.deleted() || slices.Contains(d.tx.removed, old)) {
			k.Old, k.HadOld = old.value(old.length-1), true
		}
		if !k.HadOld && !k.HasNew || old == tail && k.HasNew {
			continue
		}
		if c.Keys == nil {
			c.Keys = make(map[string]KeyChange)
		}
		c.Keys[it.key] = k
	}
}

// describeList converts the added and deleted items into steps, in the order of the list.
func (d *Doc) describeList(c *TypeChange, items []*item) {
	type placed struct {
		it    *item
		order int
		index uint64
	}
	var list []placed
	for _, it := range items {
		if it.has(flagKeyed) {
			continue
		}
		if it.kind == kindFormat {
			c.Formatted = true
			continue
		}
		if !it.kind.countable() || d.isNew(it) && it.deleted() {
			continue
		}
		order, units := it.before()
		list = append(list, placed{it, order, units})
	}
	slices.SortFunc(list, func(a, b placed) int { return cmp.Compare(a.order, b.order) })
	list = slices.CompactFunc(list, func(a, b placed) bool { return a.it == b.it })
	at := uint64(0)
	for _, p := range list {
		if p.index > at {
			c.List = append(c.List, ListChange{Retain: int(p.index - at)})
			at = p.index
		}
		if p.it.deleted() {
			c.addDelete(int(p.it.length))
			continue
		}
		c.addInsert(p.it)
		at += uint64(p.it.length)
	}
}

func (c *TypeChange) addDelete(n int) {
	if k := len(c.List); k > 0 && c.List[k-1].Delete > 0 {
		c.List[k-1].Delete += n
		return
	}
	c.List = append(c.List, ListChange{Delete: n})
}

func (c *TypeChange) addInsert(it *item) {
	k := len(c.List)
	if it.kind == kindString {
		if k > 0 {
			if s, ok := c.List[k-1].Insert.(string); ok {
				c.List[k-1].Insert = s + string(it.data)
				return
			}
		}
		c.List = append(c.List, ListChange{Insert: string(it.data)})
		return
	}
	var values []any
	for i := range it.elements() {
		values = append(values, it.value(i))
	}
	if k > 0 {
		if before, ok := c.List[k-1].Insert.([]any); ok {
			c.List[k-1].Insert = append(before, values...)
			return
		}
	}
	c.List = append(c.List, ListChange{Insert: values})
}
