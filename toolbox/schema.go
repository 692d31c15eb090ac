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

	"github.com/parleyhub/parley/internal/third_party/jsonschema"
)

// checker checks JSON against a schema. A nil checker accepts anything.
type checker struct {
	schema *jsonschema.Schema
	// foreign is set for the schema of a mounted server. A check that would cost more
	// than maxCost is then left to the server and to the caller.
	foreign bool
}

var anyObject = json.RawMessage(`{"type":"object"}`)

// compileInput compiles the schema of a tool's arguments, which are an object.
func (p *Provider) compileInput(schema any) (any, *checker, error) {
	text, check, err := p.compile(schema)
	if err != nil {
		return nil, nil, err
	}
	if text == nil {
		return p.compile(anyObject)
	}
	var top struct {
		Type any `json:"type"`
	}
	if json.Unmarshal(text.(json.RawMessage), &top) != nil || top.Type != "object" {
		return nil, nil, errors.New(`its "type" must be "object"`)
	}
	return text, check, showable(text.(json.RawMessage))
}

// compile compiles a schema, anything that marshals to one. Without a schema the text is a nil interface. That of another box has been compiled
// there, where calls are checked, too: to compile it needs the schemas of schemas, which takes an eighth of an MCP process's start.
func (p *Provider) compile(schema any) (text any, check *checker, err error) {
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
	if err := walk("", doc, legible); err != nil {
		return nil, nil, err
	}
	if p.asIs {
		return json.RawMessage(data), nil, nil
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	patterns := &patterns{left: math.MaxInt}
	if p.foreign {
		patterns.left = maxPatterns
	}
	c.UseRegexpEngine(patterns.compile)
	const url = "tool:schema"
	if err := c.AddResource(url, doc); err != nil {
		return nil, nil, err
	}
	compiled, err := c.Compile(url)
	switch {
	case err != nil && p.foreign && patterns.failed:
		return json.RawMessage(data), nil, nil // the patterns are not Go's: the server checks
	case err != nil:
		return nil, nil, err
	}
	return json.RawMessage(data), &checker{compiled, p.foreign}, nil
}

// noLoader keeps schemas from reading files and addresses.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("a schema must not refer to %s", url)
}

// showable returns an error for an input schema for which the SDK's servers panic: one
// with invalid "x-mcp-header" annotations.
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

// walk calls f with v and all values in it, with their keys, until an error.
func walk(key string, v any, f func(key string, v any) error) error {
	if err := f(key, v); err != nil {
		return err
	}
	switch v := v.(type) {
	case map[string]any:
		for k, value := range v {
			if err := walk(k, value, f); err != nil {
				return err
			}
		}
	case []any:
		for _, value := range v {
			if err := walk("", value, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// legible returns an error for a text of a schema with invisible characters.
func legible(key string, v any) error {
	text, ok := v.(string)
	if ok && (key == "title" || key == "description" || key == "$comment") && !visibleText(text) {
		return fmt.Errorf("a %s in it has invisible characters", key)
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
		return mismatch(err)
	}
	return nil
}

// maxMismatch bounds the description of a mismatch, in bytes: each of a million items may be wrong.
const maxMismatch = 2 << 10

// mismatch describes for a model where data does not match, without the internal name of the schema.
func mismatch(err error) error {
	text := err.Error()
	if _, places, ok := strings.Cut(text, "\n"); ok {
		text = places
	}
	text = strings.TrimPrefix(strings.ReplaceAll(text, "- at '':", "- at the top:"), "- ")
	if len(text) > maxMismatch {
		text = strings.ToValidUTF8(text[:maxMismatch], "") + "…"
	}
	return errors.New(text)
}

// Bounds of a number in JSON. The validator calculates with all digits, at any cost.
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
	return v, walk("", v, inRange)
}

// inRange returns an error for a number that is out of range.
func inRange(_ string, v any) error {
	number, ok := v.(json.Number)
	if !ok {
		return nil
	}
	_, exponent, has := strings.Cut(strings.ToLower(string(number)), "e")
	n, err := strconv.Atoi(exponent)
	if len(number) > maxDigits || has && (err != nil || n > maxExponent || n < -maxExponent) {
		return fmt.Errorf("the number %.40s is out of range", string(number))
	}
	return nil
}
