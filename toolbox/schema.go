package toolbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// checker holds JSON against a schema. A nil checker takes anything.
type checker struct{ schema *jsonschema.Schema }

var anyObject = json.RawMessage(`{"type":"object"}`)

// compileInput compiles the schema of a tool's arguments, which are an object.
func compileInput(schema any) (any, *checker, error) {
	text, check, err := compile(schema)
	if err != nil {
		return nil, nil, err
	}
	if text == nil {
		return compile(anyObject)
	}
	var top struct {
		Type any `json:"type"`
	}
	if json.Unmarshal(text.(json.RawMessage), &top) != nil || top.Type != "object" {
		return nil, nil, errors.New(`its "type" must be "object"`)
	}
	return text, check, nil
}

// compile compiles a schema, anything that marshals to one. The text is nil, as an
// interface, where there is no schema.
func compile(schema any) (text any, check *checker, err error) {
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
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return nil, nil, err
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	const url = "tool:schema"
	if err := c.AddResource(url, doc); err != nil {
		return nil, nil, err
	}
	compiled, err := c.Compile(url)
	if err != nil {
		return nil, nil, err
	}
	return json.RawMessage(data), &checker{compiled}, nil
}

// noLoader keeps schemas of peers from naming files and addresses.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("a schema must not refer to %s", url)
}

func (c *checker) check(data json.RawMessage) error {
	if c == nil {
		return nil
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return c.schema.Validate(v)
}
