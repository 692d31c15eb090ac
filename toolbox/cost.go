package toolbox

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"slices"

	"github.com/parleyhub/parley/internal/third_party/jsonschema"
)

// Bounds of the cost of a foreign schema.
const (
	maxCost    = 2_000_000 // comparisons of a schema with a value in one check: some tenths of a second
	maxNesting = 500       // depth of schemas and values
	// maxPatterns is how many instructions the patterns of one schema have together.
	// Each takes 40 bytes, and some nanoseconds for each byte that it is matched with.
	maxPatterns = 20_000
)

// affordable reports whether checking a value against a schema costs at most maxCost.
// The validator has no bound: with schemas that refer to each other twice a check takes
// 2^n steps. This visits the same schemas as the validator, as if nothing failed early.
func affordable(s *jsonschema.Schema, v any) bool {
	m := meter{left: maxCost}
	return m.apply(s, v, 0)
}

type meter struct{ left int }

func (m *meter) pay(cost int) bool {
	m.left -= cost
	return m.left >= 0
}

// apply pays for checking v against s. It returns false when nothing is left.
func (m *meter) apply(s *jsonschema.Schema, v any, depth int) bool {
	if s == nil {
		return true
	}
	if depth > maxNesting || s.RecursiveRef != nil || s.DynamicRef != nil { // their targets are not known here
		return false
	}
	cost := 1 + len(s.Required)
	if s.Enum != nil {
		cost += len(s.Enum.Values)
	}
	if !m.pay(cost) {
		return false
	}
	for _, same := range slices.Concat([]*jsonschema.Schema{s.Ref, s.Not, s.If, s.Then, s.Else}, s.AllOf, s.AnyOf, s.OneOf) {
		if !m.apply(same, v, depth+1) {
			return false
		}
	}
	switch v := v.(type) {
	case map[string]any:
		return m.object(s, v, depth+1)
	case []any:
		return m.array(s, v, depth+1)
	case string:
		return m.match(s.Pattern, v)
	}
	return true
}

func (m *meter) object(s *jsonschema.Schema, v map[string]any, depth int) bool {
	for _, same := range s.DependentSchemas {
		if !m.apply(same, v, depth) {
			return false
		}
	}
	for _, dependency := range s.Dependencies {
		if same, ok := dependency.(*jsonschema.Schema); ok && !m.apply(same, v, depth) {
			return false
		}
	}
	additional, _ := s.AdditionalProperties.(*jsonschema.Schema)
	for name, value := range v {
		for pattern, sub := range s.PatternProperties {
			if !m.match(pattern, name) || !m.apply(sub, value, depth) {
				return false
			}
		}
		for _, sub := range []*jsonschema.Schema{s.Properties[name], additional, s.UnevaluatedProperties} {
			if !m.apply(sub, value, depth) {
				return false
			}
		}
		if !m.apply(s.PropertyNames, name, depth) {
			return false
		}
	}
	return true
}

func (m *meter) array(s *jsonschema.Schema, v []any, depth int) bool {
	if !m.pay(len(v)) { // for unique items
		return false
	}
	items, _ := s.Items.(*jsonschema.Schema)
	first, _ := s.Items.([]*jsonschema.Schema)
	additional, _ := s.AdditionalItems.(*jsonschema.Schema)
	for i, value := range v {
		for _, list := range [][]*jsonschema.Schema{first, s.PrefixItems} {
			if i < len(list) && !m.apply(list[i], value, depth) {
				return false
			}
		}
		for _, sub := range []*jsonschema.Schema{items, additional, s.Items2020, s.Contains, s.UnevaluatedItems} {
			if !m.apply(sub, value, depth) {
				return false
			}
		}
	}
	return true
}

// match pays for matching a text with a pattern: at worst a step for each byte and instruction.
func (m *meter) match(p jsonschema.Regexp, text string) bool {
	counted, ok := p.(pattern)
	return !ok || m.pay(1+len(text)*counted.size/64)
}

// pattern is a regular expression of known size.
type pattern struct {
	*regexp.Regexp
	size int // instructions, approximately
}

// patterns compiles the patterns of one schema, within a bound for all together.
type patterns struct {
	left   int
	failed bool
}

var errPatterns = errors.New("the patterns are too large")

// compile is a jsonschema.RegexpEngine.
func (p *patterns) compile(text string) (jsonschema.Regexp, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err == nil {
		size := sizeOf(parsed)
		if p.left -= size; p.left < 0 {
			err = errPatterns
		} else if compiled, failed := regexp.Compile(text); failed != nil {
			err = failed
		} else {
			return pattern{compiled, size}, nil
		}
	}
	p.failed = true
	return nil, err
}

// sizeOf is the approximate number of instructions, at most maxPatterns+1.
func sizeOf(re *syntax.Regexp) int {
	size := 1 + len(re.Rune)/8
	for _, sub := range re.Sub {
		size += sizeOf(sub)
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Min, re.Max, 1)
	}
	return min(size, maxPatterns+1)
}
