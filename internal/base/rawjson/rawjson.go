// Package rawjson reads and writes JSON at the level of its text, where encoding/json decides too much: it matches
// names in any case, accepts duplicate keys and copies every value.
//
// [Check], [Members] and [Scan] are for messages of other programs: the text is checked once, and its parts are used
// where they lie. [Parse] and [Decode] are for documents that people write: every problem has a line and a column.
package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Kind is the type of a JSON value.
type Kind string

// The kinds of JSON values. Missing is the kind of empty text.
const (
	Missing Kind = "missing"
	Null    Kind = "null"
	Bool    Kind = "boolean"
	Number  Kind = "number"
	String  Kind = "string"
	Array   Kind = "array"
	Object  Kind = "object"
)

// Errors of Check and Scan.
var (
	ErrDepth  = errors.New("the text nests too deeply")
	ErrUTF8   = errors.New("the text is not valid UTF-8")
	ErrSyntax = errors.New("the text is not one valid JSON value")
)

// Check returns an error unless data is exactly one JSON value in valid UTF-8 with at most maxDepth nested arrays
// and objects. It does not allocate for valid data. The functions below expect text that passed it.
func Check(data []byte, maxDepth int) error {
	if !utf8.Valid(data) {
		return ErrUTF8
	}
	end, err := scanValue(data, space(data, 0), maxDepth)
	switch {
	case err == ErrDepth:
		return fmt.Errorf("the text nests deeper than %d levels", maxDepth)
	case err != nil || space(data, end) != len(data):
		return ErrSyntax
	}
	return nil
}

// Unambiguous returns an error if readers may understand a checked value differently: an object repeats a name, or a
// string has an escaped surrogate without its partner. Such a value has no canonical form.
func Unambiguous(data []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(data))
	err := d.SkipValue()
	problem, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok:
		return err
	case problem.Err == jsontext.ErrDuplicateName:
		return fmt.Errorf("repeats the name at %q in one object", string(problem.JSONPointer))
	}
	return fmt.Errorf("has a text at %q that is not valid: half of an escaped surrogate pair", string(problem.JSONPointer))
}

// KindOf returns the kind of a checked value.
func KindOf(raw []byte) Kind {
	i := space(raw, 0)
	if i == len(raw) {
		return Missing
	}
	switch raw[i] {
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

// Members returns the members of a checked object in order, duplicates included.
// The values are slices of raw. A value of another kind has no members.
func Members(raw []byte) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		_, _ = Scan(raw, maxDepth, func(key, value []byte) error {
			if !yield(Text(key), value) {
				return errStop
			}
			return nil
		})
	}
}

// Elements returns the elements of a checked array. The values are slices of raw.
// A value of another kind has no elements.
func Elements(raw []byte) iter.Seq2[int, json.RawMessage] {
	return func(yield func(int, json.RawMessage) bool) {
		n := 0
		_, _ = scanArray(raw, space(raw, 0), maxDepth, func(value []byte) error {
			if !yield(n, value) {
				return errStop
			}
			n++
			return nil
		})
	}
}

// maxDepth bounds the recursion on text that was not checked.
const maxDepth = 10_000

// errStop ends a scan early.
var errStop = errors.New("stop")

// Text decodes a checked string. An escaped surrogate without a partner becomes
// U+FFFD. A value of another kind gives "".
func Text(raw []byte) string {
	raw = raw[space(raw, 0):]
	if len(raw) < 2 || raw[0] != '"' {
		return ""
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	text, _ := jsontext.AppendUnquote(nil, raw) // the error is about the surrogates
	return string(text)
}

// Integer reads a checked whole number in any notation: 10, 10.0 or 1e1. ok is
// false for another number or kind, or where a float64 would round.
func Integer(raw []byte) (n int64, ok bool) {
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// Value decodes a checked value into nil, bool, float64, string, []any and map[string]any. A number stays a
// json.Number if it is an integer that a float64 cannot hold exactly, or out of a float64's range.
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

// Append appends v as JSON on one line, without a line break at its end. Invalid UTF-8 in strings becomes U+FFFD, so
// that the output always passes Check. On an error dst is returned as it was.
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
