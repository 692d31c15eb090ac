package rawjson

import (
	"reflect"
	"regexp"
	"strconv"
	"strings"
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

// Schema is a JSON Schema (draft 7), with its keys in a fixed order.
type Schema struct {
	Schema               string      `json:"$schema,omitempty"`
	ID                   string      `json:"$id,omitempty"`
	Title                string      `json:"title,omitempty"`
	Description          string      `json:"description,omitempty"`
	Type                 string      `json:"type"`
	Pattern              string      `json:"pattern,omitempty"`
	Format               string      `json:"format,omitempty"`
	Enum                 []string    `json:"enum,omitempty"`
	Minimum              *int64      `json:"minimum,omitempty"`
	Maximum              *int64      `json:"maximum,omitempty"`
	MaxLength            *int64      `json:"maxLength,omitempty"`
	MinItems             *int64      `json:"minItems,omitempty"`
	MaxItems             *int64      `json:"maxItems,omitempty"`
	Default              any         `json:"default,omitempty"`
	Items                *Schema     `json:"items,omitempty"`
	Properties           *properties `json:"properties,omitempty"`
	Required             []string    `json:"required,omitempty"`
	AdditionalProperties *bool       `json:"additionalProperties,omitempty"`
}

// properties is an object whose keys are in the order of the struct's fields.
type properties struct {
	names   []string
	schemas []*Schema
}

// MarshalJSON implements [json.Marshaler].
func (p *properties) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, name := range p.names {
		if i > 0 {
			out = append(out, ',')
		}
		var err error
		if out, err = Append(append(AppendString(out, name), ':'), p.schemas[i]); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

// SchemaOf returns the schema of what Decode accepts into a value of v's type,
// a struct. The caller sets $id, title and the like.
func SchemaOf(v any) *Schema {
	s := schemaOf(reflect.TypeOf(v), field{})
	s.Schema = "http://json-schema.org/draft-07/schema#"
	return s
}

func schemaOf(t reflect.Type, f field) *Schema {
	s := &Schema{Description: f.doc, Format: f.format, Enum: f.enum}
	switch t.Kind() {
	case reflect.Struct:
		closed := false
		s.Type, s.Properties, s.AdditionalProperties = "object", &properties{}, &closed
		for _, f := range fields(t) {
			s.Properties.names = append(s.Properties.names, f.name)
			s.Properties.schemas = append(s.Properties.schemas, schemaOf(t.FieldByIndex(f.index).Type, f))
			if f.required {
				s.Required = append(s.Required, f.name)
			}
		}
	case reflect.Slice:
		element := f
		element.doc, element.min, element.max, element.fallback = "", nil, nil, ""
		s.Type, s.MinItems, s.MaxItems = "array", f.min, f.max
		s.Enum, s.Format = nil, ""
		s.Items = schemaOf(t.Elem(), element)
	case reflect.String:
		s.Type, s.MaxLength = "string", f.max
		if f.pattern != nil {
			s.Pattern = f.pattern.String()
		}
	case reflect.Bool:
		s.Type = "boolean"
	case reflect.Int, reflect.Int64:
		s.Type, s.Minimum, s.Maximum = "integer", f.min, f.max
	default:
		panic("rawjson: no support for " + t.String())
	}
	s.Default = fallback(f.fallback, t)
	return s
}

// fallback returns the default tag's text as a JSON value of type t.
func fallback(text string, t reflect.Type) any {
	if text == "" {
		return nil
	}
	switch t.Kind() {
	case reflect.Bool:
		return text == "true"
	case reflect.Int, reflect.Int64:
		return number(text)
	default:
		return text
	}
}
