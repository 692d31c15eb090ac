package crdt

import (
	"reflect"
	"strings"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// Text is a shared text with attributes. Indexes and lengths count UTF-16 units, as in JavaScript: see
// [Units]. An index inside a surrogate pair is moved to its beginning, the end of a range to its end.
type Text struct{ n *node }

// Attributes are formatting attributes, such as {"bold": true}. A nil value removes an attribute.
type Attributes map[string]any

// Run is a run of text with the same attributes, or an embedded value.
type Run struct {
	Insert     any        `json:"insert"` // a string, an embedded value or a shared type
	Attributes Attributes `json:"attributes,omitempty"`
}

// Units returns the length of a string in UTF-16 units.
func Units(s string) int { return int(unitsOf(wellFormed(s))) }

// Text returns the root text with a name.
func (d *Doc) Text(name string) *Text {
	return &Text{d.rootAs(name, typeText)}
}

// Len returns the length in UTF-16 units; an embedded value counts as one.
func (t *Text) Len() int { return int(t.n.length()) }

// String returns the text without attributes and embedded values.
func (t *Text) String() string { return t.n.text() }

func (n *node) text() string {
	var b strings.Builder
	for it := n.head; it != nil; it = it.right {
		if it.kind == kindString && !it.deleted() {
			b.Write(it.data)
		}
	}
	return b.String()
}

// Insert inserts a string at an index, with the attributes of the text before it.
func (t *Text) Insert(index int, s string) error { return t.insert(index, s, nil, false) }

// InsertWith inserts a string with exactly these attributes.
func (t *Text) InsertWith(index int, s string, attributes Attributes) error {
	return t.insert(index, s, attributes, true)
}

// Append appends a string.
func (t *Text) Append(s string) error { return t.Insert(t.Len(), s) }

func (t *Text) insert(index int, s string, attributes Attributes, exact bool) error {
	if s == "" {
		return nil
	}
	return t.n.edit(func(d *Doc) error {
		s := wellFormed(s)
		if err := d.checkBytes(len(s)); err != nil {
			return err
		}
		it := d.alloc()
		it.kind, it.data, it.length = kindString, []byte(s), uint32(unitsOf(s))
		it.setASCII()
		return t.insertItem(d, index, it, attributes, exact)
	})
}

// InsertEmbed inserts a value that counts as one unit, such as an image's address. It must be a JSON value.
func (t *Text) InsertEmbed(index int, value any, attributes Attributes) error {
	return t.n.edit(func(d *Doc) error {
		text, err := jsonOf(value)
		if err != nil {
			return err
		}
		if err := d.checkBytes(len(text)); err != nil {
			return err
		}
		it := d.alloc()
		it.kind, it.data, it.length = kindEmbed, lib0.AppendString(nil, text), 1
		return t.insertItem(d, index, it, attributes, true)
	})
}

func (t *Text) insertItem(d *Doc, index int, it *item, attributes Attributes, exact bool) error {
	if err := t.n.checkRange(index, 0); err != nil {
		return err
	}
	left := t.n.place(t.border(uint64(index), false))
	if !exact && len(attributes) == 0 {
		// The attributes before it continue, so none changes.
		d.insert(t.n, t.n.behindTombstones(left), it)
		return nil
	}
	c := d.cursor(t.n, left)
	want, err := c.now.without(attributes)
	if err != nil {
		return err
	}
	c.skipEqual(want)
	negated, err := c.change(want)
	if err != nil {
		return err
	}
	c.insert(it)
	return c.restore(negated)
}

// maxTombstones bounds how many tombstones an insertion is moved by.
const maxTombstones = 1000

// behindTombstones moves an insertion after the tombstones that follow, so that text typed over deleted
// text stays together.
func (n *node) behindTombstones(left *item) *item {
	right := n.head
	if left != nil {
		right = left.right
	}
	for i := 0; right != nil && right.deleted() && i < maxTombstones; i++ {
		left, right = right, right.right
	}
	return left
}

// Delete deletes count units from an index on.
func (t *Text) Delete(index, count int) error {
	return t.n.edit(func(d *Doc) error {
		if err := t.n.checkRange(index, count); err != nil || count == 0 {
			return err
		}
		from, to := t.border(uint64(index), false), t.border(uint64(index)+uint64(count), true)
		t.n.remove(from, to-from)
		return nil
	})
}

// Format sets attributes of count units from an index on. A nil value removes an attribute.
func (t *Text) Format(index, count int, attributes Attributes) error {
	return t.n.edit(func(d *Doc) error {
		if err := t.n.checkRange(index, count); err != nil || count == 0 {
			return err
		}
		from, to := t.border(uint64(index), false), t.border(uint64(index)+uint64(count), true)
		return d.cursor(t.n, t.n.place(from)).format(to-from, attributes)
	})
}

// border moves an index inside a surrogate pair to its beginning or its end.
func (t *Text) border(index uint64, up bool) uint64 {
	if index == 0 || index >= t.n.length() {
		return index
	}
	it, offset := t.n.seek(index)
	if it.kind != kindString || it.has(flagASCII) || offset == 0 {
		return index
	}
	if _, inside := offsetOfUnit(it.data, offset); !inside {
		return index
	}
	if up {
		return index + 1
	}
	return index - 1
}

// Runs returns the text as runs with equal attributes.
func (t *Text) Runs() []Run {
	var runs []Run
	now := attributes{}
	var b strings.Builder
	flush := func() {
		if b.Len() > 0 {
			runs = append(runs, Run{b.String(), now.values()})
			b.Reset()
		}
	}
	for it := t.n.head; it != nil; it = it.right {
		switch {
		case it.deleted():
		case it.kind == kindFormat:
			flush()
			now.apply(it)
		case it.kind == kindString:
			b.Write(it.data)
		case it.kind.countable():
			flush()
			for i := range it.elements() {
				runs = append(runs, Run{it.value(i), now.values()})
			}
		}
	}
	flush()
	return joinedRuns(runs)
}

// joinedRuns joins neighbouring runs of text with equal attributes.
func joinedRuns(runs []Run) []Run {
	kept := runs[:0]
	for _, r := range runs {
		s, isText := r.Insert.(string)
		if n := len(kept); n > 0 && isText {
			if before, ok := kept[n-1].Insert.(string); ok && reflect.DeepEqual(kept[n-1].Attributes, r.Attributes) {
				kept[n-1].Insert = before + s
				continue
			}
		}
		kept = append(kept, r)
	}
	return kept
}

// attributes maps keys to JSON values; "null" means that the attribute is absent.
type attributes map[string]string

// format returns the attribute that an item changes.
func (it *item) format() (key, value string) {
	r := lib0.NewReader(it.data)
	key = string(r.Bytes())
	return key, string(r.Bytes())
}

func (a attributes) apply(it *item) {
	key, value := it.format()
	a.set(key, value)
}

func (a attributes) set(key, value string) {
	if value == null {
		delete(a, key)
	} else {
		a[key] = value
	}
}

const null = "null"

func (a attributes) get(key string) string {
	if v, ok := a[key]; ok {
		return v
	}
	return null
}

func (a attributes) values() Attributes {
	if len(a) == 0 {
		return nil
	}
	v := make(Attributes, len(a))
	for key, value := range a {
		v[key] = valueOfJSON([]byte(value))
	}
	return v
}

func encodeAttributes(set Attributes) (attributes, error) {
	all := make(attributes, len(set))
	for key, v := range set {
		text, err := jsonOf(v)
		if err != nil {
			return nil, err
		}
		all[wellFormed(key)] = text
	}
	return all, nil
}

// without returns the changes that turn a into exactly the attributes given.
func (a attributes) without(only Attributes) (attributes, error) {
	want, err := encodeAttributes(only)
	if err != nil {
		return nil, err
	}
	for key := range a {
		if _, ok := want[key]; !ok {
			want[key] = null
		}
	}
	return want, nil
}

// cursor is a position in a text with the attributes that apply there.
type cursor struct {
	d    *Doc
	n    *node
	left *item
	now  attributes
}

// cursor returns the position after left.
func (d *Doc) cursor(n *node, left *item) *cursor {
	c := &cursor{d: d, n: n, left: left, now: attributes{}}
	if left != nil {
		n.eachFormat(left.right, c.now.apply)
	}
	return c
}

func (c *cursor) right() *item {
	if c.left == nil {
		return c.n.head
	}
	return c.left.right
}

func (c *cursor) step() {
	it := c.right()
	if it.formats() > 0 {
		c.now.apply(it)
	}
	c.left = it
}

func (c *cursor) insert(it *item) {
	c.d.insert(c.n, c.left, it)
	c.step()
}

// skipEqual advances past tombstones and attributes that already have the wanted value.
func (c *cursor) skipEqual(want attributes) {
	for it := c.right(); it != nil; it = c.right() {
		if !it.deleted() {
			if it.kind != kindFormat {
				return
			}
			key, value := it.format()
			if v, ok := want[key]; ok && v != value || !ok && value != null {
				return
			}
		}
		c.step()
	}
}

// change inserts what makes the wanted attributes apply, and returns the former values.
func (c *cursor) change(want attributes) (negated attributes, err error) {
	negated = attributes{}
	for _, key := range sortedKeys(want) {
		value := want[key]
		if before := c.now.get(key); before != value {
			negated[key] = before
			if err := c.putFormat(key, value); err != nil {
				return nil, err
			}
		}
	}
	return negated, nil
}

func (c *cursor) putFormat(key, value string) error {
	if err := c.d.checkKey(key); err != nil {
		return err
	}
	if err := c.d.checkBytes(len(value)); err != nil {
		return err
	}
	if jsonDepth([]byte(value)) > c.d.limits.JSONDepth {
		return errorf(CodeInvalid, nil, "the attribute %q is nested too deeply", key)
	}
	it := c.d.alloc()
	it.kind, it.length = kindFormat, 1
	it.data = lib0.AppendString(lib0.AppendString(nil, key), value)
	c.insert(it)
	return nil
}

// restore inserts what makes the former attributes apply again, unless what follows does.
func (c *cursor) restore(negated attributes) error {
	for it := c.right(); it != nil; it = c.right() {
		if !it.deleted() {
			if it.kind != kindFormat {
				break
			}
			key, value := it.format()
			if v, ok := negated[key]; !ok || v != value {
				break
			}
			delete(negated, key)
		}
		c.step()
	}
	for _, key := range sortedKeys(negated) {
		if err := c.putFormat(key, negated[key]); err != nil {
			return err
		}
	}
	return nil
}

// format sets attributes of the next count units and deletes those inside them that become ineffective.
func (c *cursor) format(count uint64, set Attributes) error {
	want, err := encodeAttributes(set)
	if err != nil {
		return err
	}
	c.skipEqual(want)
	negated, err := c.change(want)
	if err != nil {
		return err
	}
	for it := c.right(); it != nil; it = c.right() {
		inFormats := it.deleted() || it.kind == kindFormat
		if count == 0 && (len(negated) == 0 || !inFormats) {
			break
		}
		switch {
		case it.deleted():
		case it.kind == kindFormat:
			key, value := it.format()
			if v, ok := want[key]; ok {
				if v == value {
					delete(negated, key)
				} else {
					if count == 0 {
						return c.restore(negated)
					}
					negated[key] = value
				}
				c.d.delete(it)
			}
		default:
			if u := it.units(); u > count {
				it = c.d.endingAt(ID{it.id.Client, it.id.Clock + count - 1})
			}
			count -= it.units()
		}
		c.step()
	}
	return c.restore(negated)
}
