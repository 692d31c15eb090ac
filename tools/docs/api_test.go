package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/third_party/jsonschema"
)

// description returns a description of the interfaces, and the compiler that knows it and the schema of its format.
func description(t *testing.T, name, format string, make func() ([]byte, error)) (doc any, c *jsonschema.Compiler) {
	t.Helper()
	text, err := os.ReadFile("tools/docs/testdata/" + format)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	made, err := make()
	if err != nil {
		t.Fatal(err)
	}
	if doc, err = jsonschema.UnmarshalJSON(strings.NewReader(string(made))); err != nil {
		t.Fatal(err)
	}
	c = jsonschema.NewCompiler()
	for url, resource := range map[string]any{format: schema, name: doc} {
		if err := c.AddResource("file:///"+url, resource); err != nil {
			t.Fatal(err)
		}
	}
	return doc, c
}

// The descriptions are valid in their formats, each reference in them leads somewhere, and each schema in them is one.
func TestTheDescriptionsOfTheInterfacesAreValid(t *testing.T) {
	t.Chdir("../..")
	for name, d := range map[string]struct {
		format string
		make   func() ([]byte, error)
	}{
		"openapi.json":  {"openapi-3.1.schema.json", openAPI},
		"asyncapi.json": {"asyncapi-3.0.0.schema.json", asyncAPI},
	} {
		doc, c := description(t, name, d.format, d.make)
		format, err := c.Compile("file:///" + d.format)
		if err != nil {
			t.Fatal(err)
		}
		if err := format.Validate(doc); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, ref := range refsIn(doc) {
			if _, err := at(doc, ref); err != nil {
				t.Errorf("%s: %s leads nowhere", name, ref)
			}
		}
		schemas, err := at(doc, "#/components/schemas")
		if err != nil {
			t.Fatal(err)
		}
		for component := range schemas.(map[string]any) {
			if _, err := c.Compile("file:///" + name + "#/components/schemas/" + component); err != nil {
				t.Errorf("%s: %s: %v", name, component, err)
			}
		}
	}
}

// refsIn returns the references of a document.
func refsIn(doc any) (all []string) {
	switch doc := doc.(type) {
	case map[string]any:
		for key, value := range doc {
			if ref, ok := value.(string); ok && key == "$ref" {
				all = append(all, ref)
			}
			all = append(all, refsIn(value)...)
		}
	case []any:
		for _, value := range doc {
			all = append(all, refsIn(value)...)
		}
	}
	return all
}

// at returns what a reference within a document leads to.
func at(doc any, ref string) (any, error) {
	for _, step := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		object, _ := doc.(map[string]any)
		value, ok := object[step]
		if !ok {
			return nil, os.ErrNotExist
		}
		doc = value
	}
	return doc, nil
}

func TestTheDescriptionsHaveTheMethodsAndTheirTexts(t *testing.T) {
	t.Chdir("../..")
	made, err := openAPI()
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Components struct {
			Schemas map[string]struct {
				Description string
				Enum        []string
				Required    []string
				Properties  map[string]struct{ Description string }
			}
		}
	}
	if err := json.Unmarshal(made, &d); err != nil {
		t.Fatal(err)
	}
	schemas := d.Components.Schemas
	if _, ok := schemas["request.hub.shutdown"]; ok {
		t.Error("HTTP has a method of the socket")
	}
	if state := schemas["TaskState"]; len(state.Enum) != 9 {
		t.Errorf("the states: %q", state.Enum)
	}
	if agent := schemas["Agent"]; agent.Description == "" || agent.Properties["handle"].Description == "" || !strings.Contains(strings.Join(agent.Required, " "), "registeredAt") {
		t.Errorf("an agent: %+v", agent)
	}
	async, err := asyncAPI()
	if err != nil || !strings.Contains(string(async), "request.hub.shutdown") || !strings.Contains(string(async), `"{namespace}.{channel}"`) {
		t.Errorf("the socket has no hub/shutdown, or there are no channels: %v", err)
	}
}
