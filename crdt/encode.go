package crdt

import (
	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// appendItem appends a struct's encoding without its first skip units.
func appendItem(b []byte, it *item, skip uint32) []byte {
	if it.kind == kindGC {
		return lib0.AppendUint(append(b, byte(kindGC)), uint64(it.length-skip))
	}
	info := byte(it.kind)
	if it.has(flagOrigin) || skip > 0 {
		info |= infoOrigin
	}
	if it.has(flagRight) {
		info |= infoRight
	}
	if it.has(flagKeyed) {
		info |= infoKeyed
	}
	b = append(b, info)
	if skip > 0 {
		b = appendID(b, ID{it.id.Client, it.id.Clock + uint64(skip) - 1})
	} else if it.has(flagOrigin) {
		b = appendID(b, it.origin)
	}
	if it.has(flagRight) {
		b = appendID(b, it.rightOrigin)
	}
	if info&(infoOrigin|infoRight) == 0 {
		b = appendParent(b, it)
	}
	return appendContent(b, it, skip)
}

func appendID(b []byte, id ID) []byte {
	return lib0.AppendUint(lib0.AppendUint(b, id.Client), id.Clock)
}

func appendParent(b []byte, it *item) []byte {
	switch n := it.parent; {
	case n.item != nil:
		b = appendID(append(b, 0), n.item.id)
	case n.ref == typeRoot:
		b = lib0.AppendString(append(b, 1), n.name)
	default: // the reference of a parked struct
		b = appendID(append(b, 0), n.by)
	}
	if it.has(flagKeyed) {
		b = lib0.AppendString(b, it.key)
	}
	return b
}

func appendContent(b []byte, it *item, skip uint32) []byte {
	switch it.kind {
	case kindDeleted:
		return lib0.AppendUint(b, uint64(it.length-skip))
	case kindString:
		s := it.data
		if skip > 0 {
			_, s = cutString(s, skip, it.has(flagASCII))
		}
		return lib0.AppendBytes(b, s)
	case kindAny, kindJSON:
		b = lib0.AppendUint(b, uint64(it.length-skip))
		return append(b, it.data[it.offset(skip):]...)
	case kindType:
		b = lib0.AppendUint(b, uint64(it.node.ref))
		if it.node.ref == typeXMLElement || it.node.ref == typeXMLHook {
			b = lib0.AppendString(b, it.node.tag)
		}
		return b
	default:
		return append(b, it.data...)
	}
}

// appendSince appends a client's structs from a clock, which must be below its state.
func (c *client) appendSince(b []byte, from uint64) []byte {
	p := c.find(from)
	n := len(c.chunks[p.chunk]) - p.i
	for _, chunk := range c.chunks[p.chunk+1:] {
		n += len(chunk)
	}
	b = lib0.AppendUint(b, uint64(n))
	b = lib0.AppendUint(b, c.id)
	b = lib0.AppendUint(b, from)
	skip := uint32(from - c.item(p).id.Clock)
	for ; p.chunk < len(c.chunks); p = c.next(p) {
		b = appendItem(b, c.item(p), skip)
		skip = 0
	}
	return b
}

// StateVector returns the document's state vector.
func (d *Doc) StateVector() StateVector {
	sv := make(StateVector, len(d.clients))
	for id, c := range d.clients {
		if c.state > 0 {
			sv[id] = c.state
		}
	}
	return sv
}

// EncodeSince returns an update with everything that a replica with this state vector lacks, including
// parked structs, and all deletes. A nil vector gives the whole state.
func (d *Doc) EncodeSince(sv StateVector) []byte {
	if d.parked == (parkedSizes{}) {
		return d.encodeStore(sv)
	}
	var all []block
	deletes := d.deleted()
	for id, c := range d.clients {
		for _, chunk := range c.chunks {
			all = append(all, block{id, chunk})
		}
		for _, r := range c.parked {
			all = append(all, r.block)
		}
		deletes[id] = append(deletes[id], c.deletes...)
	}
	deletes.normalize()
	return writeBlocks(all, sv, deletes)
}

func (d *Doc) encodeStore(sv StateVector) []byte {
	newer := make(map[uint64]*client)
	for id, c := range d.clients {
		if c.state > sv[id] {
			newer[id] = c
		}
	}
	b := lib0.AppendUint(nil, uint64(len(newer)))
	for _, id := range descending(newer) {
		b = newer[id].appendSince(b, sv[id])
	}
	return d.deleted().append(b)
}

// deleted returns the ids of all deleted structs in the store.
func (d *Doc) deleted() IDSet {
	s := make(IDSet)
	for it := range d.structs {
		if it.deleted() {
			s.add(it.id.Client, it.clocks())
		}
	}
	return s
}

// structs yields all structs in the store, those of each client in order.
func (d *Doc) structs(yield func(*item) bool) {
	for _, c := range d.clients {
		for _, chunk := range c.chunks {
			for _, it := range chunk {
				if !yield(it) {
					return
				}
			}
		}
	}
}
