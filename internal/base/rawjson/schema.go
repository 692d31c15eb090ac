package rawjson

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// field holds the tags of a struct field.
type field struct {
	name     string
	index    []int
	doc      string
	fallback string
	required bool
	secret   bool
	pattern  *regexp.Regexp
	enum     []string
	min, max *int64
	format   string
	example  string
}

// fields lists the JSON fields of a struct type.
func fields(t reflect.Type) []field {
	var list []field
	for _, sf := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if name == "" || name == "-" || sf.Anonymous {
			continue
		}
		f := field{
			name:     name,
			index:    sf.Index,
			doc:      sf.Tag.Get("doc"),
			fallback: sf.Tag.Get("default"),
			required: sf.Tag.Get("required") == "true",
			secret:   sf.Tag.Get("secret") == "true",
			format:   sf.Tag.Get("format"),
			example:  sf.Tag.Get("example"),
			min:      number(sf.Tag.Get("min")),
			max:      number(sf.Tag.Get("max")),
		}
		if pattern := sf.Tag.Get("pattern"); pattern != "" {
			f.pattern = regexp.MustCompile(pattern)
		}
		if enum := sf.Tag.Get("enum"); enum != "" {
			f.enum = strings.Split(enum, ",")
		}
		list = append(list, f)
	}
	return list
}

func number(tag string) *int64 {
	if tag == "" {
		return nil
	}
	n, err := strconv.ParseInt(tag, 10, 64)
	if err != nil {
		panic("rawjson: tag is not a number: " + tag)
	}
	return &n
}

// SchemaOf returns the JSON Schema (draft 7) of what Decode accepts into a value of v's
// type, a struct. The caller sets the title and the like.
func SchemaOf(v any) *jsonschema.Schema {
	s := schemaOf(reflect.TypeOf(v), field{})
	s.Schema = "http://json-schema.org/draft-07/schema#"
	return s
}

func schemaOf(t reflect.Type, f field) *jsonschema.Schema {
	s := &jsonschema.Schema{Description: f.doc, Default: fallback(f.fallback, t)}
	switch t.Kind() {
	case reflect.Struct:
		nothing := &jsonschema.Schema{Not: &jsonschema.Schema{}}
		s.Type, s.Properties, s.AdditionalProperties = "object", map[string]*jsonschema.Schema{}, nothing
		for _, f := range fields(t) {
			s.PropertyOrder = append(s.PropertyOrder, f.name)
			s.Properties[f.name] = schemaOf(t.FieldByIndex(f.index).Type, f)
			if f.required {
				s.Required = append(s.Required, f.name)
			}
		}
	case reflect.Slice:
		s.Type, s.MinItems, s.MaxItems = "array", as[int](f.min), as[int](f.max)
		f.doc, f.min, f.max, f.fallback = "", nil, nil, ""
		s.Items = schemaOf(t.Elem(), f)
	case reflect.String:
		s.Type, s.Format, s.MaxLength = "string", f.format, as[int](f.max)
		if f.pattern != nil {
			s.Pattern = f.pattern.String()
		}
		for _, value := range f.enum {
			s.Enum = append(s.Enum, value)
		}
	case reflect.Bool:
		s.Type = "boolean"
	case reflect.Int, reflect.Int64:
		s.Type, s.Minimum, s.Maximum = "integer", as[float64](f.min), as[float64](f.max)
	default:
		panic("rawjson: no support for " + t.String())
	}
	return s
}

// as converts a bound to the type of a schema's field.
func as[T int | float64](n *int64) *T {
	if n == nil {
		return nil
	}
	converted := T(*n)
	return &converted
}

// fallback returns the default tag's text as a JSON value of type t.
func fallback(text string, t reflect.Type) json.RawMessage {
	switch {
	case text == "":
		return nil
	case t.Kind() == reflect.Bool, t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		return json.RawMessage(text)
	}
	return AppendString(nil, text)
}
