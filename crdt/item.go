package crdt

// kind is what a struct holds. The values are those of the wire.
type kind uint8

const (
	kindGC      kind = 0
	kindDeleted kind = 1
	kindJSON    kind = 2
	kindBinary  kind = 3
	kindString  kind = 4
	kindEmbed   kind = 5
	kindFormat  kind = 6
	kindType    kind = 7
	kindAny     kind = 8
	kindDoc     kind = 9
	kindSkip    kind = 10
)

// countable reports whether the content counts in the length of a list.
func (k kind) countable() bool { return k != kindDeleted && k != kindFormat }

// mergeable reports whether neighbours of this kind can become one.
func (k kind) mergeable() bool {
	return k == kindDeleted || k == kindJSON || k == kindString || k == kindAny
}

const (
	flagOrigin  uint8 = 1 << iota // origin is set
	flagRight                     // rightOrigin is set
	flagKeyed                     // the item is in a key's chain, not in the list
	flagDeleted                   // a tombstone
	flagASCII                     // a string of which each byte is a unit
	flagJournal                   // deleted by the local transaction that is open
)

// item is one struct: content with its place in a list or in a key's chain, or a
// GC struct, of which only id and length are left. A struct is never removed from
// the store; it merges with its neighbour or becomes GC or a tombstone.
type item struct {
	id          ID
	origin      ID // the unit on the left when it was written
	rightOrigin ID // the unit on the right when it was written

	left, right *item // in the list or the chain
	parent      *node // nil for GC; a reference, not a type, until it is integrated
	key         string
	data        []byte // content as it travels; see content.go
	ends        *ends  // where each of several elements ends in data
	node        *node  // the type that kindType holds
	span        *span  // the run of the list that the item is in; nil in a chain
	step        uint64 // when a scan last passed it
	length      uint32
	kind        kind
	flags       uint8
}

func (it *item) has(flag uint8) bool { return it.flags&flag != 0 }
func (it *item) deleted() bool       { return it.has(flagDeleted) || it.kind == kindGC }
func (it *item) end() uint64         { return it.id.Clock + uint64(it.length) }
func (it *item) lastID() ID          { return ID{it.id.Client, it.end() - 1} }

// units returns what the item adds to the visible length of its list.
func (it *item) units() uint64 {
	if it.deleted() || !it.kind.countable() || it.has(flagKeyed) {
		return 0
	}
	return uint64(it.length)
}

// formats returns 1 for an attribute that is in force.
func (it *item) formats() int {
	if it.kind == kindFormat && !it.deleted() {
		return 1
	}
	return 0
}

// typeRef is what a shared type is. The values are those of the wire; a root is
// untyped until the application uses it as one.
type typeRef uint8

const (
	typeArray typeRef = iota
	typeMap
	typeText
	typeXMLElement
	typeXMLFragment
	typeXMLHook
	typeXMLText
	typeRoot typeRef = 255
)

// node is a shared type: a list and a map. Before an item is integrated its
// parent is a node that is only a reference, by name or by id.
type node struct {
	item  *item // that holds it; nil for a root
	name  string
	by    ID // a reference by id
	ref   typeRef
	tag   string // an XML element's name
	depth int
	head  *item
	list  *span // order statistics of the list; nil while it is empty
	keys  map[string]*chain
	doc   *Doc    // nil in a reference
	cast  typeRef // what the application uses a root as; typeRoot if it has not said
}

// chain is the history of one key; the last item is the value.
type chain struct{ head, tail *item }

func (n *node) deleted() bool { return n.item != nil && n.item.deleted() }

// length returns the visible length of the list.
func (n *node) length() uint64 {
	if n.list == nil {
		return 0
	}
	return n.list.units
}

// live returns the value of a key, nil if it has none.
func (n *node) live(key string) *item {
	c := n.keys[key]
	if c == nil || c.tail.deleted() {
		return nil
	}
	return c.tail
}

// first returns the first item of the sequence that an item with this key is in.
func (n *node) first(it *item) *item {
	if !it.has(flagKeyed) {
		return n.head
	}
	if c := n.keys[it.key]; c != nil {
		return c.head
	}
	return nil
}
