package dialect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/rawjson"
)

// Bounds of the parameters of a request.
const (
	maxID       = 256      // bytes of an id or name
	maxMembers  = 256      // of an object that is read by name
	maxParts    = 256      // of a message
	maxList     = 64       // elements of a list of strings
	maxURI      = 8 << 10  // bytes
	maxMetadata = 64 << 10 // bytes of JSON of one metadata object
	maxData     = 1 << 20  // bytes of JSON of one data part
)

// object reads the members of one JSON object by name. A wrong member yields the zero
// value; the first error of a request's parameters is kept in err.
type object struct {
	path    string // "" for the params themselves
	members map[string]json.RawMessage
	err     *error // shared by all objects of a request
}

// readParams reads a request's params. Missing params are an empty object.
func readParams(raw json.RawMessage) object {
	o := object{err: new(error)}
	if rawjson.KindOf(raw) == rawjson.Array {
		o.fail("", "must be an object with named parameters, not an array")
	}
	return o.read("", raw)
}

// read reads the member of o, or o itself if name is empty.
func (o object) read(name string, raw json.RawMessage) object {
	o.path, o.members = o.field(name), nil
	for name, value := range rawjson.Members(raw) {
		if o.members == nil {
			o.members = make(map[string]json.RawMessage, 8)
		}
		if _, duplicate := o.members[name]; duplicate {
			o.fail(fmt.Sprintf("%.64s", name), "is a duplicate")
		}
		if len(o.members) == maxMembers {
			o.fail("", fmt.Sprintf("has more than %d members", maxMembers))
			break
		}
		o.members[name] = value
	}
	return o
}

// fail records that a member, or the object itself if name is empty, is wrong.
func (o object) fail(name, reason string) { o.record(jsonrpc.InvalidParams(o.field(name), reason)) }

// record keeps the first error of a request.
func (o object) record(err error) { *o.err = cmp.Or(*o.err, err) }

func (o object) field(name string) string {
	if o.path == "" || name == "" {
		return o.path + name
	}
	return o.path + "." + name
}

// get returns a member of the kind, or nil if it is missing. An optional member
// may also be null, which counts as missing.
func (o object) get(name string, kind rawjson.Kind, required bool) json.RawMessage {
	raw := o.members[name]
	switch got := rawjson.KindOf(raw); {
	case got == kind:
		return raw
	case got == rawjson.Missing && required:
		o.fail(name, "is missing")
	case got == rawjson.Missing, got == rawjson.Null && !required:
	default:
		o.fail(name, fmt.Sprintf("must be %s, not %s", withArticle(kind), withArticle(got)))
	}
	return nil
}

func withArticle(k rawjson.Kind) string {
	switch k {
	case rawjson.Array, rawjson.Object:
		return "an " + string(k)
	case rawjson.Null:
		return string(k)
	default:
		return "a " + string(k)
	}
}

// text reads an optional string of at most limit bytes; 0 means no limit.
func (o object) text(name string, limit int) string {
	return o.bounded(name, rawjson.Text(o.get(name, rawjson.String, false)), limit)
}

// requiredText reads a string of at most limit bytes that is not empty.
func (o object) requiredText(name string, limit int) string {
	s := o.bounded(name, rawjson.Text(o.get(name, rawjson.String, true)), limit)
	if s == "" {
		o.fail(name, "must not be empty")
	}
	return s
}

func (o object) bounded(name, s string, limit int) string {
	if limit > 0 && len(s) > limit {
		o.fail(name, fmt.Sprintf("has more than %d bytes", limit))
		return ""
	}
	return s
}

// literal reads a required string with one of a few values.
func (o object) literal(name string, values ...string) string {
	s := o.requiredText(name, maxID)
	if !slices.Contains(values, s) {
		o.fail(name, fmt.Sprintf("must be one of %q", values))
		return ""
	}
	return s
}

func (o object) boolean(name string, otherwise bool) bool {
	raw := o.get(name, rawjson.Bool, false)
	if raw == nil {
		return otherwise
	}
	return raw[0] == 't'
}

// integer reads an optional whole number in [least, most], such as 10, 10.0 or 1e1.
func (o object) integer(name string, least, most int64) *int64 {
	raw := o.get(name, rawjson.Number, false)
	if raw == nil {
		return nil
	}
	n, ok := rawjson.Integer(raw)
	if !ok || n < least || n > most {
		o.fail(name, fmt.Sprintf("must be a whole number from %d to %d", least, most))
		return nil
	}
	return &n
}

// count reads an optional number from 0 to most.
func (o object) count(name string, most int64) *int {
	n := o.integer(name, 0, most)
	if n == nil {
		return nil
	}
	v := int(*n)
	return &v
}

// limit reads an optional page size.
func (o object) limit(name string) int {
	if n := o.integer(name, 1, maxLimit); n != nil {
		return int(*n)
	}
	return 0
}

// values reads an object with any content and at most limit bytes.
func (o object) values(name string, limit int, required bool) map[string]any {
	raw := o.get(name, rawjson.Object, required)
	if len(raw) > limit {
		o.fail(name, fmt.Sprintf("has more than %d bytes", limit))
		return nil
	}
	m, _ := rawjson.Value(raw).(map[string]any) // nil if it is missing
	return m
}

func (o object) metadata() map[string]any { return o.values("metadata", maxMetadata, false) }

// texts reads an optional list of strings.
func (o object) texts(name string) []string { return o.textsUpTo(maxList, name) }

// textsUpTo is texts for a list of at most so many strings.
func (o object) textsUpTo(most int, name string) []string {
	var list []string
	for i, raw := range rawjson.Elements(o.get(name, rawjson.Array, false)) {
		if i == most {
			o.fail(name, fmt.Sprintf("has more than %d elements", most))
			break
		}
		element, text := fmt.Sprintf("%s[%d]", name, i), rawjson.Text(raw)
		switch {
		case rawjson.KindOf(raw) != rawjson.String:
			o.fail(element, "must be a string")
		case len(text) > maxURI:
			o.fail(element, fmt.Sprintf("has more than %d bytes", maxURI))
		}
		list = append(list, text)
	}
	return list
}

// child reads a member that is an object; ok is false if it is missing.
func (o object) child(name string, required bool) (child object, ok bool) {
	raw := o.get(name, rawjson.Object, required)
	return o.read(name, raw), raw != nil
}
