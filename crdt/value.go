package crdt

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"iter"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// The values in a document are nil, bool, float64, string, []byte, []any and [Object], and the JavaScript
// values [Undefined] and [BigInt]. Edits also accept all integer types, float32, json.Number and
// map[string]any. Reading returns copies.
type (
	// Undefined is JavaScript's undefined.
	Undefined = lib0.Undefined
	// BigInt is a JavaScript BigInt of 64 bits.
	BigInt = lib0.BigInt
	// Object is an object with its members in their original order.
	Object = lib0.Object
	// Member is one member of an Object.
	Member = lib0.Member
)

// Subdocument is a document inside the document. It is preserved but not loaded.
type Subdocument struct{ GUID string }

// Opaque is a shared XML type. It is preserved but cannot be edited.
type Opaque struct{ n *node }

// Tag returns an XML element's name.
func (o Opaque) Tag() string { return o.n.tag }

func (n *node) handle() any { return n.handleAs(n.ref) }

func (n *node) handleAs(ref typeRef) any {
	switch ref {
	case typeArray:
		return &Array{n}
	case typeMap:
		return &Map{n}
	case typeText:
		return &Text{n}
	default:
		return Opaque{n}
	}
}

// appendValue appends a value in JavaScript's encoding.
func appendValue(b []byte, v any, depth int) ([]byte, error) {
	if depth < 0 {
		return nil, errorf(CodeInvalid, nil, "a value is nested too deeply")
	}
	switch v := v.(type) {
	case nil:
		return append(b, lib0.TagNull), nil
	case Undefined:
		return append(b, lib0.TagUndefined), nil
	case bool:
		if v {
			return append(b, lib0.TagTrue), nil
		}
		return append(b, lib0.TagFalse), nil
	case string:
		return lib0.AppendString(append(b, lib0.TagString), wellFormed(v)), nil
	case []byte:
		return lib0.AppendBytes(append(b, lib0.TagBytes), v), nil
	case float64:
		return lib0.AppendNumber(b, v), nil
	case float32:
		return lib0.AppendNumber(b, float64(v)), nil
	case BigInt:
		return binary.BigEndian.AppendUint64(append(b, lib0.TagBigInt), uint64(v)), nil
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return nil, errorf(CodeInvalid, err, "%q is not a number", v)
		}
		return lib0.AppendNumber(b, f), nil
	case []any:
		b = lib0.AppendUint(append(b, lib0.TagArray), uint64(len(v)))
		for _, e := range v {
			var err error
			if b, err = appendValue(b, e, depth-1); err != nil {
				return nil, err
			}
		}
		return b, nil
	case map[string]any:
		o := make(Object, 0, len(v))
		for k, e := range v {
			o = append(o, Member{Key: k, Value: e})
		}
		slices.SortFunc(o, func(a, b Member) int { return cmp.Compare(a.Key, b.Key) })
		return appendObject(b, o, depth)
	case Object:
		return appendObject(b, v, depth)
	}
	if i, ok := integer(v); ok {
		if i > lib0.MaxSafe || i < -lib0.MaxSafe {
			return nil, errorf(CodeInvalid, nil, "%d has no exact number in JavaScript; use BigInt", i)
		}
		return lib0.AppendNumber(b, float64(i)), nil
	}
	return nil, errorf(CodeInvalid, nil, "a value of type %T cannot be in a document", v)
}

func integer(v any) (int64, bool) {
	switch r := reflect.ValueOf(v); {
	case r.Type().PkgPath() != "": // not a predeclared type
		return 0, false
	case r.CanInt():
		return r.Int(), true
	case r.CanUint():
		return int64(min(r.Uint(), math.MaxInt64)), true
	}
	return 0, false
}

// appendObject appends members in JavaScript's order: keys that are array indexes come first, ascending.
func appendObject(b []byte, o Object, depth int) ([]byte, error) {
	o = slices.Clone(o)
	slices.SortStableFunc(o, func(a, b Member) int {
		i, aIndex := arrayIndex(a.Key)
		j, bIndex := arrayIndex(b.Key)
		switch {
		case aIndex && bIndex:
			return cmp.Compare(i, j)
		case aIndex:
			return -1
		case bIndex:
			return 1
		}
		return 0
	})
	seen := make(map[string]bool, len(o))
	b = lib0.AppendUint(append(b, lib0.TagObject), uint64(len(o)))
	for _, m := range o {
		key := wellFormed(m.Key)
		if seen[key] || key == "__proto__" {
			return nil, errorf(CodeInvalid, nil, "an object has the key %q, which must occur once and not be __proto__", key)
		}
		seen[key] = true
		var err error
		if b, err = appendValue(lib0.AppendString(b, key), m.Value, depth-1); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// arrayIndex reports whether JavaScript treats a key as an array index.
func arrayIndex(key string) (uint64, bool) {
	if key == "" || len(key) > 10 || len(key) > 1 && key[0] == '0' {
		return 0, false
	}
	i, err := strconv.ParseUint(key, 10, 32)
	return i, err == nil && i < math.MaxUint32
}

// wellFormed replaces invalid UTF-8.
func wellFormed(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// anyValue appends a value to content of kindAny and checks it against the limits, which other replicas
// have as well.
func (d *Doc) anyValue(b []byte, v any) ([]byte, error) {
	start := len(b)
	b, err := appendValue(b, v, d.limits.AnyDepth)
	if err != nil {
		return nil, err
	}
	limits := d.limits.any()
	r := lib0.NewReader(b[start:])
	if r.Any(&limits); r.Err() != nil {
		return nil, errorf(CodeInvalid, r.Err(), "the value cannot be in a document")
	}
	return b, nil
}

// valueOfJSON decodes JSON that was validated on receipt.
func valueOfJSON(b []byte) any {
	if string(b) == "undefined" {
		return Undefined{}
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return nil // a number too large for float64; JSON.parse gives Infinity
	}
	return v
}

// jsonOf returns a value as JavaScript's JSON.stringify writes it.
func jsonOf(v any) (string, error) {
	b, err := appendValueJSON(nil, v)
	return string(b), err
}

// appendValueJSON appends a value as JSON with sorted keys. NaN and infinities become null, as in
// JavaScript; bytes become base64.
func appendValueJSON(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil, Undefined:
		return append(b, "null"...), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return append(b, "null"...), nil
		}
		if v == 0 {
			return append(b, '0'), nil // not -0
		}
	case string:
		return appendStringJSON(b, v), nil
	case []any:
		return appendArrayJSON(b, slices.All(v))
	case Object:
		m := make(map[string]any, len(v))
		for _, e := range v {
			m[e.Key] = e.Value
		}
		return appendObjectJSON(b, sorted(m))
	case map[string]any:
		return appendObjectJSON(b, sorted(v))
	case Subdocument:
		return append(appendStringJSON(append(b, `{"guid":`...), v.GUID), '}'), nil
	case *Map:
		return v.n.appendJSON(b, typeMap)
	case *Array:
		return v.n.appendJSON(b, typeArray)
	case *Text:
		return v.n.appendJSON(b, typeText)
	case Opaque:
		return v.n.appendJSON(b, v.n.ref)
	}
	one, err := json.Marshal(v)
	if err != nil {
		return nil, errorf(CodeInvalid, err, "a value of type %T has no JSON", v)
	}
	return append(b, one...), nil
}

func appendArrayJSON(b []byte, elements iter.Seq2[int, any]) (_ []byte, err error) {
	b = append(b, '[')
	for i, v := range elements {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendValueJSON(b, v); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func appendObjectJSON(b []byte, members iter.Seq2[string, any]) (_ []byte, err error) {
	b = append(b, '{')
	for key, v := range members {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(appendStringJSON(b, key), ':')
		if b, err = appendValueJSON(b, v); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendStringJSON(b []byte, s string) []byte {
	var w strings.Builder
	e := json.NewEncoder(&w)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // a string can always be encoded
	}
	return append(b, strings.TrimSuffix(w.String(), "\n")...)
}
