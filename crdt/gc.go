package crdt

// becomeGC turns an item into a GC struct, which keeps only id and length.
func (it *item) becomeGC() {
	*it = item{id: it.id, length: it.length, kind: kindGC, flags: it.flags & flagJournal}
}

// collect frees the content that the transaction deleted: items become tombstones, and what was in a
// deleted type becomes GC structs.
func (d *Doc) collect() {
	for client, ranges := range d.tx.deletes {
		c := d.clients[client]
		for _, r := range ranges {
			for p := c.find(r.Clock); p.chunk < len(c.chunks); p = c.next(p) {
				it := c.item(p)
				if it.id.Clock >= r.End() {
					break
				}
				d.collectItem(it)
			}
		}
	}
}

func (d *Doc) collectItem(it *item) {
	if it.kind == kindGC || it.kind == kindDeleted || !it.deleted() {
		return
	}
	if it.kind == kindType {
		d.collectNode(it.node)
	}
	d.bytes -= len(it.data)
	it.kind = kindDeleted
	it.data, it.ends, it.node = nil, nil, nil
	it.flags &^= flagASCII
}

// collectNode turns everything in a deleted type into GC structs.
func (d *Doc) collectNode(n *node) {
	inside := []*node{n}
	for len(inside) > 0 {
		n := inside[len(inside)-1]
		inside = inside[:len(inside)-1]
		var all []*item
		n.each(func(it *item) { all = append(all, it) })
		for _, it := range all {
			if it.kind == kindType {
				inside = append(inside, it.node)
			}
			d.bytes -= len(it.data)
			d.tx.merges = append(d.tx.merges, it.id)
			it.becomeGC()
		}
		n.head, n.list, n.keys = nil, nil, nil
	}
}
