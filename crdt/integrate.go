package crdt

// missing returns a unit that must be known before a struct can be integrated.
func (d *Doc) missing(it *item) (ID, bool) {
	switch {
	case it.has(flagOrigin) && !d.knows(it.origin):
		return it.origin, true
	case it.has(flagRight) && !d.knows(it.rightOrigin):
		return it.rightOrigin, true
	case it.parent != nil && it.parent.ref != typeRoot && !d.knows(it.parent.by):
		return it.parent.by, true
	}
	return ID{}, false
}

// integrate adds a struct that begins at or before its client's state and ends after it. No unit that it
// depends on may be missing.
func (d *Doc) integrate(c *client, it *item) {
	if known := c.state - it.id.Clock; known > 0 {
		it.trim(uint32(known))
	} else {
		d.tx.whole++
	}
	// Split for the right origin first: if a malicious update names two units of one item in the wrong
	// order, the second split would otherwise change the item found by the first.
	var left, right *item
	if it.has(flagRight) {
		right = d.startingAt(it.rightOrigin)
	}
	if it.has(flagOrigin) {
		left = d.endingAt(it.origin)
	}
	if it.kind == kindGC || !d.resolve(it, left, right) {
		it.becomeGC()
		d.store(c, it)
		return
	}
	if left == nil && (right == nil || right.left != nil) || left != nil && left.right != right {
		left = d.scan(it, left, right)
	}
	d.link(c, it, left)
}

// trim removes the first units of a struct that is not yet stored.
func (it *item) trim(known uint32) {
	front := *it
	it.id.Clock += uint64(known)
	it.length -= known
	if it.kind == kindGC {
		return
	}
	cut(&front, it, known)
	it.origin = ID{it.id.Client, it.id.Clock - 1}
	it.flags |= flagOrigin
	it.parent, it.key = nil, ""
}

// resolve finds the item's parent and key. It reports false if the parent was collected or is not a type.
func (d *Doc) resolve(it, left, right *item) bool {
	by := it.parent
	it.parent = nil
	if left != nil && left.kind == kindGC || right != nil && right.kind == kindGC {
		return false
	}
	switch {
	case by != nil && by.ref == typeRoot:
		it.parent = d.root(by.name)
	case by != nil:
		if holder := d.get(by.by); holder.kind == kindType {
			it.parent = holder.node
		}
	default:
		from := left
		if from == nil {
			from = right
		}
		it.parent, it.key = from.parent, from.key
		it.flags = it.flags&^flagKeyed | from.flags&flagKeyed
	}
	return it.parent != nil
}

// scan finds the left neighbour of an item among those that others wrote at the same place. This is the rule by
// which all replicas agree: items with the same origin are ordered by client id, and the items that depend on them
// stay with them. An item was passed in this scan if its step is at least seen, and since left last moved if it is
// at least conflicts. A budget ends scans early, in a copy that is discarded (see admission.cost).
func (d *Doc) scan(it, left, right *item) *item {
	o := it.parent.first(it)
	if left != nil {
		o = left.right
	}
	seen := d.step + 1
	conflicts := seen
	for ; o != nil && o != right && (d.budget == 0 || d.step <= d.budget); o = o.right {
		d.step++
		o.step = d.step
		if o.has(flagOrigin) == it.has(flagOrigin) && o.origin == it.origin {
			if o.id.Client < it.id.Client {
				left, conflicts = o, d.step+1
			} else if o.has(flagRight) == it.has(flagRight) && o.rightOrigin == it.rightOrigin {
				break
			}
			continue
		}
		if !o.has(flagOrigin) {
			break
		}
		before := d.get(o.origin)
		if before.step < seen {
			break
		}
		if before.step < conflicts {
			left, conflicts = o, d.step+1
		}
	}
	return left
}

// link inserts an item with a known parent after left, or first if left is nil, and stores it.
func (d *Doc) link(c *client, it, left *item) {
	n := it.parent
	if it.left = left; left != nil {
		it.right, left.right = left.right, it
	} else {
		it.right = n.first(it)
		n.setFirst(it)
	}
	if it.right != nil {
		it.right.left = it
	} else if it.has(flagKeyed) {
		n.keys[it.key].tail = it
	}
	if !it.has(flagKeyed) {
		n.count(it)
	}
	d.store(c, it)
	if it.kind == kindType {
		it.node.doc = d
		it.node.depth = n.depth + 1
	}
	d.noteAdded(it)
	if it.has(flagKeyed) && it.right == nil && it.left != nil {
		d.delete(it.left)
	}
	if n.deleted() || it.has(flagKeyed) && it.right != nil {
		d.delete(it)
	}
}

// setFirst makes an item the first of its list or chain.
func (n *node) setFirst(it *item) {
	if !it.has(flagKeyed) {
		n.head = it
		return
	}
	if c := n.keys[it.key]; c != nil {
		c.head = it
		return
	}
	if n.keys == nil {
		n.keys = make(map[string]*chain)
	}
	n.keys[it.key] = &chain{head: it, tail: it}
}

// store appends a struct to its client's structs.
func (d *Doc) store(c *client, it *item) {
	d.noteClient(c)
	c.append(it)
	d.items++
	d.bytes += len(it.data)
	if it.deleted() {
		d.tx.deletes.add(it.id.Client, it.clocks())
	}
}

// delete marks an item as deleted, with everything in it.
func (d *Doc) delete(it *item) {
	if !d.deleteOne(it) || it.kind != kindType {
		return
	}
	inside := []*node{it.node}
	for len(inside) > 0 {
		n := inside[len(inside)-1]
		inside = inside[:len(inside)-1]
		n.each(func(it *item) {
			if d.deleteOne(it) && it.kind == kindType {
				inside = append(inside, it.node)
			}
		})
	}
}

// each calls f with every item of a type, its list first.
func (n *node) each(f func(*item)) {
	for it := n.head; it != nil; it = it.right {
		f(it)
	}
	for _, c := range n.keys {
		for it := c.head; it != nil; it = it.right {
			f(it)
		}
	}
}

func (d *Doc) deleteOne(it *item) bool {
	if it.deleted() {
		return false
	}
	if it.span != nil {
		it.span.add(0, -int64(it.units()), -it.formats())
	}
	it.flags |= flagDeleted
	d.tx.deletes.add(it.id.Client, it.clocks())
	d.noteRemoved(it)
	return true
}

// deleteRange deletes a range of known units.
func (d *Doc) deleteRange(id uint64, r Range) {
	c := d.clients[id]
	p := c.find(r.Clock)
	for ; p.chunk < len(c.chunks); p = c.next(p) {
		it := c.item(p)
		if it.id.Clock >= r.End() {
			return
		}
		if it.deleted() {
			continue
		}
		if it.id.Clock < r.Clock {
			right := d.startingAt(ID{id, r.Clock})
			p = c.find(right.id.Clock)
			it = right
		}
		if it.end() > r.End() {
			it = d.endingAt(ID{id, r.End() - 1})
			p = c.find(it.id.Clock)
		}
		d.delete(it)
	}
}
