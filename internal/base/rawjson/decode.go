package rawjson

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"

	"github.com/parleyhub/parley/internal/base/text"
)

// Decode sets the fields of the struct that target points to from node. Fields that the document does not name keep
// their values, so documents can be layered; a list replaces the whole list. Decode returns the position of each
// value that it set, by path ("logging.level", "channels"; not the members of a list), and every problem. With
// problems, target may be partly set.
//
// The tags of a field, besides json:
//
//	doc:"…"        the description
//	default:"…"    the default, for the schema only
//	required:"true"
//	pattern:"…"    a regular expression that a string must match
//	enum:"a,b"     the values that a string may have
//	min:"1"        the least value of a number; the least length of a list
//	max:"64"       the largest value of a number; the most bytes of a string, the most items of a list
//	format:"uri"   for the schema only
//	example:"…"    shown where the pattern does not match
//	secret:"true"  the value must not be shown
//
// A field is a string, bool, int, int64, or a slice or struct of these; Decode
// panics for any other type. Problems show a string by its type's String method.
func Decode(node *Node, target any) (map[string]Position, []Problem) {
	d := &decoder{set: map[string]Position{}}
	d.decode("", node, reflect.ValueOf(target).Elem(), field{})
	return d.set, d.problems
}

// DecodeText sets the field with the given path from plain text, such as an environment variable's. Commas separate
// the items of a list. Problems have no position. It panics if target has no such field.
func DecodeText(path, text string, target any) []Problem {
	v := reflect.ValueOf(target).Elem()
	var f field
	for key := range strings.SplitSeq(path, ".") {
		i := slices.IndexFunc(fields(v.Type()), func(f field) bool { return f.name == key })
		if i < 0 {
			panic("rawjson: " + v.Type().String() + " has no field " + key)
		}
		f = fields(v.Type())[i]
		v = v.FieldByIndex(f.index)
	}
	d := &decoder{set: map[string]Position{}}
	d.decode(path, textNode(text, v.Type()), v, f)
	return d.problems
}

// textNode returns the JSON value of type t that text stands for.
func textNode(text string, t reflect.Type) *Node {
	switch t.Kind() {
	case reflect.Bool:
		switch strings.ToLower(strings.TrimSpace(text)) {
		case "true", "1", "yes", "on":
			return &Node{Value: true}
		case "false", "0", "no", "off":
			return &Node{Value: false}
		}
	case reflect.Int, reflect.Int64:
		if _, ok := new(big.Float).SetString(strings.TrimSpace(text)); ok {
			return &Node{Value: json.Number(strings.TrimSpace(text))}
		}
	case reflect.Slice:
		items := []*Node{}
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				items = append(items, textNode(item, t.Elem()))
			}
		}
		return &Node{Value: items}
	}
	return &Node{Value: text}
}

type decoder struct {
	set      map[string]Position
	problems []Problem
}

func (d *decoder) problem(at Position, path, format string, args ...any) {
	d.problems = append(d.problems, Problem{at, path, fmt.Sprintf(format, args...)})
}

func (d *decoder) decode(path string, node *Node, v reflect.Value, f field) {
	switch v.Kind() {
	case reflect.Struct:
		d.object(path, node, v)
	case reflect.Slice:
		d.list(path, node, v, f)
	case reflect.String:
		d.text(path, node, v, f)
	case reflect.Bool:
		b, ok := node.Value.(bool)
		if !ok {
			d.wrongType(path, node, "true or false")
			return
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		d.number(path, node, v, f)
	default:
		panic("rawjson: no support for " + v.Type().String())
	}
	if !strings.Contains(path, "[") && v.Kind() != reflect.Struct {
		d.set[path] = node.Position
	}
}

func (d *decoder) object(path string, node *Node, v reflect.Value) {
	members, ok := node.Value.([]Member)
	if !ok {
		d.wrongType(path, node, "an object")
		return
	}
	known := fields(v.Type())
	missing := map[string]bool{}
	for _, f := range known {
		missing[f.name] = f.required
	}
	for _, m := range members {
		i := slices.IndexFunc(known, func(f field) bool { return f.name == m.Key })
		if i < 0 {
			d.unknownKey(path, m, known)
			continue
		}
		missing[m.Key] = false
		d.decode(join(path, m.Key), m.Value, v.FieldByIndex(known[i].index), known[i])
	}
	for _, f := range known {
		if missing[f.name] {
			d.problem(node.Position, join(path, f.name), "required, but missing: %s", f.doc)
		}
	}
}

func (d *decoder) unknownKey(path string, m Member, known []field) {
	names := make([]string, len(known))
	for i, f := range known {
		names[i] = f.name
	}
	hint := ""
	if near := text.Nearest(m.Key, names); near != "" {
		hint = fmt.Sprintf("did you mean %q? ", near)
	}
	d.problem(m.Position, join(path, m.Key), "unknown key; %sallowed: %s", hint, strings.Join(names, ", "))
}

func (d *decoder) list(path string, node *Node, v reflect.Value, f field) {
	items, ok := node.Value.([]*Node)
	if !ok {
		d.wrongType(path, node, "a list")
		return
	}
	if f.min != nil && int64(len(items)) < *f.min {
		d.problem(node.Position, path, "needs at least %d of them", *f.min)
	}
	if f.max != nil && int64(len(items)) > *f.max {
		d.problem(node.Position, path, "has %d items; at most %d are allowed", len(items), *f.max)
		return
	}
	list := reflect.MakeSlice(v.Type(), len(items), len(items))
	element := f
	element.min, element.max = nil, nil
	for i, item := range items {
		d.decode(fmt.Sprintf("%s[%d]", path, i), item, list.Index(i), element)
	}
	v.Set(list)
}

func (d *decoder) text(path string, node *Node, v reflect.Value, f field) {
	s, ok := node.Value.(string)
	if !ok {
		d.wrongType(path, node, "text in quotes")
		return
	}
	shown := text.Quote(s, maxShown)
	if hides, ok := reflect.ValueOf(s).Convert(v.Type()).Interface().(fmt.Stringer); ok {
		shown = text.Quote(hides.String(), maxShown)
	}
	if f.secret {
		shown = "the value"
	}
	switch {
	case f.max != nil && int64(len(s)) > *f.max:
		d.problem(node.Position, path, "is %d bytes long; at most %d are allowed", len(s), *f.max)
	case len(f.enum) > 0 && !slices.Contains(f.enum, s):
		d.problem(node.Position, path, "%s is not allowed; allowed: %s", shown, strings.Join(f.enum, ", "))
	case f.pattern != nil && !f.pattern.MatchString(s):
		d.problem(node.Position, path, "%s does not match %s%s", shown, f.pattern, f.forExample())
	default:
		v.SetString(s)
	}
}

// forExample returns the end of an error text: a value that would be right.
func (f field) forExample() string {
	if f.example == "" {
		return ""
	}
	return ", for example " + f.example
}

func (d *decoder) number(path string, node *Node, v reflect.Value, f field) {
	n, ok := node.Value.(json.Number)
	if !ok {
		d.wrongType(path, node, "a number")
		return
	}
	whole, err := wholeNumber(n)
	if len(n) > maxShown {
		n = n[:maxShown] + "…"
	}
	switch {
	case err != nil:
		d.problem(node.Position, path, "%s is not a whole number of at most 9007199254740991", n)
	case f.min != nil && whole < *f.min:
		d.problem(node.Position, path, "%s is too small; the least is %d", n, *f.min)
	case f.max != nil && whole > *f.max:
		d.problem(node.Position, path, "%s is too large; the most is %d", n, *f.max)
	default:
		v.SetInt(whole)
	}
}

// wholeNumber accepts 5000, 5000.0 and 5e3, up to the largest integer that a float64 holds exactly.
func wholeNumber(n json.Number) (int64, error) {
	f, err := n.Float64()
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53-1 {
		return 0, fmt.Errorf("%s is not a whole number", n)
	}
	return int64(f), nil
}

func (d *decoder) wrongType(path string, node *Node, want string) {
	d.problem(node.Position, path, "must be %s, not %s", want, kindName(node.Value))
}

func kindName(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case string:
		return "text"
	case bool:
		return "true or false"
	case json.Number:
		return "a number"
	case []*Node:
		return "a list"
	default:
		return "an object"
	}
}
