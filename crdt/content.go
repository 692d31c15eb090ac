package crdt

import (
	"bytes"
	"unicode/utf8"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// The content of an item is kept as the bytes of the wire: it goes on to others
// exactly as it came, and is decoded only when somebody looks.
//
//	kindAny    elements back to back
//	kindJSON   elements back to back, each with its length
//	kindString UTF-8
//	others     the body

// ends has the offsets in data at which the elements of an item end. It is
// shared by the halves of an item that was split.
type ends struct {
	base int // what to subtract: the offset at which this item's data begins
	at   []int
}

// offset returns where element i begins in data.
func (it *item) offset(i uint32) int {
	switch {
	case i == 0:
		return 0
	case it.ends == nil:
		return len(it.data) // of one element
	default:
		return it.ends.at[i-1] - it.ends.base
	}
}

// element returns the bytes of element i of kindAny or kindJSON.
func (it *item) element(i uint32) []byte {
	return it.data[it.offset(i):it.offset(i+1)]
}

// value returns element i for the application.
func (it *item) value(i uint32) any {
	switch it.kind {
	case kindAny:
		return lib0.Value(it.element(i))
	case kindJSON:
		return valueOfJSON(lib0.NewReader(it.element(i)).Bytes())
	case kindBinary:
		return bytes.Clone(lib0.NewReader(it.data).Bytes())
	case kindString:
		return string(it.data)
	case kindEmbed:
		return valueOfJSON(lib0.NewReader(it.data).Bytes())
	case kindType:
		return it.node.handle()
	case kindDoc:
		return Subdocument{GUID: string(lib0.NewReader(it.data).Bytes())}
	}
	return nil
}

// split cuts a live or deleted item in two before unit k and returns the right
// half, which is linked but not in the store.
func (d *Doc) split(it *item, k uint32) *item {
	r := d.alloc()
	*r = *it
	r.id.Clock += uint64(k)
	r.length -= k
	r.origin = ID{it.id.Client, r.id.Clock - 1}
	r.flags |= flagOrigin
	it.length = k
	cut(it, r, k)

	r.left = it
	if it.right != nil {
		it.right.left = r
	} else if it.has(flagKeyed) {
		it.parent.keys[it.key].tail = r
	}
	it.right = r
	if it.span != nil {
		it.parent.countHalf(r)
	}
	d.noteSplit(it, r)
	return r
}

// cut divides the content of it, which r shares, before unit k.
func cut(it, r *item, k uint32) {
	switch it.kind {
	case kindAny, kindJSON:
		at := it.offset(k)
		if r.length == 1 {
			r.ends = nil
		} else {
			r.ends = &ends{base: it.ends.base + at, at: it.ends.at[k:]}
		}
		if k == 1 {
			it.ends = nil
		} else {
			it.ends = &ends{base: it.ends.base, at: it.ends.at[:k:k]}
		}
		r.data = it.data[at:]
		it.data = it.data[:at:at]
	case kindString:
		it.data, r.data = cutString(it.data, k, it.has(flagASCII))
		it.setASCII()
		r.setASCII()
	}
}

// setASCII sets the flag of a string after its content changed.
func (it *item) setASCII() {
	it.flags &^= flagASCII
	if uint32(len(it.data)) == it.length {
		it.flags |= flagASCII
	}
}

// replacement stands for half of a pair of surrogates, one unit long.
const replacement = "\uFFFD"

// cutString cuts before UTF-16 unit k. A cut inside a pair of surrogates turns
// both halves into U+FFFD, so that lengths stay as they were.
func cutString(s []byte, k uint32, ascii bool) (left, right []byte) {
	if ascii {
		return s[:k:k], s[k:]
	}
	at, inside := offsetOfUnit(s, k)
	if !inside {
		return s[:at:at], s[at:]
	}
	left = append(s[:at:at], replacement...)
	right = append([]byte(replacement), s[at+4:]...)
	return left, right
}

// offsetOfUnit returns the byte offset of UTF-16 unit k, or that of the
// character and true if the unit is the second half of one.
func offsetOfUnit(s []byte, k uint32) (at int, inside bool) {
	for k > 0 {
		c := s[at]
		if c < utf8.RuneSelf {
			at++
			k--
			continue
		}
		size := 2
		switch {
		case c >= 0xf0:
			if k == 1 {
				return at, true
			}
			size = 4
			k--
		case c >= 0xe0:
			size = 3
		}
		at += size
		k--
	}
	return at, false
}

// unitsOf returns the number of UTF-16 units of valid UTF-8.
func unitsOf[S []byte | string](s S) uint64 {
	n := uint64(0)
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 0xf0:
			n += 2
		case c&0xc0 != 0x80:
			n++
		}
	}
	return n
}

// joins reports whether b, which follows a in the store, can become part of it.
func joins(a, b *item) bool {
	if a.kind != b.kind {
		return false
	}
	if uint64(a.length)+uint64(b.length) > 1<<32-1 {
		return false
	}
	if a.kind == kindGC {
		return true
	}
	const same = flagDeleted | flagRight | flagKeyed
	return a.kind.mergeable() && a.flags&same == b.flags&same &&
		b.has(flagOrigin) && b.origin == a.lastID() && a.right == b &&
		(!a.has(flagRight) || a.rightOrigin == b.rightOrigin)
}

// join makes b part of a. The caller takes b out of the store.
func join(a, b *item) {
	if a.kind == kindGC {
		a.length += b.length
		return
	}
	switch a.kind {
	case kindAny, kindJSON:
		joinElements(a, b)
	case kindString:
		a.data = append(a.data, b.data...)
	}
	if b.span != nil {
		moved := b.units()
		b.parent.uncount(b)
		a.span.add(0, int64(moved), 0)
	}
	a.length += b.length
	if a.kind == kindString {
		a.setASCII()
	}
	a.right = b.right
	if b.right != nil {
		b.right.left = a
	} else if b.has(flagKeyed) {
		a.parent.keys[a.key].tail = a
	}
}

func joinElements(a, b *item) {
	e := a.ends
	if e == nil {
		e = &ends{at: []int{len(a.data)}}
	}
	end := e.base + len(a.data)
	at := e.at
	for i := range b.length {
		at = append(at, end+b.offset(i+1))
	}
	a.ends = &ends{base: e.base, at: at}
	a.data = append(a.data, b.data...)
}
