package documents

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/parleyhub/parley/crdt"
)

// Op is the operation of an [Edit].
type Op string

// The operations.
const (
	OpSet       Op = "set"       // sets the value of a key
	OpDelete    Op = "delete"    // deletes a key, or elements of a list
	OpInsert    Op = "insert"    // inserts values into a list
	OpMake      Op = "make"      // creates a shared map, array or text if it is missing
	OpText      Op = "text"      // replaces a part of a text
	OpIncrement Op = "increment" // adds to a counter
)

// Edit is one edit of a document by a person or an agent. Path is the root's name followed by keys; missing maps on
// the path are created. The tags describe the fields to agents. Count and Index are in UTF-16 units in a text.
type Edit struct {
	Op     Op       `json:"op" jsonschema:"set (a key), delete (a key, or elements with index and count), insert (values into a list), text (replace count units at index by text), increment (a counter; it is shown as a map whose values add up to it), make (a type)"`
	Path   []string `json:"path" jsonschema:"The root's name, then keys; maps on the way are made"`
	Value  any      `json:"value,omitempty" jsonschema:"Of set: any JSON value"`
	Values []any    `json:"values,omitempty" jsonschema:"Of insert"`
	Index  *int     `json:"index,omitempty" jsonschema:"Of insert, delete and text, from 0; without it insert and text go to the end"`
	Count  int      `json:"count,omitempty" jsonschema:"Of delete and text: how many go"`
	Text   string   `json:"text,omitempty" jsonschema:"Of text: what comes"`
	Type   string   `json:"type,omitempty" jsonschema:"Of make: map, array or text"`
	By     int64    `json:"by,omitempty" jsonschema:"Of increment; 1 without it"`
}

const (
	// MaxEdits bounds the edits of one change.
	MaxEdits = 10_000
	maxPath  = 32
)

// Apply applies edits as one change: all of them, or none if one fails.
func Apply(doc *crdt.Doc, edits []Edit) error {
	if len(edits) == 0 || len(edits) > MaxEdits {
		return invalid("a change has between 1 and %d edits", MaxEdits)
	}
	_, err := doc.Transact(nil, func() error {
		for i, e := range edits {
			if err := e.apply(doc); err != nil {
				return &Error{Code: CodeInvalid, Message: fmt.Sprintf("edit %d, %q", i+1, string(e.Op)), Err: err}
			}
		}
		return nil
	})
	return err
}

// operations are the implementations of the operations, with the fields that each uses besides its path.
var operations = map[Op]struct {
	fields []string
	apply  func(*Edit, *crdt.Doc) error
}{
	OpSet:       {[]string{"value"}, (*Edit).set},
	OpDelete:    {[]string{"index", "count"}, (*Edit).delete},
	OpInsert:    {[]string{"values", "index"}, (*Edit).insert},
	OpMake:      {[]string{"type"}, (*Edit).make},
	OpText:      {[]string{"text", "index", "count"}, (*Edit).replaceText},
	OpIncrement: {[]string{"by"}, (*Edit).increment},
}

func (e *Edit) apply(doc *crdt.Doc) error {
	if len(e.Path) == 0 || len(e.Path) > maxPath {
		return invalid("a path has between 1 and %d names, the root's first", maxPath)
	}
	if slices.Contains(e.Path, "") {
		return invalid("a path has no empty names")
	}
	op, ok := operations[e.Op]
	if !ok {
		return invalid("there is no such operation; the operations are set, delete, insert, make, text, increment")
	}
	if err := e.checkFields(op.fields); err != nil {
		return err
	}
	return op.apply(e, doc)
}

// checkFields refuses fields that the operation ignores: a set with "values", for example, would silently clear the
// key.
func (e *Edit) checkFields(used []string) error {
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"value", e.Value != nil}, {"values", e.Values != nil}, {"index", e.Index != nil}, {"count", e.Count != 0},
		{"text", e.Text != ""}, {"type", e.Type != ""}, {"by", e.By != 0},
	} {
		if f.given && !slices.Contains(used, f.name) {
			return invalid("it does not use %q, but: %s", f.name, strings.Join(used, ", "))
		}
	}
	switch {
	case e.Index != nil && *e.Index < 0 || e.Count < 0:
		return invalid("index and count must not be negative")
	case e.Op == OpDelete && e.Index == nil && e.Count != 0:
		return invalid("count needs an index; without both, the whole key is deleted")
	case e.Op == OpInsert && len(e.Values) == 0:
		return invalid(`it needs "values", a list`)
	}
	return nil
}

// parent returns the map that has the path's last name as a key. It creates missing maps on the path.
func (e *Edit) parent(doc *crdt.Doc) (*crdt.Map, string, error) {
	if len(e.Path) < 2 {
		return nil, "", invalid("the path needs a key after the root's name")
	}
	if err := checkRoot(doc, e.Path[0], "map"); err != nil {
		return nil, "", err
	}
	m := doc.Map(e.Path[0])
	for _, name := range e.Path[1 : len(e.Path)-1] {
		inner, err := member(m, name, mapKind)
		if err != nil {
			return nil, "", err
		}
		m = inner
	}
	return m, e.Path[len(e.Path)-1], nil
}

// checkRoot refuses to use an existing root as another type: it would have two types, and show only one.
func checkRoot(doc *crdt.Doc, name, kind string) error {
	have := doc.Shape(name)
	if have == "" || have == kind || have == "list" && kind != "map" {
		return nil
	}
	return otherKind(name, kind)
}

func otherKind(name, kind string) error { return invalid("%q exists and is no shared %s", name, kind) }

// kind is a shared type that an edit can address.
type kind[T any] struct {
	name   string
	root   func(*crdt.Doc, string) T
	create func(*crdt.Map, string) (T, error)
}

var (
	mapKind   = kind[*crdt.Map]{"map", (*crdt.Doc).Map, (*crdt.Map).SetMap}
	arrayKind = kind[*crdt.Array]{"array", (*crdt.Doc).Array, (*crdt.Map).SetArray}
	textKind  = kind[*crdt.Text]{"text", (*crdt.Doc).Text, (*crdt.Map).SetText}
)

// target returns the shared value at the path's end, created if it is missing.
func target[T any](e *Edit, doc *crdt.Doc, k kind[T]) (T, error) {
	var none T
	if len(e.Path) == 1 {
		if err := checkRoot(doc, e.Path[0], k.name); err != nil {
			return none, err
		}
		return k.root(doc, e.Path[0]), nil
	}
	m, key, err := e.parent(doc)
	if err != nil {
		return none, err
	}
	return member(m, key, k)
}

// member returns the shared value of a key, created if it is missing.
func member[T any](m *crdt.Map, key string, k kind[T]) (T, error) {
	v, exists := m.Get(key)
	if !exists {
		return k.create(m, key)
	}
	t, ok := v.(T)
	if !ok {
		return t, otherKind(key, k.name)
	}
	return t, nil
}

func (e *Edit) set(doc *crdt.Doc) error {
	m, key, err := e.parent(doc)
	if err != nil {
		return err
	}
	return m.Set(key, e.Value)
}

func (e *Edit) make(doc *crdt.Doc) (err error) {
	switch e.Type {
	case mapKind.name:
		_, err = target(e, doc, mapKind)
	case arrayKind.name:
		_, err = target(e, doc, arrayKind)
	case textKind.name:
		_, err = target(e, doc, textKind)
	default:
		err = invalid("a type is map, array or text")
	}
	return err
}

func (e *Edit) increment(doc *crdt.Doc) error {
	m, err := target(e, doc, mapKind)
	if err != nil {
		return err
	}
	return crdt.CounterOf(m).Add(cmp.Or(e.By, 1))
}

// delete deletes a key or elements of a list. Unlike other edits it creates nothing on the path.
func (e *Edit) delete(doc *crdt.Doc) error {
	switch exists := e.pathExists(doc); {
	case e.Index != nil && !exists:
		return invalid("there is no list %s", strings.Join(e.Path, "."))
	case e.Index != nil:
		a, err := target(e, doc, arrayKind)
		if err != nil {
			return err
		}
		return a.Delete(*e.Index, cmp.Or(e.Count, 1))
	case len(e.Path) > 1 && !exists:
		return nil
	}
	m, key, err := e.parent(doc)
	if err != nil {
		return err
	}
	return m.Delete(key)
}

// pathExists reports whether the path exists up to its last name. It also reports true for a path through something
// else than maps, which is an error elsewhere.
func (e *Edit) pathExists(doc *crdt.Doc) bool {
	switch shape := doc.Shape(e.Path[0]); {
	case shape == "":
		return false
	case shape != "map" || len(e.Path) == 1:
		return true
	}
	m := doc.Map(e.Path[0])
	for _, name := range e.Path[1 : len(e.Path)-1] {
		v, exists := m.Get(name)
		if !exists {
			return false
		}
		inner, ok := v.(*crdt.Map)
		if !ok {
			return true
		}
		m = inner
	}
	return true
}

func (e *Edit) insert(doc *crdt.Doc) error {
	a, err := target(e, doc, arrayKind)
	if err != nil {
		return err
	}
	if e.Index == nil {
		return a.Append(e.Values...)
	}
	return a.Insert(*e.Index, e.Values...)
}

func (e *Edit) replaceText(doc *crdt.Doc) error {
	t, err := target(e, doc, textKind)
	if err != nil {
		return err
	}
	at := t.Len()
	if e.Index != nil {
		at = *e.Index
	}
	if err := t.Delete(at, e.Count); err != nil {
		return err
	}
	return t.Insert(min(at, t.Len()), e.Text)
}
