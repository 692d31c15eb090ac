package jsonschema

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// compiledAtInit is whether a metaschema was compiled before main.
var compiledAtInit bool

func TestMain(m *testing.M) {
	for _, d := range []*Draft{Draft4, Draft6, Draft7, Draft2019, Draft2020} {
		compiledAtInit = compiledAtInit || d.sch != nil
	}
	os.Exit(m.Run())
}

// Every command of the program pays for what happens before main.
func TestNoMetaschemaIsCompiledAtInit(t *testing.T) {
	if compiledAtInit {
		t.Error("the package compiles metaschemas when the program starts")
	}
}

func TestSchemasAreCheckedAgainstTheirMetaschema(t *testing.T) {
	tests := map[string]struct{ schema, want string }{
		"draft 4":       {`{"$schema":"http://json-schema.org/draft-04/schema#","type":"nothing"}`, "metaschema"},
		"draft 7":       {`{"$schema":"http://json-schema.org/draft-07/schema#","required":"name"}`, "metaschema"},
		"draft 2019-09": {`{"$schema":"https://json-schema.org/draft/2019-09/schema","minLength":-1}`, "metaschema"},
		"draft 2020-12": {`{"items":[{}]}`, "metaschema"},
		"valid":         {`{"type":"object","properties":{"name":{"type":"string","format":"uuid"}}}`, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var wait sync.WaitGroup
			for range 4 { // the first compilations may be concurrent
				wait.Go(func() {
					doc, err := UnmarshalJSON(strings.NewReader(test.schema))
					if err != nil {
						t.Error(err)
						return
					}
					c := NewCompiler()
					if err := c.AddResource("test:schema", doc); err != nil {
						t.Error(err)
						return
					}
					_, err = c.Compile("test:schema")
					if got := err != nil; got != (test.want != "") || got && !strings.Contains(err.Error(), test.want) {
						t.Errorf("got %v, want an error with %q", err, test.want)
					}
				})
			}
			wait.Wait()
		})
	}
}
