package crdt

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"unicode/utf8"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// Update is a decoded, well-formed update. [Doc.ApplyUpdate] applies it, once.
type Update struct {
	blocks  []block // by descending client
	deletes IDSet
	size    int // bytes
	count   int // structs
	data    []byte
	limits  *Limits
	used    bool
}

// block is a run of consecutive structs of one client.
type block struct {
	client uint64
	items  []*item
}

func (b block) first() uint64 { return b.items[0].id.Clock }
func (b block) end() uint64   { return b.items[len(b.items)-1].end() }

// Clients returns the range of clocks that the update's structs cover for each client, including gaps.
func (u *Update) Clients() map[uint64]Range {
	m := make(map[uint64]Range, len(u.blocks))
	for _, b := range u.blocks {
		r, ok := m[b.client]
		if !ok {
			r.Clock = b.first()
		}
		r.Length = b.end() - r.Clock
		m[b.client] = r
	}
	return m
}

// Deletes returns the update's delete set. It must not be changed.
func (u *Update) Deletes() IDSet { return u.deletes }

// Empty reports whether the update has no content.
func (u *Update) Empty() bool { return len(u.blocks) == 0 && len(u.deletes) == 0 }

// Size returns the size of the encoded update in bytes.
func (u *Update) Size() int { return u.size }

// ParseUpdate decodes an update of the Yjs format, version 1, and checks its structure and the limits. It
// keeps no reference to data. Errors have CodeDeserialization or CodeLimit.
func ParseUpdate(data []byte, limits Limits) (*Update, error) {
	if len(data) > limits.Update {
		return nil, errorf(CodeLimit, nil, "the update has %d bytes; the maximum is %d", len(data), limits.Update)
	}
	data = bytes.Clone(data)
	p := parser{Reader: lib0.NewReader(data), limits: &limits, any: limits.any()}
	u := &Update{size: len(data), data: data, limits: &limits}
	p.structs(u)
	if p.Err() == nil {
		u.deletes = readIDSet(p.Reader, limits.DeleteRanges)
	}
	if p.Err() == nil && p.Len() > 0 {
		p.Fail(errTrailing)
	}
	err := p.Err()
	if err == nil {
		return u, nil
	}
	if CodeOf(err) == CodeLimit {
		return nil, err
	}
	code := CodeDeserialization
	switch err {
	case lib0.ErrDepth, lib0.ErrElements, lib0.ErrTooLong, errTooManyClocks:
		code = CodeLimit
	}
	return nil, errorf(code, err, "byte %d of the update", p.Pos())
}

type parser struct {
	*lib0.Reader
	limits *Limits
	any    lib0.AnyLimits
	slab   []item
	left   uint64 // announced structs of the client that are not yet read
	root   *node  // the last parent given by name
	holder *node  // the last parent given by id
}

func (p *parser) structs(u *Update) {
	clients := p.Uint()
	if clients > uint64(p.limits.Clients) {
		p.Fail(errorf(CodeLimit, nil, "the update has structs of %d clients; the maximum is %d", clients, p.limits.Clients))
		return
	}
	var seen map[uint64]bool
	if clients > 1 {
		seen = make(map[uint64]bool, min(clients, 64))
	}
	sorted := true
	for ; clients > 0 && p.Err() == nil; clients-- {
		n, client, clock := p.Uint(), p.Uint(), p.Uint()
		if p.Err() != nil {
			return
		}
		if u.count += int(min(n, 1<<30)); u.count > p.limits.Structs {
			p.Fail(errorf(CodeLimit, nil, "the update has more than %d structs", p.limits.Structs))
			return
		}
		switch {
		case seen[client]:
			p.Fail(errClientTwice)
		case n == 0:
			p.Fail(errNoStructs)
		case n > uint64(p.Len()): // a struct has at least two bytes
			p.Fail(lib0.ErrShort)
		}
		if seen != nil {
			seen[client] = true
		}
		if k := len(u.blocks); k > 0 && u.blocks[k-1].client < client {
			sorted = false
		}
		p.client(u, ID{client, clock}, n)
	}
	if !sorted {
		slices.SortStableFunc(u.blocks, func(a, b block) int { return cmp.Compare(b.client, a.client) })
	}
}

// client reads the n structs of one client; a Skip begins a new block.
func (p *parser) client(u *Update, id ID, n uint64) {
	var b *block
	p.slab = nil
	for p.left = n; p.left > 0 && p.Err() == nil; p.left-- {
		info := p.Byte()
		if info == byte(kindSkip) {
			b = nil
			id.Clock = p.skip(id.Clock)
			continue
		}
		it := p.item(id, info)
		if p.Err() != nil {
			return
		}
		if it.length == 0 {
			p.Fail(errEmptyRange)
			return
		}
		if it.end() > lib0.MaxSafe {
			p.Fail(lib0.ErrRange)
			return
		}
		id.Clock = it.end()
		if b == nil {
			u.blocks = append(u.blocks, block{client: id.Client})
			b = &u.blocks[len(u.blocks)-1]
			b.items = make([]*item, 0, min(p.left, maxAhead))
		}
		b.items = append(b.items, it)
	}
}

func (p *parser) alloc() *item {
	if len(p.slab) == 0 {
		p.slab = make([]item, min(slabSize, p.left))
	}
	it := &p.slab[0]
	p.slab = p.slab[1:]
	return it
}

// maxAhead bounds the preallocation for announced structs.
const maxAhead = 1024

const (
	infoOrigin = 0x80
	infoRight  = 0x40
	infoKeyed  = 0x20
	infoKind   = 0x1f
)

// skip reads the length of a Skip and returns the clock after it.
func (p *parser) skip(clock uint64) uint64 {
	n := p.Uint()
	if p.Err() == nil && n == 0 {
		p.Fail(errEmptyRange)
	}
	if clock+n > lib0.MaxSafe {
		p.Fail(lib0.ErrRange)
	}
	return clock + n
}

func (p *parser) item(id ID, info byte) *item {
	it := p.alloc()
	it.id = id
	it.kind = kind(info & infoKind)
	switch {
	case info == byte(kindGC):
		it.length = p.length()
		return it
	case it.kind < kindDeleted || it.kind > kindDoc:
		p.Fail(errInfo)
		return it
	}
	if info&infoKeyed != 0 {
		it.flags |= flagKeyed
	}
	if info&infoOrigin != 0 {
		it.flags |= flagOrigin
		it.origin = p.reference(id)
	}
	if info&infoRight != 0 {
		it.flags |= flagRight
		it.rightOrigin = p.reference(id)
	}
	if info&(infoOrigin|infoRight) == 0 {
		p.parent(it)
	}
	p.content(it)
	return it
}

// reference reads the id of another unit, which must not be a later one of the same client.
func (p *parser) reference(of ID) ID {
	id := ID{p.Uint(), p.Uint()}
	if id.Client == of.Client && id.Clock >= of.Clock {
		p.Fail(errOwnFuture)
	}
	return id
}

func (p *parser) parent(it *item) {
	switch p.Uint() {
	case 1:
		// References are immutable, so neighbours share them.
		if name := p.String(p.limits.Name); p.root == nil || p.root.name != string(name) {
			p.root = &node{name: string(name), ref: typeRoot}
		}
		it.parent = p.root
	case 0:
		if by := p.reference(it.id); p.holder == nil || p.holder.by != by {
			p.holder = &node{by: by}
		}
		it.parent = p.holder
	default:
		p.Fail(errParent)
	}
	if it.has(flagKeyed) {
		it.key = string(p.String(p.limits.Key))
	}
}

// length reads the length of a struct without content.
func (p *parser) length() uint32 {
	n := p.Uint()
	if n > p.limits.StructLength || n > 1<<32-1 {
		p.Fail(errTooManyClocks)
		return 0
	}
	return uint32(n)
}

func (p *parser) content(it *item) {
	it.length = 1
	start := p.Pos()
	switch it.kind {
	case kindDeleted:
		it.flags |= flagDeleted
		it.length = p.length()
		return
	case kindAny, kindJSON:
		p.elements(it)
		return
	case kindString:
		it.data = p.String(p.limits.String)
		it.length = uint32(unitsOf(it.data))
		it.setASCII()
		return
	case kindBinary:
		if len(p.Bytes()) > p.limits.String {
			p.Fail(lib0.ErrTooLong)
		}
	case kindEmbed:
		p.json(false)
	case kindFormat:
		p.String(p.limits.Key)
		p.json(false)
	case kindType:
		p.sharedType(it)
		return
	case kindDoc:
		p.String(p.limits.Key)
		if options := p.Any(&p.any); len(options) == 0 || options[0] != lib0.TagObject {
			p.Fail(errOptions)
		}
	}
	if p.Err() == nil {
		it.data = p.Since(start)
	}
}

func (p *parser) elements(it *item) {
	n := p.Uint()
	if n > uint64(p.Len()) {
		p.Fail(lib0.ErrShort)
		return
	}
	start := p.Pos()
	var at []int
	for range n {
		if it.kind == kindAny {
			p.Any(&p.any)
		} else {
			p.json(true)
		}
		if p.Err() != nil {
			return
		}
		if n > 1 {
			at = append(at, p.Pos()-start)
		}
	}
	it.length = uint32(n)
	it.data = p.Since(start)
	if n > 1 {
		it.ends = &ends{at: at}
	}
}

func (p *parser) sharedType(it *item) {
	ref := p.Uint()
	if p.Err() == nil && ref > uint64(typeXMLText) {
		p.Fail(errTypeRef)
	}
	it.node = &node{ref: typeRef(ref), item: it}
	if it.node.ref == typeXMLElement || it.node.ref == typeXMLHook {
		it.node.tag = string(p.String(p.limits.Name))
	}
}

// json reads a string that must be JSON; "undefined" is also allowed among the elements of a list.
func (p *parser) json(orUndefined bool) {
	s := p.String(p.limits.String)
	if p.Err() != nil || orUndefined && string(s) == "undefined" {
		return
	}
	if p.any.Elements--; p.any.Elements < 0 {
		p.Fail(lib0.ErrElements)
		return
	}
	if jsonDepth(s) > p.limits.JSONDepth {
		p.Fail(lib0.ErrDepth)
		return
	}
	if !json.Valid(s) {
		p.Fail(errJSON)
	}
}

// jsonDepth returns the nesting depth of arrays and objects.
func jsonDepth(s []byte) int {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted || c >= utf8.RuneSelf:
		case c == '[' || c == '{':
			depth++
			deepest = max(deepest, depth)
		case c == ']' || c == '}':
			depth--
		}
	}
	return deepest
}
