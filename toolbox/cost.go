package toolbox

import (
	"errors"
	"regexp"
	"regexp/syntax"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of what a schema of others may cost.
const (
	// maxCost is how many schemas and values are compared in one check: some tenths of
	// a second.
	maxCost = 2_000_000
	// maxNesting is how deep schemas and values may go into each other.
	maxNesting = 500
	// maxPatterns is how many instructions the patterns of one schema have together.
	// Each takes 40 bytes, and some nanoseconds for each byte that it is held against.
	maxPatterns = 20_000
)

// affordable reports whether to hold a value against a schema costs at most maxCost.
// The validator has no bound of its own: with schemas that refer to each other twice a
// check takes 2^n steps. It goes the same ways, as if nothing failed early.
func affordable(s *jsonschema.Schema, v any) bool {
	m := meter{left: maxCost}
	return m.apply(s, v, 0)
}

type meter struct{ left int }

func (m *meter) pay(cost int) bool {
	m.left -= cost
	return m.left >= 0
}

// apply pays for holding v against s. It returns false when there is nothing left.
func (m *meter) apply(s *jsonschema.Schema, v any, depth int) bool {
	if s == nil {
		return true
	}
	if depth > maxNesting || s.RecursiveRef != nil || s.DynamicRef != nil { // to where it leads shows only later
		return false
	}
	cost := 1 + len(s.Required)
	if s.Enum != nil {
		cost += len(s.Enum.Values)
	}
	if !m.pay(cost) {
		return false
	}
	for _, same := range []*jsonschema.Schema{s.Ref, s.Not, s.If, s.Then, s.Else} {
		if !m.apply(same, v, depth+1) {
			return false
		}
	}
	for _, all := range [][]*jsonschema.Schema{s.AllOf, s.AnyOf, s.OneOf} {
		for _, same := range all {
			if !m.apply(same, v, depth+1) {
				return false
			}
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

// match pays for holding a text against a pattern: Go's take a step for each byte and
// instruction at worst.
func (m *meter) match(p jsonschema.Regexp, text string) bool {
	counted, ok := p.(pattern)
	return !ok || m.pay(1+len(text)*counted.size/64)
}

// pattern is a regular expression of known size.
type pattern struct {
	*regexp.Regexp
	size int // instructions, about
}

// patterns compiles those of one schema, as long as they are not too large together.
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

// sizeOf is about how many instructions an expression has, at most maxPatterns+1.
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
