package main

import (
	"encoding"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
)

// shape is a JSON Schema.
type shape = map[string]any

const modulePath = "github.com/parleyhub/parley/"

// shapes makes JSON Schemas of Go types, as encoding/json writes them, with the comments of the code. Structs and texts with
// known values become components that are referred to.
type shapes struct {
	components shape
	names      map[string]reflect.Type // of the components
	comments   map[string]string
	values     map[string][]string // of the texts with known values, by "package.Type"
	read       map[string]bool     // packages whose comments have been read
	err        error
}

func newShapes() *shapes {
	return &shapes{components: shape{}, names: map[string]reflect.Type{}, comments: map[string]string{}, values: map[string][]string{}, read: map[string]bool{}}
}

var (
	moment    = shape{"type": "string", "format": "date-time"}
	marshaler = reflect.TypeFor[json.Marshaler]()
	textual   = reflect.TypeFor[encoding.TextMarshaler]()
	known     = map[reflect.Type]shape{
		reflect.TypeFor[time.Time]():       moment,
		reflect.TypeFor[dialect.Time]():    {"type": []string{"string", "null"}, "format": "date-time"},
		reflect.TypeFor[json.RawMessage](): {},
	}
	// open are the types that have more values than constants: new ones within a major version, or those of another type.
	open = map[reflect.Type]bool{reflect.TypeFor[events.Kind](): true, reflect.TypeFor[hub.TraceState](): true}
)

// of returns the shape of a type.
func (s *shapes) of(t reflect.Type) shape {
	if fixed, ok := known[t]; ok {
		return fixed
	}
	if t == reflect.TypeFor[dialect.Event]() {
		return s.union(reflect.TypeFor[dialect.Task](), reflect.TypeFor[dialect.StatusUpdate](), reflect.TypeFor[dialect.ArtifactUpdate]())
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Interface:
		return shape{}
	case reflect.Bool:
		return shape{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return shape{"type": "number"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return shape{"type": "integer"}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return shape{"type": "string", "contentEncoding": "base64"}
		}
		return shape{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return shape{"type": "object", "additionalProperties": s.of(t.Elem())}
	}
	switch {
	case t.Implements(textual):
		return shape{"type": "string"}
	case t.Implements(marshaler):
		s.err = fmt.Errorf("the shape of %v is unknown: it writes its JSON itself", t)
		return shape{}
	case t.Kind() == reflect.String:
		return s.text(t)
	case t.Kind() == reflect.Struct && t.Name() != "":
		return s.component(t, func() shape { return s.object(t) })
	case t.Kind() == reflect.Struct:
		return s.object(t)
	}
	s.err = fmt.Errorf("no JSON Schema for %v", t)
	return shape{}
}

func (s *shapes) union(types ...reflect.Type) shape {
	var all []shape
	for _, t := range types {
		all = append(all, s.of(t))
	}
	return shape{"oneOf": all}
}

// text returns the shape of a text: with its values if the code has a constant for each.
func (s *shapes) text(t reflect.Type) shape {
	if !strings.HasPrefix(t.PkgPath(), modulePath) {
		return shape{"type": "string"}
	}
	s.readPackage(t)
	values := s.values[docName(t)]
	switch {
	case len(values) == 0:
		return shape{"type": "string"}
	case open[t]:
		return s.component(t, func() shape { return shape{"type": "string", "examples": values} })
	}
	return s.component(t, func() shape { return shape{"type": "string", "enum": values} })
}

// component puts the shape of a type under its name, and returns a reference to it.
func (s *shapes) component(t reflect.Type, make func() shape) shape {
	name := t.Name()
	if other, taken := s.names[name]; taken && other != t {
		pkg, _, _ := strings.Cut(docName(t), ".")
		name = strings.ToUpper(pkg[:1]) + pkg[1:] + name
	}
	if s.names[name] == nil {
		s.names[name] = t // first, since a type may contain itself
		made := make()
		if about := s.about(t, docName(t)); about != "" {
			made["description"] = about
		}
		s.components[name] = made
	}
	return shape{"$ref": "#/components/schemas/" + name}
}

func (s *shapes) object(t reflect.Type) shape {
	s.readPackage(t)
	properties, required := shape{}, []string{}
	s.fields(t, properties, &required)
	o := shape{"type": "object", "properties": properties}
	if len(required) > 0 {
		o["required"] = required
	}
	return o
}

// fields adds the members of a struct and of those that it embeds.
func (s *shapes) fields(t reflect.Type, properties shape, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			s.readPackage(f.Type)
			s.fields(f.Type, properties, required)
			continue
		}
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		member := shape{}
		for key, value := range s.of(f.Type) {
			member[key] = value
		}
		if about := s.about(t, docName(t)+"."+f.Name); about != "" {
			member["description"] = about
		}
		properties[name] = member
		if !strings.Contains(options, "omit") {
			*required = append(*required, name)
		}
	}
}

// about returns a comment of the code, with the names of the fields of a struct replaced by those of its JSON.
func (s *shapes) about(of reflect.Type, key string) string {
	about := strings.Join(strings.Fields(s.comments[key]), " ")
	if of.Kind() != reflect.Struct {
		return about
	}
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			about = regexp.MustCompile(`\b`+of.Field(i).Name+`\b`).ReplaceAllString(about, name)
		}
	}
	return about
}

// readPackage reads the comments and the constants of a type's package.
func (s *shapes) readPackage(t reflect.Type) {
	dir, ours := strings.CutPrefix(t.PkgPath(), modulePath)
	if !ours || s.read[dir] {
		return
	}
	s.read[dir] = true
	comments, err := fieldComments(dir)
	if err != nil {
		s.err = err
	}
	for key, comment := range comments {
		s.comments[key] = comment
	}
	if err := s.readConstants(dir); err != nil {
		s.err = err
	}
}

// readConstants reads the constants of texts that have a type of their own.
func (s *shapes) readConstants(dir string) error {
	files, err := filepath.Glob(filepath.Join(filepath.FromSlash(dir), "*.go"))
	if err != nil {
		return err
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, c := range constantsOf(file) {
			key := file.Name.Name + "." + c.of
			s.values[key] = append(s.values[key], c.value)
		}
	}
	return nil
}

// constant is a constant text: its name, its type if it has one of its own, and its value.
type constant struct{ name, of, value string }

// constantsOf returns the constants of a file that are written as one text.
func constantsOf(file *ast.File) (all []constant) {
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			spec := spec.(*ast.ValueSpec) // a group of constants has nothing else
			if len(spec.Values) != 1 {
				continue
			}
			literal, ok := spec.Values[0].(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				continue
			}
			c := constant{name: spec.Names[0].Name}
			if of, ok := spec.Type.(*ast.Ident); ok {
				c.of = of.Name
			}
			if c.value, _ = strconv.Unquote(literal.Value); c.value != "" { // the parser has checked it
				all = append(all, c)
			}
		}
	}
	return all
}
