package crdt

import "slices"

// span is a node of the tree that counts a list's items. A leaf is a run of neighbours in the linked list,
// an inner node has the sums of its children. It makes the item at an index, the index of an item and the
// order of two items cost O(log n).
type span struct {
	up      *span
	kids    []*span // nil in a leaf
	first   *item   // of a leaf
	items   int
	units   uint64 // visible length
	formats int    // effective attributes
}

const (
	leafItems = 64
	maxKids   = 32
)

// add adds to the sums of s and its ancestors.
func (s *span) add(items int, units int64, formats int) {
	for ; s != nil; s = s.up {
		s.items += items
		s.units += uint64(units)
		s.formats += formats
	}
}

// count adds a linked item to the tree.
func (n *node) count(it *item) {
	var s *span
	switch {
	case it.left != nil:
		s = it.left.span
	case n.list == nil:
		s = &span{first: it}
		n.list = s
	default:
		for s = n.list; s.kids != nil; s = s.kids[0] {
		}
		s.first = it
	}
	it.span = s
	s.add(1, int64(it.units()), it.formats())
	n.divide(s)
}

// countHalf adds the right half of a split item to the tree.
func (n *node) countHalf(it *item) {
	s := it.left.span
	it.span = s
	s.add(1, 0, 0)
	n.divide(s)
}

// divide splits a leaf that is too long.
func (n *node) divide(s *span) {
	if s.items <= leafItems {
		return
	}
	it := s.first
	for range s.items / 2 {
		it = it.right
	}
	r := &span{first: it}
	for range s.items - s.items/2 {
		it.span = r
		r.items++
		r.units += it.units()
		r.formats += it.formats()
		it = it.right
	}
	n.adopt(s, r)
}

// adopt inserts r, which has taken the second half of s, after s.
func (n *node) adopt(s, r *span) {
	up := s.up
	if up == nil {
		up = &span{kids: []*span{s}, items: s.items, units: s.units, formats: s.formats}
		s.up = up
		n.list = up
	}
	r.up = up
	up.kids = slices.Insert(up.kids, slices.Index(up.kids, s)+1, r)
	s.items -= r.items
	s.units -= r.units
	s.formats -= r.formats
	if len(up.kids) <= maxKids {
		return
	}
	half := &span{kids: slices.Clone(up.kids[maxKids/2:])}
	clear(up.kids[maxKids/2:])
	up.kids = up.kids[:maxKids/2]
	for _, kid := range half.kids {
		kid.up = half
		half.items += kid.items
		half.units += kid.units
		half.formats += kid.formats
	}
	n.adopt(up, half)
}

// uncount removes an item from the tree, before it is unlinked.
func (n *node) uncount(it *item) {
	s := it.span
	it.span = nil
	s.add(-1, -int64(it.units()), -it.formats())
	if s.items > 0 {
		if s.first == it {
			s.first = it.right
		}
		return
	}
	for s.up != nil && s.items == 0 {
		up := s.up
		up.kids = slices.Delete(up.kids, slices.Index(up.kids, s), slices.Index(up.kids, s)+1)
		s = up
	}
	if s.items == 0 {
		n.list = nil
		return
	}
	for len(n.list.kids) == 1 {
		n.list = n.list.kids[0]
		n.list.up = nil
	}
}

// seek returns the item that contains the unit at an index below the length, and the unit's offset in it.
func (n *node) seek(index uint64) (*item, uint32) {
	s := n.list
	for s.kids != nil {
		for _, kid := range s.kids {
			if index < kid.units {
				s = kid
				break
			}
			index -= kid.units
		}
	}
	for it := s.first; ; it = it.right {
		if u := it.units(); index < u {
			return it, uint32(index)
		} else {
			index -= u
		}
	}
}

// before returns how many items and visible units precede an item in its list.
func (it *item) before() (items int, units uint64) {
	for o := it.span.first; o != it; o = o.right {
		items++
		units += o.units()
	}
	for s := it.span; s.up != nil; s = s.up {
		for _, kid := range s.up.kids {
			if kid == s {
				break
			}
			items += kid.items
			units += kid.units
		}
	}
	return items, units
}

// eachFormat calls f with the effective attributes before stop, or all if it is nil, in order.
func (n *node) eachFormat(stop *item, f func(*item)) {
	if n.list != nil {
		n.list.eachFormat(stop, f)
	}
}

// eachFormat returns false once it has reached stop.
func (s *span) eachFormat(stop *item, f func(*item)) bool {
	for _, kid := range s.kids {
		if !kid.eachFormat(stop, f) {
			return false
		}
	}
	if s.kids != nil {
		return true
	}
	if s.formats == 0 {
		return stop == nil || stop.span != s
	}
	it := s.first
	for range s.items {
		if it == stop {
			return false
		}
		if it.formats() > 0 {
			f(it)
		}
		it = it.right
	}
	return true
}
