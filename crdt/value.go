package crdt

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// Values that a document holds are nil, bool, float64, string, []byte, []any and
// [Object], and what only JavaScript has, [Undefined] and [BigInt]. Besides
// those, edits take all integers, float32, json.Number and map[string]any.
// Reading gives each value its own copy.
type (
	// Undefined is JavaScript's undefined.
	Undefined = lib0.Undefined
	// BigInt is a JavaScript BigInt of 64 bits.
	BigInt = lib0.BigInt
	// Object is an object with its members in the order of who wrote it.
	Object = lib0.Object
	// Member is one member of an Object.
	Member = lib0.Member
)

// Subdocument stands for a document inside the document. It is kept as it is,
// but not loaded.
type Subdocument struct{ GUID string }

// Opaque stands for a shared XML type. It is kept as it is.
type Opaque struct{ n *node }

// Tag returns an XML element's name.
func (o Opaque) Tag() string { return o.n.tag }

func (n *node) handle() any {
	switch n.ref {
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

// appendValue appends a value as JavaScript would write it.
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
		b = append(b, lib0.TagBigInt)
		for shift := 56; shift >= 0; shift -= 8 {
			b = append(b, byte(uint64(v)>>shift))
		}
		return b, nil
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
			return nil, errorf(CodeInvalid, nil, "%d is not exact as a number; use BigInt", i)
		}
		return lib0.AppendNumber(b, float64(i)), nil
	}
	return nil, errorf(CodeInvalid, nil, "a value of type %T cannot be in a document", v)
}

func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int:
		return int64(v), true
	case int8:
		return int64(v), true
	case int16:
		return int64(v), true
	case int32:
		return int64(v), true
	case int64:
		return v, true
	case uint:
		return int64(min(uint64(v), math.MaxInt64)), true
	case uint8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case uint64:
		return int64(min(v, math.MaxInt64)), true
	}
	return 0, false
}

// appendObject writes members in the order in which JavaScript has them: those whose keys
// are indexes come first, ascending.
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
			return nil, errorf(CodeInvalid, nil, "an object must not have the key %q, or have it twice", key)
		}
		seen[key] = true
		var err error
		if b, err = appendValue(lib0.AppendString(b, key), m.Value, depth-1); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// arrayIndex reports whether JavaScript treats a key as an index.
func arrayIndex(key string) (uint64, bool) {
	if key == "" || len(key) > 10 || len(key) > 1 && key[0] == '0' {
		return 0, false
	}
	i, err := strconv.ParseUint(key, 10, 32)
	return i, err == nil && i < math.MaxUint32
}

// wellFormed replaces what is not UTF-8.
func wellFormed(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// anyItem appends a value to content of kindAny and checks it against the limits
// that other replicas have too.
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

// valueOfJSON decodes JSON that was checked when it came.
func valueOfJSON(b []byte) any {
	if string(b) == "undefined" {
		return Undefined{}
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return nil // a number that is too large for a float64: JSON.parse gives Infinity
	}
	return v
}

// jsonOf returns a value as JavaScript's JSON.stringify writes it.
func jsonOf(v any) (string, error) {
	b, err := appendValueJSON(nil, v)
	return string(b), err
}

// appendValueJSON appends a value as JSON, objects with sorted keys. NaN and
// infinities become null, as in JavaScript; bytes become base64.
func appendValueJSON(b []byte, v any) ([]byte, error) {
	var err error
	switch v := v.(type) {
	case nil, Undefined:
		return append(b, "null"...), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return append(b, "null"...), nil
		}
		if v == 0 {
			return append(b, '0'), nil // and not -0
		}
	case string:
		return appendStringJSON(b, v), nil
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendValueJSON(b, e); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case Object:
		m := make(map[string]any, len(v))
		for _, e := range v {
			m[e.Key] = e.Value
		}
		return appendValueJSON(b, m)
	case map[string]any:
		b = append(b, '{')
		for i, key := range sortedKeys(v) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendStringJSON(b, key), ':')
			if b, err = appendValueJSON(b, v[key]); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	case Subdocument:
		return append(appendStringJSON(append(b, `{"guid":`...), v.GUID), '}'), nil
	}
	one, err := json.Marshal(v)
	if err != nil {
		return nil, errorf(CodeInvalid, err, "a value of type %T has no JSON", v)
	}
	return append(b, one...), nil
}

func appendStringJSON(b []byte, s string) []byte {
	var w strings.Builder
	e := json.NewEncoder(&w)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // a string can always be written
	}
	return append(b, strings.TrimSuffix(w.String(), "\n")...)
}
