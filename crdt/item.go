package crdt

// kind is the kind of a struct, by its number in the encoding.
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

// countable reports whether content of this kind counts in the length of a list.
func (k kind) countable() bool { return k != kindDeleted && k != kindFormat }

// mergeable reports whether neighbours of this kind can be joined.
func (k kind) mergeable() bool {
	return k == kindDeleted || k == kindJSON || k == kindString || k == kindAny
}

const (
	flagOrigin  uint8 = 1 << iota // origin is set
	flagRight                     // rightOrigin is set
	flagKeyed                     // the item is in a key's chain, not in the list
	flagDeleted                   // a tombstone
	flagASCII                     // a string with one byte per unit
	flagJournal                   // deleted by the open local transaction
)

// item is one struct: content with its place in a list or in a key's chain, or a GC struct, which has only
// id and length. Structs are never removed from the store; they are joined with their neighbours, or become
// GC structs or tombstones.
type item struct {
	id          ID
	origin      ID // the left neighbour when it was written
	rightOrigin ID // the right neighbour when it was written

	left, right *item // in the list or the chain
	parent      *node // nil for GC; until integration only a reference to the type
	key         string
	data        []byte // encoded content; see content.go
	ends        *ends  // offsets in data at which several elements end
	node        *node  // the type, for kindType
	span        *span  // the leaf of the list's tree; nil in a chain
	step        uint64 // of the last scan that passed it
	length      uint32
	kind        kind
	flags       uint8
}

func (it *item) has(flag uint8) bool { return it.flags&flag != 0 }
func (it *item) deleted() bool       { return it.has(flagDeleted) || it.kind == kindGC }
func (it *item) end() uint64         { return it.id.Clock + uint64(it.length) }
func (it *item) lastID() ID          { return ID{it.id.Client, it.end() - 1} }
func (it *item) clocks() Range       { return Range{it.id.Clock, uint64(it.length)} }

// units returns the item's contribution to the visible length of its list.
func (it *item) units() uint64 {
	if it.deleted() || !it.kind.countable() || it.has(flagKeyed) {
		return 0
	}
	return uint64(it.length)
}

// formats returns 1 if the item is an effective attribute, else 0.
func (it *item) formats() int {
	if it.kind == kindFormat && !it.deleted() {
		return 1
	}
	return 0
}

// typeRef is the kind of a shared type, by its number in the encoding. Roots have no kind until the
// application uses them.
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

// node is a shared type, with a list and a map. The parent of an item that is not yet integrated is a node
// that only refers to the type, by name or id.
type node struct {
	item  *item // the item that holds it; nil for a root
	name  string
	by    ID // id of the item, in a reference
	ref   typeRef
	tag   string // an XML element's name
	depth int
	head  *item
	list  *span // order statistics of the list; nil while it is empty
	keys  map[string]*chain
	doc   *Doc    // nil in a reference
	cast  typeRef // how the application uses a root; typeRoot if unknown
}

// chain is the history of one key; the last item holds the value.
type chain struct{ head, tail *item }

func (n *node) deleted() bool { return n.item != nil && n.item.deleted() }

// length returns the visible length of the list.
func (n *node) length() uint64 {
	if n.list == nil {
		return 0
	}
	return n.list.units
}

// live returns the item with a key's value, nil if there is none.
func (n *node) live(key string) *item {
	c := n.keys[key]
	if c == nil || c.tail.deleted() {
		return nil
	}
	return c.tail
}

// first returns the first item of the list or chain to which an item belongs.
func (n *node) first(it *item) *item {
	if !it.has(flagKeyed) {
		return n.head
	}
	if c := n.keys[it.key]; c != nil {
		return c.head
	}
	return nil
}
