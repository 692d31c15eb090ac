package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxDepth is how deeply objects and lists may be nested.
const MaxDepth = 64

// Position is a place in a document, both counted from 1; Column in characters.
type Position struct{ Line, Column int }

// Problem is one thing that is wrong with a document.
type Problem struct {
	Position
	// Path is where in the document, e.g. "channels[1].name"; "" is the whole.
	Path string
	// Message says what is wrong and, where there is a choice, what is allowed.
	Message string
}

// String returns "line:column: path: message".
func (p Problem) String() string {
	if p.Path == "" {
		return fmt.Sprintf("%d:%d: %s", p.Line, p.Column, p.Message)
	}
	return fmt.Sprintf("%d:%d: %s: %s", p.Line, p.Column, p.Path, p.Message)
}

// Node is a value of a document with its place. Value is a string, bool,
// json.Number, nil, []*Node or []Member.
type Node struct {
	Position
	Value any
}

// Member is one key of an object, in the order of the document.
type Member struct {
	Position // of the key
	Key      string
	Value    *Node
}

// Parse reads one JSON value. It returns either a node or problems; duplicate
// keys are problems.
func Parse(data []byte) (*Node, []Problem) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if bad := invalidUTF8(data); bad >= 0 {
		return nil, []Problem{{Position: locate(data, bad), Message: "not valid UTF-8: save the file as UTF-8"}}
	}
	p := &parser{data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	p.dec.UseNumber()
	node, err := p.value("", 0)
	if err == nil {
		err = p.end()
	}
	if err != nil {
		return nil, append(p.problems, p.syntaxProblem(err))
	}
	if len(p.problems) > 0 {
		return nil, p.problems
	}
	return node, nil
}

type parser struct {
	data     []byte
	dec      *json.Decoder
	problems []Problem
}

var errTooDeep = errors.New("nested too deeply")

// value reads the next value.
func (p *parser) value(path string, depth int) (*Node, error) {
	if depth > MaxDepth {
		return nil, errTooDeep
	}
	at := p.next()
	tok, err := p.dec.Token()
	if err != nil {
		return nil, err
	}
	node := &Node{Position: at, Value: tok}
	switch tok {
	case json.Delim('{'):
		node.Value, err = p.members(path, depth)
	case json.Delim('['):
		node.Value, err = p.items(path, depth)
	}
	return node, err
}

func (p *parser) members(path string, depth int) ([]Member, error) {
	members := []Member{}
	seen := map[string]Position{}
	for p.dec.More() {
		at := p.next()
		tok, err := p.dec.Token()
		if err != nil {
			return nil, err
		}
		key := tok.(string) // the decoder lets nothing else stand here
		if first, ok := seen[key]; ok {
			p.problems = append(p.problems, Problem{at, join(path, key),
				fmt.Sprintf("duplicate key; it stands in line %d already", first.Line)})
		}
		seen[key] = at
		value, err := p.value(join(path, key), depth+1)
		if err != nil {
			return nil, err
		}
		members = append(members, Member{at, key, value})
	}
	_, err := p.dec.Token()
	return members, err
}

func (p *parser) items(path string, depth int) ([]*Node, error) {
	items := []*Node{}
	for p.dec.More() {
		item, err := p.value(fmt.Sprintf("%s[%d]", path, len(items)), depth+1)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	_, err := p.dec.Token()
	return items, err
}

// end refuses anything behind the value.
func (p *parser) end() error {
	at := p.next()
	_, err := p.dec.Token()
	if errors.Is(err, io.EOF) {
		return nil
	}
	p.problems = append(p.problems, Problem{Position: at, Message: "more text behind the end of the document"})
	return nil
}

// next is where the next token begins.
func (p *parser) next() Position {
	i := int(p.dec.InputOffset())
	for i < len(p.data) && bytes.IndexByte([]byte(" \t\r\n,:"), p.data[i]) >= 0 {
		i++
	}
	return locate(p.data, i)
}

func (p *parser) syntaxProblem(err error) Problem {
	if errors.Is(err, errTooDeep) {
		return Problem{Position: p.next(), Message: fmt.Sprintf("nested more than %d levels deep", MaxDepth)}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Problem{Position: locate(p.data, len(p.data)), Message: "the document ends too early"}
	}
	// The offsets of Token's errors mean now the bad byte, now the one behind
	// it; Unmarshal's always mean the one behind.
	var syntax *json.SyntaxError
	var ignored any
	if errors.As(json.Unmarshal(p.data, &ignored), &syntax) {
		return Problem{Position: locate(p.data, int(syntax.Offset)-1), Message: "not JSON: " + syntax.Error()}
	}
	return Problem{Position: p.next(), Message: "not JSON: " + err.Error()}
}

// locate turns an offset into a line and a column.
func locate(data []byte, offset int) Position {
	offset = min(max(offset, 0), len(data))
	before := data[:offset]
	start := bytes.LastIndexByte(before, '\n') + 1
	return Position{Line: bytes.Count(before, []byte("\n")) + 1, Column: utf8.RuneCount(before[start:]) + 1}
}

// invalidUTF8 is the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size <= 1 {
			return i
		}
		i += size
	}
	return -1
}

func join(path, key string) string {
	if len(key) > maxShown || strings.ContainsFunc(key, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-$", r)
	}) {
		key = quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// maxShown bounds what problems repeat of the document, in bytes.
const maxShown = 100

// quote shows a text of the document, which may be hostile, in one line.
func quote(text string) string {
	if len(text) > maxShown {
		text = strings.ToValidUTF8(text[:maxShown], "") + "…"
	}
	return strconv.Quote(text)
}
