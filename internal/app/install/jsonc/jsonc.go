// Package jsonc inserts into and removes from JSON documents, which may have comments and commas behind the last element, and keeps
// every other byte.
package jsonc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxDocument bounds a document, in bytes.
const MaxDocument = 16 << 20

const maxDepth = 200

// kind is the kind of a value.
type kind int

const (
	scalar kind = iota
	object
	array
)

// node is a value of a document. Offsets are those of its bytes.
type node struct {
	kind       kind
	start, end int
	items      []item
	text       string // of a string
}

// item is a member of an object or an element of an array.
type item struct {
	name  string // of a member
	start int    // of its name, or of the element
	value node
}

// ErrSyntax is the error of a document that is not JSON.
var ErrSyntax = errors.New("it is not JSON")

// parser reads a document.
type parser struct {
	doc []byte
	at  int
}

func parse(doc []byte) (node, error) {
	if len(doc) > MaxDocument {
		return node{}, fmt.Errorf("it is longer than %d bytes", MaxDocument)
	}
	if !utf8.Valid(doc) {
		return node{}, fmt.Errorf("%w: it is not UTF-8", ErrSyntax)
	}
	p := &parser{doc: doc}
	if bytes.HasPrefix(doc, []byte("\uFEFF")) {
		p.at = len("\uFEFF")
	}
	if err := p.space(); err != nil {
		return node{}, err
	}
	n, err := p.value(0)
	if err == nil {
		err = p.space()
	}
	if err == nil && p.at < len(doc) {
		err = p.fail("something is behind the value")
	}
	return n, err
}

func (p *parser) fail(what string) error {
	line := 1 + bytes.Count(p.doc[:min(p.at, len(p.doc))], []byte("\n"))
	return fmt.Errorf("%w: line %d: %s", ErrSyntax, line, what)
}

// space skips white space and comments.
func (p *parser) space() error {
	for p.at < len(p.doc) {
		rest := p.doc[p.at:]
		switch {
		case strings.IndexByte(" \t\r\n", rest[0]) >= 0:
			p.at++
		case bytes.HasPrefix(rest, []byte("//")):
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				end = len(rest)
			}
			p.at += end
		case bytes.HasPrefix(rest, []byte("/*")):
			end := bytes.Index(rest[2:], []byte("*/"))
			if end < 0 {
				return p.fail("a comment does not end")
			}
			p.at += 2 + end + 2
		default:
			return nil
		}
	}
	return nil
}

func (p *parser) value(depth int) (node, error) {
	switch {
	case depth > maxDepth:
		return node{}, p.fail("it is nested too deeply")
	case p.at >= len(p.doc):
		return node{}, p.fail("a value is missing")
	case p.doc[p.at] == '{':
		return p.list(object, '}', depth)
	case p.doc[p.at] == '[':
		return p.list(array, ']', depth)
	}
	return p.scalar()
}

// scalar reads a string, a number, true, false or null.
func (p *parser) scalar() (n node, err error) {
	n.start = p.at
	if p.doc[p.at] == '"' {
		for p.at++; ; p.at++ {
			if p.at >= len(p.doc) {
				return n, p.fail("a string does not end")
			}
			if p.doc[p.at] == '\\' {
				p.at++
				continue
			}
			if p.doc[p.at] == '"' {
				break
			}
		}
		p.at++
	} else {
		for p.at < len(p.doc) && strings.IndexByte(" \t\r\n,:[]{}\"/", p.doc[p.at]) < 0 {
			p.at++
		}
	}
	n.end = p.at
	var v any
	if json.Unmarshal(p.doc[n.start:n.end], &v) != nil {
		return n, p.fail("a value is missing or broken")
	}
	n.text, _ = v.(string)
	return n, nil
}

func (p *parser) list(k kind, end byte, depth int) (n node, err error) {
	n = node{kind: k, start: p.at}
	p.at++
	for {
		if err := p.space(); err != nil {
			return n, err
		}
		if p.at < len(p.doc) && p.doc[p.at] == end {
			p.at++
			n.end = p.at
			return n, nil
		}
		it, err := p.item(k, depth)
		if err != nil {
			return n, err
		}
		n.items = append(n.items, it)
		if err := p.space(); err != nil {
			return n, err
		}
		switch {
		case p.at < len(p.doc) && p.doc[p.at] == ',':
			p.at++
		case p.at >= len(p.doc) || p.doc[p.at] != end:
			return n, p.fail("a comma is missing, or an end")
		}
	}
}

func (p *parser) item(k kind, depth int) (it item, err error) {
	it.start = p.at
	if k == object {
		if p.at >= len(p.doc) || p.doc[p.at] != '"' {
			return it, p.fail("a name is missing")
		}
		name, err := p.scalar()
		if err != nil {
			return it, err
		}
		it.name = name.text
		if err := p.space(); err != nil {
			return it, err
		}
		if p.at >= len(p.doc) || p.doc[p.at] != ':' {
			return it, p.fail("a colon is missing")
		}
		p.at++
		if err := p.space(); err != nil {
			return it, err
		}
	}
	it.value, err = p.value(depth + 1)
	return it, err
}

// member returns the index of a member, -1 if there is none.
func (n node) member(name string) int {
	return slices.IndexFunc(n.items, func(it item) bool { return it.name == name })
}

// Check returns an error unless a document is an object, or empty.
func Check(doc []byte) error {
	_, err := root(doc)
	return err
}

// root parses a document that is an object. An empty document has none.
func root(doc []byte) (node, error) {
	n, err := parse(doc)
	if err == nil && n.kind != object {
		err = errors.New("it is not a JSON object")
	}
	return n, err
}

// Get returns the bytes of the value at a path of members, and indexes of elements; ok is false if there is none.
func Get(doc []byte, path ...string) (value []byte, ok bool, err error) {
	from, to, ok, err := Find(doc, path...)
	return doc[from:to], ok, err
}

// Find returns the offsets of the value that [Get] returns.
func Find(doc []byte, path ...string) (from, to int, ok bool, err error) {
	n, err := root(doc)
	if err == nil {
		n, ok = n.down(path)
	}
	if err != nil || !ok {
		return 0, 0, false, err
	}
	return n.start, n.end, true, nil
}

// down returns the value at a path below a value.
func (n node) down(path []string) (node, bool) {
	for _, name := range path {
		i := -1
		switch n.kind {
		case object:
			i = n.member(name)
		case array:
			if at, err := strconv.Atoi(name); err == nil && at < len(n.items) {
				i = at
			}
		}
		if i < 0 {
			return node{}, false
		}
		n = n.items[i].value
	}
	return n, true
}

// Insert returns a document with a member more, and the bytes that were inserted. Objects on the way to it are made where they are
// missing. value is indented JSON. It is an error if the member is there.
func Insert(doc, value []byte, path ...string) (changed, inserted []byte, err error) {
	return insert(doc, value, path, false)
}

// Append returns a document with an element more in the array at a path, which is made if it is missing, and the bytes that were
// inserted.
func Append(doc, value []byte, path ...string) (changed, inserted []byte, err error) {
	return insert(doc, value, path, true)
}

func insert(doc, value []byte, path []string, element bool) (changed, inserted []byte, err error) {
	if !json.Valid(value) {
		return nil, nil, errors.New("the value is not JSON")
	}
	n, err := root(doc)
	if err != nil {
		return nil, nil, err
	}
	depth := 0
	for depth < len(path) {
		i := n.member(path[depth])
		if i < 0 {
			break
		}
		n = n.items[i].value
		depth++
		if depth < len(path) && n.kind != object {
			return nil, nil, fmt.Errorf("%q is not an object", strings.Join(path[:depth], "."))
		}
	}
	rest := path[depth:]
	switch {
	case element && len(rest) == 0 && n.kind != array:
		return nil, nil, fmt.Errorf("%q is not an array", strings.Join(path, "."))
	case !element && len(rest) == 0:
		return nil, nil, fmt.Errorf("there is a member %q already", strings.Join(path, "."))
	}
	text := string(value)
	if element && len(rest) > 0 {
		text = "[\n" + indented(text, "  ") + "\n]"
	}
	for i := len(rest) - 1; i > 0; i-- {
		text = "{\n" + indented(member(rest[i], text), "  ") + "\n}"
	}
	if len(rest) > 0 {
		text = member(rest[0], text)
	}
	at, inserted := place(doc, n, text)
	return slices.Concat(doc[:at], inserted, doc[at:]), inserted, nil
}

func member(name, value string) string {
	quoted, err := json.Marshal(name)
	if err != nil { // strings always have JSON
		panic(err)
	}
	return string(quoted) + ": " + value
}

func indented(text, by string) string { return by + strings.ReplaceAll(text, "\n", "\n"+by) }

// place returns where an item is inserted at the end of a list, and the bytes with what separates it from the others.
func place(doc []byte, list node, text string) (at int, inserted []byte) {
	newline := "\n"
	if bytes.Contains(doc, []byte("\r\n")) {
		newline = "\r\n"
	}
	outer := indentAt(doc, list.start)
	inner := outer + "  "
	if len(list.items) == 0 {
		body := newline + indented(text, inner) + newline + outer
		return list.start + 1, []byte(strings.ReplaceAll(strings.ReplaceAll(body, "\r\n", "\n"), "\n", newline))
	}
	last := list.items[len(list.items)-1]
	if own := indentAt(doc, last.start); bytes.ContainsRune(doc[list.start:last.start], '\n') {
		inner = own
	}
	body := "," + newline + indented(text, inner)
	return last.value.end, []byte(strings.ReplaceAll(strings.ReplaceAll(body, "\r\n", "\n"), "\n", newline))
}

// indentAt returns the white space with which the line of an offset begins.
func indentAt(doc []byte, at int) string {
	line := doc[bytes.LastIndexByte(doc[:at], '\n')+1 : at]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// Remove returns a document without the items that match: members of the object at a path as of [Get], or elements of the array there. With them goes
// one comma. The list stays, also if it is empty.
func Remove(doc []byte, match func(name string, value []byte) bool, path ...string) ([]byte, error) {
	for {
		n, err := root(doc)
		if err != nil {
			return nil, err
		}
		n, ok := n.down(path)
		if !ok {
			return doc, nil
		}
		i := slices.IndexFunc(n.items, func(it item) bool { return match(it.name, doc[it.value.start:it.value.end]) })
		if i < 0 {
			return doc, nil
		}
		from, to := n.cut(doc, i)
		doc = slices.Concat(doc[:from], doc[to:])
	}
}

// cut returns the bytes that go with an item: up to the one before it, or to the next one if it is the first.
func (n node) cut(doc []byte, i int) (from, to int) {
	it := n.items[i]
	switch {
	case i > 0:
		return n.items[i-1].value.end, it.value.end
	case len(n.items) > 1:
		return it.start, n.items[1].start
	}
	p := &parser{doc: doc, at: it.value.end}
	if p.space() == nil && p.at < len(doc) && doc[p.at] == ',' {
		return it.start, p.at + 1
	}
	return it.start, it.value.end
}

// Plain returns a value as JSON without comments and commas at the end; nil if it is broken.
func Plain(value []byte) []byte {
	n, err := parse(value)
	if err != nil {
		return nil
	}
	return n.plain(nil, value)
}

func (n node) plain(out, doc []byte) []byte {
	if n.kind == scalar {
		return append(out, doc[n.start:n.end]...)
	}
	out = append(out, doc[n.start])
	for i, it := range n.items {
		if i > 0 {
			out = append(out, ',')
		}
		if n.kind == object {
			name, err := json.Marshal(it.name)
			if err != nil { // strings always have JSON
				panic(err)
			}
			out = append(append(out, name...), ':')
		}
		out = it.value.plain(out, doc)
	}
	return append(out, doc[n.end-1])
}
