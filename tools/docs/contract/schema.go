package contract

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Description reads a description of an interface, OpenAPI or AsyncAPI: its paths, parameters, methods, messages and schemas.
func Description(text []byte, f Facts) error {
	var d struct {
		Paths      map[string]map[string]operation
		Channels   map[string]struct{ Messages map[string]any }
		Operations map[string]any
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return err
	}
	for path, methods := range d.Paths {
		for method, o := range methods {
			f.Add("path %s %s", strings.ToUpper(method), path)
			for _, p := range o.Parameters {
				f.Add("path %s %s takes %s %s: %s", strings.ToUpper(method), path, p.In, p.Name, reader{f, ""}.kind("", p.Schema))
			}
			for status := range o.Responses {
				f.Add("path %s %s answers %s", strings.ToUpper(method), path, status)
			}
		}
	}
	for name, c := range d.Channels {
		for message := range c.Messages {
			f.Add("channel %s carries %s", name, message)
		}
	}
	for name := range d.Operations {
		f.Add("operation %s", name)
	}
	in := reachable(d.Components.Schemas, func(name string) bool { return strings.HasPrefix(name, "request.") })
	out := reachable(d.Components.Schemas, func(name string) bool { return !in[name] || strings.HasPrefix(name, "response.") })
	for name, schema := range d.Components.Schemas {
		if in[name] {
			reader{f, demand}.schema("in "+name, schema)
		}
		if out[name] {
			reader{f, " has "}.schema("out "+name, schema)
		}
	}
	return nil
}

type operation struct {
	Parameters []struct {
		Name, In string
		Schema   any
	}
	Responses map[string]any
}

// Schema reads a JSON Schema. With input set, its required members are demands.
func Schema(name string, text []byte, input bool, f Facts) error {
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		return err
	}
	r := reader{f, " has "}
	if input {
		r.required = demand
	}
	r.schema(name, schema)
	for _, key := range []string{"$defs", "definitions"} {
		defs, _ := schema[key].(map[string]any)
		for def, of := range defs {
			r.schema(name+"#"+def, of)
		}
	}
	return nil
}

// reachable returns the schemas to which those that match lead, and these.
func reachable(schemas map[string]any, match func(string) bool) map[string]bool {
	found := map[string]bool{}
	var follow func(v any)
	visit := func(name string) {
		if !found[name] {
			found[name] = true
			follow(schemas[name])
		}
	}
	follow = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				visit(last(ref))
			}
			for _, of := range v {
				follow(of)
			}
		case []any:
			for _, of := range v {
				follow(of)
			}
		}
	}
	for name := range schemas {
		if match(name) {
			visit(name)
		}
	}
	return found
}

func last(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

// reader adds the lines of schemas; required is what a required member is: a promise or a demand.
type reader struct {
	facts    Facts
	required string
}

// schema adds the members and values of the schema name.
func (r reader) schema(name string, schema any) {
	s, _ := schema.(map[string]any)
	properties, _ := s["properties"].(map[string]any)
	for member, of := range properties {
		r.facts.Add("%s.%s: %s", name, member, r.kind(name+"."+member, of))
	}
	required, _ := s["required"].([]any)
	for _, member := range required {
		r.facts.Add("%s%s%v", name, r.required, member)
	}
	r.values(name, s)
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		choices, _ := s[key].([]any)
		for _, of := range choices {
			r.facts.Add("%s is %s", name, r.kind(name, of))
		}
	}
	if items, ok := s["items"]; ok {
		r.schema(name+"[]", items)
	}
	if values, ok := s["additionalProperties"].(map[string]any); ok {
		r.schema(name+"{}", values)
	}
}

// values adds the values that a text may have.
func (r reader) values(name string, s map[string]any) {
	values, _ := s["enum"].([]any)
	if v, ok := s["const"]; ok {
		values = append(values, v)
	}
	for _, v := range values {
		r.facts.Add("%s may be %q", name, fmt.Sprint(v))
	}
}

// kind returns the name of a schema's type. Members of an object within are added under name.
func (r reader) kind(name string, schema any) string {
	s, _ := schema.(map[string]any)
	if ref, ok := s["$ref"].(string); ok {
		return last(ref)
	}
	if name != "" && (s["properties"] != nil || s["enum"] != nil || s["const"] != nil || s["anyOf"] != nil || s["oneOf"] != nil) {
		r.schema(name, s)
	}
	switch t := s["type"].(type) {
	case []any:
		var all []string
		for _, of := range t {
			all = append(all, fmt.Sprint(of))
		}
		slices.Sort(all)
		return strings.Join(all, " or ")
	case string:
		switch items, isArray := s["items"]; {
		case t == "array" && isArray:
			return "[]" + r.kind(name+"[]", items)
		case t == "object" && s["additionalProperties"] != nil && s["properties"] == nil:
			return "{}" + r.kind(name+"{}", s["additionalProperties"])
		}
		return t
	}
	return "any"
}
