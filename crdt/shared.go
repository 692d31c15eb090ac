package crdt

import "github.com/parleyhub/parley/crdt/internal/lib0"

// edit runs f inside a transaction, the open one or a new one.
func (n *node) edit(f func(d *Doc) error) error {
	if n.deleted() {
		return errorf(CodeInvalid, nil, "the type was deleted")
	}
	_, err := n.doc.Transact(nil, func() error { return f(n.doc) })
	return err
}

// insert inserts a new item of this replica, with content, after left, or first if left is nil.
func (d *Doc) insert(n *node, left *item, it *item) {
	right := n.head
	if left != nil {
		right = left.right
	}
	if right != nil {
		it.flags |= flagRight
		it.rightOrigin = right.id
	}
	d.write(n, left, it)
}

// put makes a new item of this replica the value of a key.
func (d *Doc) put(n *node, key string, it *item) {
	it.key = key
	it.flags |= flagKeyed
	var left *item
	if c := n.keys[key]; c != nil {
		left = c.tail
	}
	d.write(n, left, it)
}

func (d *Doc) write(n *node, left *item, it *item) {
	c := d.client(d.id)
	it.id = ID{d.id, c.state}
	it.parent = n
	if left != nil {
		it.flags |= flagOrigin
		it.origin = left.lastID()
	}
	d.link(c, it, left)
}

// place returns the item after which content is inserted at an index, nil for the beginning. It splits the
// item that contains the index.
func (n *node) place(index uint64) *item {
	if index == 0 {
		return nil
	}
	it, offset := n.seek(index - 1)
	return n.doc.endingAt(ID{it.id.Client, it.id.Clock + uint64(offset)})
}

// remove deletes count units from an index on. Both must be within the length.
func (n *node) remove(index, count uint64) {
	if count == 0 {
		return
	}
	it, offset := n.seek(index)
	if offset > 0 {
		it = n.doc.startingAt(ID{it.id.Client, it.id.Clock + uint64(offset)})
	}
	for ; count > 0; it = it.right {
		u := it.units()
		if u == 0 {
			continue
		}
		if u > count {
			it = n.doc.endingAt(ID{it.id.Client, it.id.Clock + count - 1})
			u = count
		}
		n.doc.delete(it)
		count -= u
	}
}

func (n *node) checkRange(index, count int) error {
	switch l := n.length(); {
	case index < 0:
		return errorf(CodeInvalid, nil, "the index %d is negative", index)
	case count < 0:
		return errorf(CodeInvalid, nil, "the count %d is negative", count)
	case uint64(index) > l || uint64(count) > l-uint64(index):
		return errorf(CodeInvalid, nil, "the range from %d of %d is outside the length of %d", index, count, l)
	}
	return nil
}

// newType returns an item that holds a new shared type.
func (d *Doc) newType(in *node, ref typeRef) (*item, error) {
	if in.depth+1 > d.limits.Depth {
		return nil, errorf(CodeInvalid, nil, "shared types are nested more than %d deep", d.limits.Depth)
	}
	it := d.alloc()
	it.kind, it.length = kindType, 1
	it.node = &node{ref: ref, item: it}
	return it, nil
}

// newType makes a new shared type in n, in the place where put inserts its item.
func newType[T ~struct{ n *node }](n *node, ref typeRef, put func(*item) error) (*T, error) {
	var made T
	err := n.edit(func(d *Doc) error {
		it, err := d.newType(n, ref)
		if err != nil {
			return err
		}
		made = T{it.node}
		return put(it)
	})
	return &made, err
}

// content returns an item that holds one value.
func (d *Doc) content(v any) (it *item, err error) {
	it = d.alloc()
	it.length = 1
	if b, ok := v.([]byte); ok {
		it.kind, it.data = kindBinary, lib0.AppendBytes(nil, b)
		return it, d.checkBytes(len(b))
	}
	it.kind = kindAny
	it.data, err = d.anyValue(nil, v)
	return it, err
}

func (d *Doc) checkBytes(n int) error {
	if n > d.limits.String {
		return errorf(CodeInvalid, nil, "the content has %d bytes; the maximum is %d", n, d.limits.String)
	}
	return nil
}

func (d *Doc) checkKey(key string) error {
	if len(key) > d.limits.Key {
		return errorf(CodeInvalid, nil, "the key has %d bytes; the maximum is %d", len(key), d.limits.Key)
	}
	return nil
}

// JSON returns the document as a JSON object of its roots, with sorted keys. A root that was not used as a
// certain type is shown as the type that its content suggests.
func (d *Doc) JSON() ([]byte, error) {
	return appendObjectJSON(nil, func(yield func(string, any) bool) {
		for name, n := range sorted(d.roots) {
			used := n.head != nil || len(n.keys) > 0 || n.cast != typeRoot
			if used && !yield(name, n.handleAs(n.shape())) {
				return
			}
		}
	})
}

// Shape returns what a root contains: "map", "array", "text", "list" for a list with only tombstones, or ""
// for nothing. If it was used as several types, the first of these is returned.
func (d *Doc) Shape(name string) string {
	n := d.roots[name]
	switch {
	case n == nil:
		return ""
	case len(n.keys) > 0:
		return "map"
	case n.head == nil:
		return ""
	case n.list.items > 0 && n.list.units == 0 && n.list.formats == 0:
		return "list"
	}
	switch n.listType() {
	case typeText:
		return "text"
	case typeArray:
		return "array"
	}
	return "list"
}

// shape returns a type's kind, or the kind that a root's content suggests.
func (n *node) shape() typeRef {
	switch {
	case n.ref != typeRoot:
		return n.ref
	case n.cast != typeRoot:
		return n.cast
	case n.head == nil:
		return typeMap
	case n.listType() == typeText:
		return typeText
	}
	return typeArray
}

// listType returns typeText or typeArray if the list's content shows which it is, else typeRoot.
func (n *node) listType() typeRef {
	for it := n.head; it != nil; it = it.right {
		switch it.kind {
		case kindString, kindFormat, kindEmbed:
			return typeText
		case kindAny, kindJSON, kindBinary, kindType, kindDoc:
			return typeArray
		}
	}
	return typeRoot
}

// maxDepth bounds the recursion over shared types; it is far above the limit of admitted updates.
const maxDepth = 1000

func (n *node) appendJSON(b []byte, as typeRef) ([]byte, error) {
	if n.depth > maxDepth {
		return nil, errorf(CodeLimit, nil, "shared types are nested more than %d deep", maxDepth)
	}
	switch as {
	case typeMap:
		return appendObjectJSON(b, (&Map{n}).All())
	case typeArray:
		return appendArrayJSON(b, (&Array{n}).All())
	case typeText:
		return appendStringJSON(b, n.text()), nil
	default: // XML
		return append(b, "null"...), nil
	}
}

// elements returns the number of values in the item: a string counts as one.
func (it *item) elements() uint32 {
	if it.kind == kindString {
		return 1
	}
	return it.length
}
