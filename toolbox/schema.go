package toolbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// checker holds JSON against a schema. A nil checker takes anything.
type checker struct {
	schema *jsonschema.Schema
	// foreign is set for the schema of a mounted server. It is then not to cost the
	// process more than maxCost to hold a value against it; what would cost more is for
	// the server to check, and for who gets its results.
	foreign bool
}

var anyObject = json.RawMessage(`{"type":"object"}`)

// compileInput compiles the schema of a tool's arguments, which are an object.
func compileInput(schema any, foreign bool) (any, *checker, error) {
	text, check, err := compile(schema, foreign)
	if err != nil {
		return nil, nil, err
	}
	if text == nil {
		return compile(anyObject, foreign)
	}
	var top struct {
		Type any `json:"type"`
	}
	if json.Unmarshal(text.(json.RawMessage), &top) != nil || top.Type != "object" {
		return nil, nil, errors.New(`its "type" must be "object"`)
	}
	return text, check, showable(text.(json.RawMessage))
}

// compile compiles a schema, anything that marshals to one. The text is nil, as an
// interface, where there is no schema.
func compile(schema any, foreign bool) (text any, check *checker, err error) {
	if schema == nil {
		return nil, nil, nil
	}
	data, err := json.Marshal(schema)
	if err != nil {
		return nil, nil, err
	}
	if bytes.Equal(data, []byte("null")) {
		return nil, nil, nil
	}
	if len(data) > MaxSchema {
		return nil, nil, fmt.Errorf("it has %d bytes, at most %d are allowed", len(data), MaxSchema)
	}
	doc, err := decode(data)
	if err != nil {
		return nil, nil, err
	}
	if err := legible(doc); err != nil {
		return nil, nil, err
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	patterns := &patterns{left: math.MaxInt}
	if foreign {
		patterns.left = maxPatterns
	}
	c.UseRegexpEngine(patterns.compile)
	const url = "tool:schema"
	if err := c.AddResource(url, doc); err != nil {
		return nil, nil, err
	}
	compiled, err := c.Compile(url)
	switch {
	case err != nil && foreign && patterns.failed:
		return json.RawMessage(data), nil, nil // another dialect of patterns: the server checks
	case err != nil:
		return nil, nil, err
	}
	return json.RawMessage(data), &checker{compiled, foreign}, nil
}

// noLoader keeps schemas of peers from naming files and addresses.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("a schema must not refer to %s", url)
}

// showable returns an error for an input schema that the SDK's servers refuse, which they
// do with a panic: one with wrong "x-mcp-header" annotations.
func showable(schema json.RawMessage) (err error) {
	if !bytes.Contains(schema, []byte("x-mcp-header")) {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%v", v)
		}
	}()
	probe := mcp.NewServer(&mcp.Implementation{Name: "probe", Version: "1"}, nil)
	probe.AddTool(&mcp.Tool{Name: "probe", InputSchema: schema}, nil)
	return nil
}

// legible returns an error if a schema has texts for people and models with what cannot
// be seen: see [visibleText].
func legible(schema any) error {
	switch v := schema.(type) {
	case map[string]any:
		for key, value := range v {
			if text, ok := value.(string); ok && (key == "title" || key == "description" || key == "$comment") && !visibleText(text) {
				return fmt.Errorf("a %s in it has characters that cannot be seen", key)
			}
			if err := legible(value); err != nil {
				return err
			}
		}
	case []any:
		for _, value := range v {
			if err := legible(value); err != nil {
				return err
			}
		}
	}
	return nil
}

// check returns why data does not fit the schema, nil if it does.
func (c *checker) check(data json.RawMessage) error {
	if c == nil {
		return nil
	}
	v, err := decode(data)
	if err != nil {
		return err
	}
	if c.foreign && !affordable(c.schema, v) {
		return nil
	}
	if err := c.schema.Validate(v); err != nil {
		return misfit(err)
	}
	return nil
}

// maxMisfit bounds what is said of data that does not fit, in bytes: each of a million
// items may be wrong.
const maxMisfit = 2 << 10

// misfit says where data does not fit, for a model: without the name that the schema has
// here only.
func misfit(err error) error {
	text := err.Error()
	if _, places, ok := strings.Cut(text, "\n"); ok {
		text = places
	}
	text = strings.TrimPrefix(strings.ReplaceAll(text, "- at '':", "- at the top:"), "- ")
	if len(text) > maxMisfit {
		text = strings.ToValidUTF8(text[:maxMisfit], "") + "…"
	}
	return errors.New(text)
}

// Bounds of a number in JSON. The validator calculates with all digits, and fails badly
// where it cannot.
const (
	maxDigits   = 1000
	maxExponent = 400 // a float64 has 308
)

// decode decodes JSON for the validator.
func decode(data json.RawMessage) (any, error) {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return v, calculable(v)
}

// calculable returns an error for a number with which nobody can calculate.
func calculable(v any) error {
	switch v := v.(type) {
	case json.Number:
		_, exponent, has := strings.Cut(strings.ToLower(string(v)), "e")
		n, err := strconv.Atoi(exponent)
		if len(v) > maxDigits || has && (err != nil || n > maxExponent || n < -maxExponent) {
			return fmt.Errorf("the number %.40s is out of range", string(v))
		}
	case map[string]any:
		for _, value := range v {
			if err := calculable(value); err != nil {
				return err
			}
		}
	case []any:
		for _, value := range v {
			if err := calculable(value); err != nil {
				return err
			}
		}
	}
	return nil
}
