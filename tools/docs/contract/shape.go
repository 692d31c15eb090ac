package contract

import (
	"go/constant"
	"go/types"
	"reflect"
	"strings"
)

// Shapes writes the shapes of Go types as encoding/json, or a reader of YAML, sees them: the names and types of their members.
type Shapes struct {
	Facts Facts
	// Prefix begins every line, such as "out ".
	Prefix string
	// Tag is the key of the fields' tags: "json" or "yaml".
	Tag string
	// Input: members without "omit" are demands, not promises.
	Input bool
	seen  map[string]bool
}

// Of returns the name of a type's shape, and adds the lines that describe it.
func (s *Shapes) Of(t types.Type) string {
	switch t := types.Unalias(t).(type) {
	case *types.Pointer:
		return s.Of(t.Elem())
	case *types.Named:
		return s.named(t)
	case *types.Basic:
		return basic(t)
	case *types.Slice:
		if b, ok := t.Elem().Underlying().(*types.Basic); ok && b.Kind() == types.Byte {
			return "base64"
		}
		return "[]" + s.Of(t.Elem())
	case *types.Array:
		return "[]" + s.Of(t.Elem())
	case *types.Map:
		return "{}" + s.Of(t.Elem())
	case *types.Struct:
		return "object(" + strings.Join(s.inline(t), ", ") + ")"
	}
	return "any"
}

func basic(t *types.Basic) string {
	switch info := t.Info(); {
	case info&types.IsString != 0:
		return "string"
	case info&types.IsBoolean != 0:
		return "boolean"
	case info&types.IsInteger != 0:
		return "integer"
	case info&types.IsFloat != 0:
		return "number"
	}
	return "any"
}

// inline returns the members of a struct without a name.
func (s *Shapes) inline(t *types.Struct) (members []string) {
	for i := range t.NumFields() {
		if name, _, ok := s.member(t, i); ok {
			members = append(members, name+": "+s.Of(t.Field(i).Type()))
		}
	}
	return members
}

// fixed are the types whose shape their package decides.
var fixed = map[string]string{
	"time.Time": "time", "time.Duration": "duration", "encoding/json.RawMessage": "any", "github.com/go-json-experiment/json/jsontext.Value": "any",
}

func (s *Shapes) named(t *types.Named) string {
	name := typeName(t)
	if t.Obj().Pkg() == nil {
		return "any"
	}
	if shape, ok := fixed[t.Obj().Pkg().Path()+"."+t.Obj().Name()]; ok {
		return shape
	}
	switch {
	case has(t, "Marshal"+strings.ToUpper(s.Tag)), has(t, "MarshalJSONTo"):
		return name + " (own form)"
	case has(t, "MarshalText"):
		return "string"
	}
	switch u := t.Underlying().(type) {
	case *types.Struct:
		if !s.seen[name] {
			if s.seen == nil {
				s.seen = map[string]bool{}
			}
			s.seen[name] = true // first: a type may contain itself
			s.fields(name, u)
		}
		return name
	case *types.Basic:
		if u.Info()&types.IsString != 0 {
			return s.values(name, t)
		}
	}
	return s.Of(t.Underlying())
}

// values adds the constants of a text with a type of its own.
func (s *Shapes) values(name string, t *types.Named) string {
	found := false
	scope := t.Obj().Pkg().Scope()
	for _, n := range scope.Names() {
		c, ok := scope.Lookup(n).(*types.Const)
		if ok && c.Exported() && types.Identical(c.Type(), t) && constant.StringVal(c.Val()) != "" {
			s.Facts.Add("%s%s may be %q", s.Prefix, name, constant.StringVal(c.Val()))
			found = true
		}
	}
	if !found {
		return "string"
	}
	return name
}

// fields adds the members of a struct, and of those that it embeds, to those of the type name.
func (s *Shapes) fields(name string, t *types.Struct) {
	for i := range t.NumFields() {
		f := t.Field(i)
		member, optional, ok := s.member(t, i)
		if embedded, is := structOf(f.Type()); !ok && f.Embedded() && is && reflect.StructTag(t.Tag(i)).Get(s.Tag) != "-" {
			s.fields(name, embedded)
			continue
		}
		if !ok {
			continue
		}
		s.Facts.Add("%s%s.%s: %s", s.Prefix, name, member, s.Of(f.Type()))
		switch {
		case optional:
		case s.Input:
			s.Facts.Add("%s%s requires %s", s.Prefix, name, member)
		default:
			s.Facts.Add("%s%s has %s", s.Prefix, name, member)
		}
	}
}

func structOf(t types.Type) (*types.Struct, bool) {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	u, ok := t.Underlying().(*types.Struct)
	return u, ok
}

// member returns the name of a field, and whether it may be missing; ok is false for a field that is not written, or is embedded.
func (s *Shapes) member(t *types.Struct, i int) (name string, optional, ok bool) {
	f := t.Field(i)
	name, options, _ := strings.Cut(reflect.StructTag(t.Tag(i)).Get(s.Tag), ",")
	if name == "-" || f.Embedded() && name == "" || !f.Exported() {
		return "", false, false
	}
	if name == "" {
		name = f.Name()
	}
	return name, strings.Contains(options, "omit") || s.Tag == "yaml", true
}

// has reports whether a type, or a pointer to it, has a method.
func has(t *types.Named, method string) bool {
	m, _, _ := types.LookupFieldOrMethod(types.NewPointer(t), true, t.Obj().Pkg(), method)
	f, ok := m.(*types.Func)
	return ok && f.Exported()
}

// typeName returns package.Name, with type arguments.
func typeName(t *types.Named) string {
	return types.TypeString(t, func(p *types.Package) string { return p.Name() })
}

// Structs adds every struct of a package that has tags.
func (c *Code) Structs(path string, s *Shapes) {
	scope := c.packages[path].types.Scope()
	for _, name := range scope.Names() {
		t, ok := scope.Lookup(name).(*types.TypeName)
		if !ok || t.IsAlias() {
			continue
		}
		named, ok := t.Type().(*types.Named)
		if !ok || named.TypeParams().Len() > 0 {
			continue
		}
		if u, ok := named.Underlying().(*types.Struct); ok && tagged(u, s.Tag) {
			s.Of(named)
		}
	}
}

func tagged(t *types.Struct, key string) bool {
	for i := range t.NumFields() {
		if _, ok := reflect.StructTag(t.Tag(i)).Lookup(key); ok {
			return true
		}
	}
	return false
}
