// Package rawjson checks JSON text from outside once and then takes it apart
// without copying it. Unlike encoding/json it matches member names by case and
// lets a caller see duplicates, which requests that are forwarded and authorised
// by name need. Its encoder is the one that every API of the hub writes with.
package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Kind is the type of a JSON value.
type Kind string

// The kinds of JSON values. Missing is that of empty text.
const (
	Missing Kind = "missing"
	Null    Kind = "null"
	Bool    Kind = "boolean"
	Number  Kind = "number"
	String  Kind = "string"
	Array   Kind = "array"
	Object  Kind = "object"
)

// Errors of Check.
var (
	ErrUTF8   = errors.New("the text is not valid UTF-8")
	ErrSyntax = errors.New("the text is not one valid JSON value")
)

// Check tells whether data is exactly one JSON value in valid UTF-8 that nests
// at most maxDepth arrays and objects. The other functions of the package need
// text that passed it.
func Check(data []byte, maxDepth int) error {
	if !utf8.Valid(data) {
		return ErrUTF8
	}
	// Depth first: json.Valid would itself recurse up to 10,000 levels.
	if d := depth(data); d > maxDepth {
		return fmt.Errorf("the text nests deeper than %d levels", maxDepth)
	}
	if !json.Valid(data) {
		return ErrSyntax
	}
	return nil
}

// depth counts how deep brackets nest outside of strings. On text that is no
// JSON the figure means nothing, but the count still ends.
func depth(data []byte) int {
	deepest, level := 0, 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = stringEnd(data, i) - 1
		case '{', '[':
			level++
			deepest = max(deepest, level)
		case '}', ']':
			level--
		}
	}
	return deepest
}

// stringEnd returns the index after the string that starts at i, or len(data)
// where it does not end.
func stringEnd(data []byte, i int) int {
	for i++; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(data)
}

// KindOf tells the kind of a checked value by its first character.
func KindOf(raw []byte) Kind {
	raw = trim(raw)
	if len(raw) == 0 {
		return Missing
	}
	switch raw[0] {
	case 'n':
		return Null
	case 't', 'f':
		return Bool
	case '"':
		return String
	case '[':
		return Array
	case '{':
		return Object
	default:
		return Number
	}
}

// Members yields the members of a checked object in order, duplicates included.
// The values are parts of raw. Any other kind yields nothing.
func Members(raw []byte) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		if KindOf(raw) != Object {
			return
		}
		i := skipSpace(raw, bytes.IndexByte(raw, '{')+1)
		for i < len(raw) && raw[i] != '}' {
			end := stringEnd(raw, i)
			name := Text(raw[i:end])
			i = skipSpace(raw, skipSpace(raw, end)+1) // the colon
			end = valueEnd(raw, i)
			if !yield(name, raw[i:end:end]) {
				return
			}
			i = skipSpace(raw, end)
			if i < len(raw) && raw[i] == ',' {
				i = skipSpace(raw, i+1)
			}
		}
	}
}

// Elements yields the elements of a checked array. The values are parts of raw.
// Any other kind yields nothing.
func Elements(raw []byte) iter.Seq2[int, json.RawMessage] {
	return func(yield func(int, json.RawMessage) bool) {
		if KindOf(raw) != Array {
			return
		}
		i := skipSpace(raw, bytes.IndexByte(raw, '[')+1)
		for n := 0; i < len(raw) && raw[i] != ']'; n++ {
			end := valueEnd(raw, i)
			if !yield(n, raw[i:end:end]) {
				return
			}
			i = skipSpace(raw, end)
			if i < len(raw) && raw[i] == ',' {
				i = skipSpace(raw, i+1)
			}
		}
	}
}

// Text decodes a checked string. Escaped surrogates without a partner become
// U+FFFD, as in encoding/json.
func Text(raw []byte) string {
	raw = trim(raw)
	if len(raw) < 2 || raw[0] != '"' {
		return ""
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return "" // not a checked string
	}
	return s
}

// Value decodes a checked value into nil, bool, float64, string, []any and
// map[string]any. An integer that a float64 cannot hold exactly, and a number
// out of its range, stays a json.Number: nothing is rounded unseen.
func Value(raw []byte) any {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil // not a checked value
	}
	return plainNumbers(v)
}

func plainNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		return plainNumber(v)
	case []any:
		for i := range v {
			v[i] = plainNumbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plainNumbers(v[k])
		}
	}
	return v
}

func plainNumber(n json.Number) any {
	const exact = 1 << 53 // every integer below is a float64, and none above rounds to below
	f, err := strconv.ParseFloat(string(n), 64)
	if err != nil {
		return n
	}
	if !strings.ContainsAny(string(n), ".eE") && (f >= exact || f <= -exact) {
		return n
	}
	return f
}

// valueEnd returns the index after the checked value that starts at i.
func valueEnd(raw []byte, i int) int {
	if i >= len(raw) {
		return len(raw)
	}
	switch raw[i] {
	case '"':
		return stringEnd(raw, i)
	case '{', '[':
		return nestedEnd(raw, i)
	}
	for i < len(raw) && !isSpace(raw[i]) && raw[i] != ',' && raw[i] != '}' && raw[i] != ']' {
		i++
	}
	return i
}

func nestedEnd(raw []byte, i int) int {
	level := 0
	for i < len(raw) {
		switch raw[i] {
		case '"':
			i = stringEnd(raw, i)
			continue
		case '{', '[':
			level++
		case '}', ']':
			level--
		}
		i++
		if level == 0 {
			return i
		}
	}
	return len(raw)
}

func skipSpace(raw []byte, i int) int {
	for i < len(raw) && isSpace(raw[i]) {
		i++
	}
	return i
}

func trim(raw []byte) []byte { return raw[skipSpace(raw, 0):] }

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// encoder is a buffer with an encoder that writes into it.
type encoder struct {
	buf bytes.Buffer
	enc *json.Encoder
}

// maxPooled is the largest buffer that is kept for the next use.
const maxPooled = 64 << 10

var encoders = sync.Pool{New: func() any {
	e := new(encoder)
	e.enc = json.NewEncoder(&e.buf)
	e.enc.SetEscapeHTML(false) // the text goes to programs, not into HTML
	return e
}}

// Append appends v as JSON on one line, without a line break at its end. Invalid
// UTF-8 in strings becomes U+FFFD, so that the output always passes Check. On an
// error dst is returned as it was.
func Append(dst []byte, v any) ([]byte, error) {
	e := encoders.Get().(*encoder)
	defer func() {
		if e.buf.Cap() <= maxPooled {
			encoders.Put(e)
		}
	}()
	e.buf.Reset()
	if err := e.enc.Encode(v); err != nil {
		return dst, err
	}
	return append(dst, bytes.TrimSuffix(e.buf.Bytes(), []byte{'\n'})...), nil
}
