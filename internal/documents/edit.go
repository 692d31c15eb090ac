package documents

import (
	"slices"
	"strings"

	"github.com/parleyhub/parley/crdt"
)

// Op is what an Edit does.
type Op string

// The operations.
const (
	OpSet       Op = "set"       // give a key a value
	OpDelete    Op = "delete"    // take a key or a list's elements away
	OpInsert    Op = "insert"    // put values into a list
	OpMake      Op = "make"      // make a shared map, array or text, if there is none
	OpText      Op = "text"      // replace a part of a text
	OpIncrement Op = "increment" // add to a counter
)

// Edit is one edit of a document, as it comes from people and agents. Path leads from the
// root's name through keys; maps on the way are made if they are missing.
type Edit struct {
	Op     Op       `json:"op"`
	Path   []string `json:"path"`
	Value  any      `json:"value,omitempty"`  // of set: any JSON
	Values []any    `json:"values,omitempty"` // of insert
	Index  *int     `json:"index,omitempty"`  // of insert, delete and text; the end if it is missing
	Count  int      `json:"count,omitempty"`  // of delete: how many elements; of text: how many UTF-16 units go
	Text   string   `json:"text,omitempty"`   // of text: what comes
	Type   string   `json:"type,omitempty"`   // of make: map, array or text
	By     int64    `json:"by,omitempty"`     // of increment; 1 if it is missing
}

// MaxEdits bounds the edits of one change, and the steps of a path.
const (
	MaxEdits = 10_000
	maxPath  = 32
)

// Apply makes edits one change; none of them happens if one cannot.
func Apply(doc *crdt.Doc, edits []Edit) error {
	if len(edits) == 0 || len(edits) > MaxEdits {
		return invalid("a change has between 1 and %d edits", MaxEdits)
	}
	_, err := doc.Transact(nil, func() error {
		for i, e := range edits {
			if err := e.apply(doc); err != nil {
				return &Error{Code: CodeInvalid, Message: invalid("edit %d, %q", i+1, string(e.Op)).Message, Err: err}
			}
		}
		return nil
	})
	return err
}

func (e *Edit) apply(doc *crdt.Doc) error {
	if len(e.Path) == 0 || len(e.Path) > maxPath {
		return invalid("a path has between 1 and %d names, the root's first", maxPath)
	}
	for _, name := range e.Path {
		if name == "" {
			return invalid("a path has no empty names")
		}
	}
	if err := e.checkFields(); err != nil {
		return err
	}
	switch e.Op {
	case OpSet:
		m, key, err := e.parent(doc)
		if err != nil {
			return err
		}
		return m.Set(key, e.Value)
	case OpMake:
		_, err := e.target(doc, e.Type)
		return err
	case OpDelete:
		if e.Index == nil {
			return e.deleteKey(doc)
		}
		return e.deleteElements(doc)
	case OpInsert:
		return e.insert(doc)
	case OpText:
		return e.replaceText(doc)
	case OpIncrement:
		m, err := e.target(doc, "map")
		if err != nil {
			return err
		}
		by := e.By
		if by == 0 {
			by = 1
		}
		return crdt.CounterOf(m.(*crdt.Map)).Add(by)
	}
	return errNoSuchOp
}

var errNoSuchOp = invalid("there is no such operation; there are set, delete, insert, make, text, increment")

// fields are those that each operation uses besides its path.
var fields = map[Op][]string{
	OpSet: {"value"}, OpDelete: {"index", "count"}, OpInsert: {"values", "index"}, OpMake: {"type"},
	OpText: {"text", "index", "count"}, OpIncrement: {"by"},
}

// checkFields refuses what an operation would not use: whoever wrote it meant something else, and
// a set with "values" would clear what is there.
func (e *Edit) checkFields() error {
	used, ok := fields[e.Op]
	if !ok {
		return errNoSuchOp
	}
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
		return invalid("index and count are not negative")
	case e.Op == OpDelete && e.Index == nil && e.Count != 0:
		return invalid("count needs an index; without both the whole key goes")
	case e.Op == OpInsert && len(e.Values) == 0:
		return invalid(`it needs "values", a list`)
	}
	return nil
}

// parent returns the map that the path's last name is a key of.
func (e *Edit) parent(doc *crdt.Doc) (*crdt.Map, string, error) {
	if len(e.Path) < 2 {
		return nil, "", invalid("the path needs a key behind the root's name")
	}
	if err := checkRoot(doc, e.Path[0], "map"); err != nil {
		return nil, "", err
	}
	m := doc.Map(e.Path[0])
	for _, name := range e.Path[1 : len(e.Path)-1] {
		v, there := m.Get(name)
		if !there {
			inner, err := m.SetMap(name)
			if err != nil {
				return nil, "", err
			}
			m = inner
			continue
		}
		inner, ok := v.(*crdt.Map)
		if !ok {
			return nil, "", invalid("%q on the path is no shared map", name)
		}
		m = inner
	}
	return m, e.Path[len(e.Path)-1], nil
}

// checkRoot refuses to use a root as something else than it is: it would be both, and
// shown as one.
func checkRoot(doc *crdt.Doc, name, kind string) error {
	have := doc.Shape(name)
	if have == "" || have == kind || have == "list" && kind != "map" {
		return nil
	}
	return invalid("%q is there and no shared %s", name, kind)
}

// target returns the shared type at the path's end, made if there is none.
func (e *Edit) target(doc *crdt.Doc, kind string) (any, error) {
	if len(e.Path) == 1 {
		if err := checkRoot(doc, e.Path[0], kind); err != nil {
			return nil, err
		}
		switch kind {
		case "map":
			return doc.Map(e.Path[0]), nil
		case "array":
			return doc.Array(e.Path[0]), nil
		case "text":
			return doc.Text(e.Path[0]), nil
		}
		return nil, invalid("a type is map, array or text")
	}
	m, key, err := e.parent(doc)
	if err != nil {
		return nil, err
	}
	v, there := m.Get(key)
	switch kind {
	case "map":
		if t, ok := v.(*crdt.Map); ok {
			return t, nil
		} else if !there {
			return m.SetMap(key)
		}
	case "array":
		if t, ok := v.(*crdt.Array); ok {
			return t, nil
		} else if !there {
			return m.SetArray(key)
		}
	case "text":
		if t, ok := v.(*crdt.Text); ok {
			return t, nil
		} else if !there {
			return m.SetText(key)
		}
	default:
		return nil, invalid("a type is map, array or text")
	}
	return nil, invalid("%q is there and no shared %s", key, kind)
}

// deleteKey takes a key away. Where nothing is, it makes nothing on the way there.
func (e *Edit) deleteKey(doc *crdt.Doc) error {
	if len(e.Path) > 1 && !e.leads(doc) {
		return nil
	}
	m, key, err := e.parent(doc)
	if err != nil {
		return err
	}
	return m.Delete(key)
}

// leads reports whether something is at each step of the path but the last.
func (e *Edit) leads(doc *crdt.Doc) bool {
	switch shape := doc.Shape(e.Path[0]); {
	case shape == "":
		return false
	case shape != "map" || len(e.Path) == 1:
		return true
	}
	at := doc.Map(e.Path[0])
	for _, name := range e.Path[1 : len(e.Path)-1] {
		v, there := at.Get(name)
		if !there {
			return false
		}
		inner, ok := v.(*crdt.Map)
		if !ok {
			return true // to something else, which is an error
		}
		at = inner
	}
	return true
}

func (e *Edit) deleteElements(doc *crdt.Doc) error {
	if !e.leads(doc) {
		return invalid("there is no list %s", strings.Join(e.Path, "."))
	}
	a, err := e.target(doc, "array")
	if err != nil {
		return err
	}
	count := e.Count
	if count == 0 {
		count = 1
	}
	return a.(*crdt.Array).Delete(*e.Index, count)
}

func (e *Edit) insert(doc *crdt.Doc) error {
	v, err := e.target(doc, "array")
	if err != nil {
		return err
	}
	a := v.(*crdt.Array)
	if e.Index == nil {
		return a.Append(e.Values...)
	}
	return a.Insert(*e.Index, e.Values...)
}

func (e *Edit) replaceText(doc *crdt.Doc) error {
	v, err := e.target(doc, "text")
	if err != nil {
		return err
	}
	t := v.(*crdt.Text)
	at := t.Len()
	if e.Index != nil {
		at = *e.Index
	}
	if err := t.Delete(at, e.Count); err != nil {
		return err
	}
	return t.Insert(min(at, t.Len()), e.Text)
}
