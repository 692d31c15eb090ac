package envelope_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/envelope/envelopetest"
	"github.com/parleyhub/parley/internal/third_party/jsonschema"
)

// compile compiles a file of the folder schema, whose schemas are for programs in other
// languages.
func compile(t testing.TB, file string) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "schema", file))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func accepts(s *jsonschema.Schema, data []byte) bool {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	return err == nil && s.Validate(doc) == nil
}

// damage removes a random field of a document, or replaces its value by one of wrong.
func damage(t *rapid.T, data []byte, wrong ...any) []byte {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	keys := make([]string, 0, len(doc))
	for key := range doc {
		keys = append(keys, key)
	}
	key := rapid.SampledFrom(keys).Draw(t, "key")
	if rapid.Bool().Draw(t, "remove") {
		delete(doc, key)
	} else {
		text, err := json.Marshal(rapid.SampledFrom(wrong).Draw(t, "value"))
		if err != nil {
			t.Fatal(err)
		}
		doc[key] = text
	}
	out, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestCardSchemaAgreesWithTheType(t *testing.T) {
	s := compile(t, "agent-card.schema.json")
	rapid.Check(t, func(t *rapid.T) {
		data, err := agent.Encode(envelopetest.Card().Draw(t, "card"))
		if err != nil {
			t.Fatal(err)
		}
		if !accepts(s, data) {
			t.Fatalf("the schema refuses %s", data)
		}
		bad := damage(t, data, "", " ", "*", "a b", "x\n", 7, -1, 1.5, true, []int{1}, []any{}, map[string]int{}, "local")
		_, err = agent.Decode(bad)
		if (err == nil) != accepts(s, bad) {
			t.Fatalf("the schema accepts it: %v; Validate returns %v: %s", accepts(s, bad), err, bad)
		}
	})
}

func TestEnvelopeSchemaAgreesWithTheType(t *testing.T) {
	s := compile(t, "envelope.schema.json")
	rapid.Check(t, func(t *rapid.T) {
		e := envelopetest.Envelope().Draw(t, "envelope")
		e.Payload = json.RawMessage(`{"n":1}`) // the schema validator cannot parse 1e400
		data, err := envelope.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		if !accepts(s, data) {
			t.Fatalf("the schema refuses %s", data)
		}
		bad := damage(t, data, "", " ", "*", "a b", "x\n", 7, 1, 0, -1, 1.5, true, []int{1}, nil, map[string]int{"tier": 3},
			map[string]int{}, map[string]any{"tier": 1, "routingHint": "x"}, map[string]any{"tier": 1, "traceparent": "é"}, "error")
		_, err = envelope.Decode(bad)
		if (err == nil) != accepts(s, bad) {
			t.Fatalf("the schema accepts it: %v; Validate returns %v: %s", accepts(s, bad), err, bad)
		}
	})
}
