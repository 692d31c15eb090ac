package crdt

import "fmt"

// Steps returns the number of transactions that can be undone, for tests.
func (m *UndoManager) Steps() int { return len(m.undo) }

// Check verifies the document's internal structure, for tests.
func (d *Doc) Check() error {
	items, bytes := 0, 0
	for id, c := range d.clients {
		clock := uint64(0)
		for _, chunk := range c.chunks {
			if len(chunk) == 0 {
				return fmt.Errorf("client %d has an empty chunk", id)
			}
			for _, it := range chunk {
				if it.id != (ID{id, clock}) || it.length == 0 {
					return fmt.Errorf("client %d has %v of length %d at clock %d", id, it.id, it.length, clock)
				}
				clock = it.end()
				items++
				bytes += len(it.data)
				if err := d.checkItem(it); err != nil {
					return err
				}
			}
		}
		if clock != c.state {
			return fmt.Errorf("client %d has state %d and structs to %d", id, c.state, clock)
		}
		if c.waits && !d.waitsFor(c) {
			return fmt.Errorf("client %d waits for %v but is not registered there", id, c.waitsFor)
		}
	}
	if items != d.items {
		return fmt.Errorf("the document counts %d items, but has %d", d.items, items)
	}
	for _, n := range d.roots {
		if err := n.check(); err != nil {
			return err
		}
	}
	return nil
}

func (d *Doc) waitsFor(c *client) bool {
	for _, w := range d.clients[c.waitsFor.Client].waiters {
		if w.client == c && w.clock == c.waitsFor.Clock {
			return true
		}
	}
	return false
}

func (d *Doc) checkItem(it *item) error {
	if it.has(flagJournal) {
		return fmt.Errorf("%v is still in an undo journal", it.id)
	}
	if it.kind == kindGC {
		if it.left != nil || it.right != nil || it.parent != nil {
			return fmt.Errorf("the GC struct %v is linked", it.id)
		}
		return nil
	}
	if it.deleted() && it.kind != kindDeleted {
		return fmt.Errorf("%v is deleted and has content", it.id)
	}
	if it.left != nil && it.left.right != it || it.right != nil && it.right.left != it {
		return fmt.Errorf("the links of %v are broken", it.id)
	}
	if it.kind == kindString && (unitsOf(it.data) != uint64(it.length) || it.has(flagASCII) != (len(it.data) == int(it.length))) {
		return fmt.Errorf("the string %v has %d units, not %d", it.id, unitsOf(it.data), it.length)
	}
	if it.kind == kindAny && it.offset(it.length) != len(it.data) {
		return fmt.Errorf("the elements of %v end at %d of %d", it.id, it.offset(it.length), len(it.data))
	}
	if it.kind == kindType {
		if it.node.depth != it.parent.depth+1 {
			return fmt.Errorf("the type in %v has depth %d", it.id, it.node.depth)
		}
		return it.node.check()
	}
	return nil
}

func (n *node) check() error {
	units, items, formats := uint64(0), 0, 0
	var last *item
	for it := n.head; it != nil; it = it.right {
		if it.parent != n || it.has(flagKeyed) || it.left != last || it.span == nil {
			return fmt.Errorf("%v is wrongly in a list", it.id)
		}
		if i, u := it.before(); i != items || u != units {
			return fmt.Errorf("%v is item %d at %d, the tree says %d at %d", it.id, items, units, i, u)
		}
		units += it.units()
		formats += it.formats()
		items++
		last = it
	}
	if n.list == nil {
		if items > 0 {
			return fmt.Errorf("a list of %d items has no tree", items)
		}
	} else if n.list.items != items || n.list.units != units || n.list.formats != formats {
		return fmt.Errorf("the tree counts %d items, %d units, %d formats; there are %d, %d, %d", n.list.items, n.list.units, n.list.formats, items, units, formats)
	}
	for key, c := range n.keys {
		last = nil
		for it := c.head; it != nil; it = it.right {
			if it.parent != n || !it.has(flagKeyed) || it.key != key || it.left != last {
				return fmt.Errorf("%v does not belong in the chain of %q", it.id, key)
			}
			if it.right != nil && !it.deleted() {
				return fmt.Errorf("%v in the chain of %q was overwritten but is not deleted", it.id, key)
			}
			last = it
		}
		if c.tail != last {
			return fmt.Errorf("the chain of %q ends at %v", key, c.tail.id)
		}
	}
	return nil
}
