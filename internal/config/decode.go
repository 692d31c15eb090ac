package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/parleyhub/parley/internal/base/text"
)

// maxFile bounds config.yaml, in bytes.
const maxFile = 256 << 10

// MaxDepth bounds the nesting of flow collections, because the parser recurses. The deepest key has 5 levels.
const MaxDepth = 64

// decoder decodes a YAML document into a value that holds the defaults. It walks the syntax tree
// itself to record every value's position, to report every problem and not just the first, and to
// keep the fields of built-in agents that the document does not set.
type decoder struct {
	file     string
	problems []*Problem
	origins  map[string]Origin
}

// document decodes data into target, a pointer to a struct.
func (d *decoder) document(data []byte, target any) {
	if len(data) > maxFile {
		d.report(nil, "", fmt.Sprintf("the file has %d bytes, more than the %d allowed", len(data), maxFile))
		return
	}
	if TooDeep(data) {
		d.report(nil, "", fmt.Sprintf("more than %d nested brackets", MaxDepth))
		return
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		d.syntax(err)
		return
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType {
			continue
		}
		if body != nil {
			d.report(doc.Body, "", "there is a second document; put everything into one")
			return
		}
		body = doc.Body
	}
	if body != nil {
		d.value(body, "", reflect.ValueOf(target).Elem())
	}
}

// TooDeep reports whether YAML has more than MaxDepth nested brackets. It counts those in strings
// too: no configuration has so many unbalanced ones there.
func TooDeep(data []byte) bool {
	depth := 0
	for _, c := range data {
		switch c {
		case '[', '{':
			if depth++; depth > MaxDepth {
				return true
			}
		case ']', '}':
			depth--
		}
	}
	return false
}

func (d *decoder) syntax(err error) {
	p := &Problem{File: d.file, Message: err.Error()}
	var ye yaml.Error
	if errors.As(err, &ye) {
		p.Message = ye.GetMessage()
		if t := ye.GetToken(); t != nil && t.Position != nil {
			p.Line, p.Column = t.Position.Line, t.Position.Column
		}
	}
	d.problems = append(d.problems, p)
}

func (d *decoder) report(n ast.Node, key, message string) {
	p := &Problem{File: d.file, Key: key, Message: message}
	p.Line, p.Column = position(n)
	d.problems = append(d.problems, p)
}

func position(n ast.Node) (line, column int) {
	if n == nil {
		return 0, 0
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line, t.Position.Column
	}
	return 0, 0
}

// value decodes n into v, which keeps the fields that n does not set.
func (d *decoder) value(n ast.Node, key string, v reflect.Value) {
	switch n.Type() {
	case ast.NullType: // "http:" without a value sets nothing
		return
	case ast.AnchorType, ast.AliasType, ast.TagType, ast.MergeKeyType:
		d.report(n, key, "anchors, aliases and tags are not supported; write the value out")
		return
	}
	if v.Kind() == reflect.Pointer {
		elem := reflect.New(v.Type().Elem())
		d.value(n, key, elem.Elem())
		v.Set(elem)
		return
	}
	line, column := position(n)
	d.origins[key] = Origin{Kind: FromFile, Name: d.file, Line: line, Column: column}
	switch v.Kind() {
	case reflect.Struct:
		d.structure(n, key, v)
	case reflect.Map:
		d.mapping(n, key, v)
	case reflect.Slice:
		d.sequence(n, key, v)
	default:
		text, ok := scalarText(n, v.Type())
		if !ok {
			d.report(n, key, fmt.Sprintf("expected %s, found %s", kindName(v.Type()), nodeName(n)))
			return
		}
		if err := setScalar(v, text); err != nil {
			d.report(n, key, err.Error())
		}
	}
}

// pairs returns n's entries with plain text keys, and reports other keys.
func (d *decoder) pairs(n ast.Node, key string) []*ast.MappingValueNode {
	var all []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		all = n.Values
	case *ast.MappingValueNode:
		all = []*ast.MappingValueNode{n}
	default:
		d.report(n, key, "expected a section with keys, found "+nodeName(n))
		return nil
	}
	good := all[:0:0]
	for _, kv := range all {
		if _, ok := keyText(kv.Key); !ok {
			d.report(kv.Key, key, "a key must be plain text")
			continue
		}
		good = append(good, kv)
	}
	return good
}

func keyText(k ast.MapKeyNode) (string, bool) {
	switch k := k.(type) {
	case *ast.StringNode:
		return k.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return k.GetToken().Value, true
	}
	return "", false
}

func (d *decoder) structure(n ast.Node, key string, v reflect.Value) {
	fields := structFields(v.Type())
	for _, kv := range d.pairs(n, key) {
		name, _ := keyText(kv.Key) // pairs checked it
		index, ok := fields[name]
		if !ok {
			d.report(kv.Key, join(key, name), unknownKey(name, slices.Sorted(maps.Keys(fields))))
			continue
		}
		d.value(kv.Value, join(key, name), v.FieldByIndex(index))
	}
}

func unknownKey(name string, known []string) string {
	if near := text.Nearest(name, known); near != "" {
		return fmt.Sprintf("unknown key; did you mean %s?", near)
	}
	return "unknown key; allowed are " + strings.Join(known, ", ")
}

func (d *decoder) mapping(n ast.Node, key string, v reflect.Value) {
	merged := reflect.MakeMap(v.Type())
	for iter := v.MapRange(); iter.Next(); {
		merged.SetMapIndex(iter.Key(), iter.Value())
	}
	for _, kv := range d.pairs(n, key) {
		name, _ := keyText(kv.Key) // pairs checked it
		elem := reflect.New(v.Type().Elem()).Elem()
		if old := merged.MapIndex(reflect.ValueOf(name)); old.IsValid() {
			elem.Set(old)
		}
		d.value(kv.Value, join(key, name), elem)
		merged.SetMapIndex(reflect.ValueOf(name), elem)
	}
	v.Set(merged)
}

func (d *decoder) sequence(n ast.Node, key string, v reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.report(n, key, fmt.Sprintf("expected a list, found %s", nodeName(n)))
		return
	}
	list := reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values))
	for i, item := range seq.Values {
		d.value(item, fmt.Sprintf("%s[%d]", key, i), list.Index(i))
	}
	v.Set(list)
}

// structFields maps the yaml names of a struct's fields, including those of embedded structs, to their indices.
func structFields(t reflect.Type) map[string][]int {
	fields := make(map[string][]int, t.NumField())
	for i := range t.NumField() {
		if t.Field(i).Anonymous {
			for name, index := range structFields(t.Field(i).Type) {
				fields[name] = append([]int{i}, index...)
			}
			continue
		}
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if name != "" && name != "-" {
			fields[name] = []int{i}
		}
	}
	return fields
}

var durationType = reflect.TypeFor[time.Duration]()

// scalarText returns the text of a scalar, and whether it has the type t.
func scalarText(n ast.Node, t reflect.Type) (string, bool) {
	k := t.Kind()
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, k == reflect.String || t == durationType
	case *ast.LiteralNode:
		return n.Value.Value, k == reflect.String
	case *ast.IntegerNode:
		return n.GetToken().Value, (k == reflect.Int || k == reflect.Int64) && t != durationType
	case *ast.FloatNode:
		return n.GetToken().Value, k == reflect.Float64
	case *ast.BoolNode:
		return strconv.FormatBool(n.Value), k == reflect.Bool
	}
	return "", false
}

// setScalar parses text into v. Its errors describe the expected form.
func setScalar(v reflect.Value, text string) error {
	if v.Type() == durationType {
		dur, err := ParseDuration(text)
		if err != nil {
			return err
		}
		v.SetInt(int64(dur))
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("expected true or false, found %q", text)
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(text, 0, 64)
		if err != nil {
			return fmt.Errorf("expected a whole number, found %q", text)
		}
		v.SetInt(i)
	case reflect.Pointer:
		elem := reflect.New(v.Type().Elem())
		if err := setScalar(elem.Elem(), text); err != nil {
			return err
		}
		v.Set(elem)
	case reflect.Slice: // of strings, from the environment
		list := []string{}
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list = append(list, item)
			}
		}
		v.Set(reflect.ValueOf(list))
	default:
		return fmt.Errorf("cannot be set from text")
	}
	return nil
}

// ParseDuration parses Go's notation and whole days, for example 30s, 1h30m or 7d.
func ParseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseInt(days, 10, 32); err == nil {
			if n < 0 || n > 36500 {
				return 0, fmt.Errorf("expected between 0d and 36500d, found %q", text)
			}
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	dur, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("expected a duration such as 30s, 5m or 7d, found %q", text)
	}
	return dur, nil
}

func kindName(t reflect.Type) string {
	if t == durationType {
		return "a duration such as 30s, 5m or 7d"
	}
	switch t.Kind() {
	case reflect.String:
		return "text (write it in quotes)"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

func nodeName(n ast.Node) string {
	switch n.Type() {
	case ast.MappingType, ast.MappingValueType:
		return "a section with keys"
	case ast.SequenceType:
		return "a list"
	case ast.StringType, ast.LiteralType:
		return "text"
	case ast.IntegerType:
		return "a whole number"
	case ast.FloatType, ast.InfinityType, ast.NanType:
		return "a number"
	case ast.BoolType:
		return "true or false"
	}
	return strings.ToLower(n.Type().String())
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}
