package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/parleyhub/parley/internal/base/text"
)

// MaxDepth is how deeply objects and lists may be nested.
const MaxDepth = 64

// Position is a place in a document. Both numbers count from 1; columns are characters, not bytes.
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

// Node is a value of a document with its position. Value is a string, bool, json.Number, nil, []*Node or []Member.
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

// Parse reads one JSON value, with or without a byte order mark. It returns either
// a node or problems; duplicate keys are problems.
func Parse(data []byte) (*Node, []Problem) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if bad := invalidUTF8(data); bad >= 0 {
		return nil, []Problem{{Position: locate(data, bad), Message: "not valid UTF-8: save the file as UTF-8"}}
	}
	p := &parser{data: data, dec: jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))}
	node, err := p.value("")
	switch {
	case err != nil:
		return nil, append(p.problems, p.syntaxProblem(err))
	case p.next() < len(data):
		p.report(p.next(), "", "more text behind the end of the document")
	}
	if len(p.problems) > 0 {
		return nil, p.problems
	}
	return node, nil
}

type parser struct {
	data     []byte
	dec      *jsontext.Decoder
	problems []Problem
}

func (p *parser) report(offset int, path, format string, args ...any) {
	p.problems = append(p.problems, Problem{locate(p.data, offset), path, fmt.Sprintf(format, args...)})
}

// value reads the next value.
func (p *parser) value(path string) (*Node, error) {
	node := &Node{Position: locate(p.data, p.next())}
	token, err := p.dec.ReadToken()
	if err != nil {
		return nil, err
	}
	if p.dec.StackDepth() > MaxDepth {
		return nil, ErrDepth
	}
	switch token.Kind() {
	case jsontext.KindBeginObject:
		node.Value, err = p.members(path)
	case jsontext.KindBeginArray:
		node.Value, err = p.items(path)
	case jsontext.KindString:
		node.Value = token.String()
	case jsontext.KindNumber:
		node.Value = json.Number(token.String())
	case jsontext.KindTrue, jsontext.KindFalse:
		node.Value = token.Bool()
	}
	return node, err
}

func (p *parser) members(path string) ([]Member, error) {
	members := []Member{}
	lines := map[string]int{} // of the keys
	for p.dec.PeekKind() != jsontext.KindEndObject {
		offset := p.next()
		if offset < len(p.data) && p.data[offset] != '"' { // the decoder would report a later byte
			return nil, &jsontext.SyntacticError{ByteOffset: int64(offset),
				Err: fmt.Errorf("invalid character %q where a key in quotes is expected", p.character(offset))}
		}
		token, err := p.dec.ReadToken()
		if err != nil {
			return nil, err
		}
		key, at := token.String(), locate(p.data, offset)
		if line, ok := lines[key]; ok {
			p.report(offset, join(path, key), "duplicate key; the first is in line %d", line)
		} else {
			lines[key] = at.Line
		}
		value, err := p.value(join(path, key))
		if err != nil {
			return nil, err
		}
		members = append(members, Member{at, key, value})
	}
	_, err := p.dec.ReadToken()
	return members, err
}

func (p *parser) items(path string) ([]*Node, error) {
	items := []*Node{}
	for p.dec.PeekKind() != jsontext.KindEndArray {
		item, err := p.value(fmt.Sprintf("%s[%d]", path, len(items)))
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	_, err := p.dec.ReadToken()
	return items, err
}

// next returns the offset of the next token.
func (p *parser) next() int {
	i := int(p.dec.InputOffset())
	for i < len(p.data) && strings.IndexByte(" \t\r\n,:", p.data[i]) >= 0 {
		i++
	}
	return i
}

func (p *parser) character(offset int) rune {
	r, _ := utf8.DecodeRune(p.data[offset:])
	return r
}

func (p *parser) syntaxProblem(err error) Problem {
	var syntax *jsontext.SyntacticError
	switch {
	case errors.Is(err, ErrDepth):
		return Problem{Position: locate(p.data, int(p.dec.InputOffset())-1), Message: fmt.Sprintf("nested more than %d levels deep", MaxDepth)}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Problem{Position: locate(p.data, len(p.data)), Message: "the document ends too early"}
	case errors.As(err, &syntax):
		return Problem{Position: locate(p.data, int(syntax.ByteOffset)), Message: "not JSON: " + syntax.Err.Error()}
	}
	return Problem{Position: locate(p.data, p.next()), Message: "not JSON: " + err.Error()}
}

// locate turns an offset into a line and a column.
func locate(data []byte, offset int) Position {
	offset = min(max(offset, 0), len(data))
	before := data[:offset]
	start := bytes.LastIndexByte(before, '\n') + 1
	return Position{Line: bytes.Count(before, []byte("\n")) + 1, Column: utf8.RuneCount(before[start:]) + 1}
}

// invalidUTF8 returns the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(data []byte) int {
	for i, r := range string(data) {
		if r == utf8.RuneError && !bytes.HasPrefix(data[i:], []byte("\ufffd")) {
			return i
		}
	}
	return -1
}

func join(path, key string) string {
	if len(key) > maxShown || strings.ContainsFunc(key, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-$", r)
	}) {
		key = text.Quote(key, maxShown)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// maxShown is the most bytes of the document that a problem quotes.
const maxShown = 100
