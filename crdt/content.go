package crdt

import (
	"bytes"
	"unicode/utf8"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// The content of an item is kept encoded, so that it is sent exactly as received, and decoded only when the
// application reads it.
//
//	kindAny    elements back to back
//	kindJSON   elements back to back, each with its length
//	kindString UTF-8
//	others     the encoded body

// ends has the offsets in data at which the elements of an item end. The halves of a split item share the slice.
type ends struct {
	base int // to be subtracted: the offset at which this item's data begins
	at   []int
}

// offset returns the offset at which element i begins in data.
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

// value returns the decoded element i.
func (it *item) value(i uint32) any {
	switch it.kind {
	case kindAny:
		return lib0.Value(it.element(i))
	case kindJSON, kindEmbed:
		return valueOfJSON(lib0.NewReader(it.element(i)).Bytes())
	case kindBinary:
		return bytes.Clone(lib0.NewReader(it.data).Bytes())
	case kindString:
		return string(it.data)
	case kindType:
		return it.node.handle()
	case kindDoc:
		return Subdocument{GUID: string(lib0.NewReader(it.data).Bytes())}
	}
	return nil
}

// split splits an item before unit k and returns the right half, which is linked into the list but not yet stored.
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

// setASCII updates the flag of a string after a change.
func (it *item) setASCII() {
	it.flags &^= flagASCII
	if uint32(len(it.data)) == it.length {
		it.flags |= flagASCII
	}
}

// replacement replaces half of a surrogate pair; it has one unit.
const replacement = "\uFFFD"

// cutString cuts before UTF-16 unit k. A cut inside a surrogate pair replaces both halves by U+FFFD, so
// that lengths stay the same.
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

// offsetOfUnit returns the byte offset of UTF-16 unit k. If the unit is the second half of a surrogate pair
// it returns the offset of the character, and true.
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

// unitsOf returns the length of valid UTF-8 in UTF-16 units.
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

// joins reports whether b, which follows a in the store, can be joined to it.
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

// join appends b to a. The caller removes b from the store.
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
