package contract

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"strings"
	"testing"
)

func TestAContractMayOnlyGrow(t *testing.T) {
	baseline := Parse("# a heading\n\nout Task.id: string\nout Task has id\nin Query requires id\nin Query.id: string\n")
	for _, tt := range []struct{ name, code, breaks string }{
		{"the same", "out Task.id: string\nout Task has id\nin Query requires id\nin Query.id: string", ""},
		{"a new member", "out Task.id: string\nout Task.agent: string\nout Task has id\nin Query requires id\nin Query.id: string", ""},
		{"a demand less", "out Task.id: string\nout Task has id\nin Query.id: string", ""},
		{"a new input with a demand", "out Task.id: string\nout Task has id\nin Query requires id\nin Query.id: string\nin Other requires x", ""},
		{"a member less", "out Task has id\nin Query requires id\nin Query.id: string", "- out Task.id: string"},
		{"another type", "out Task.id: integer\nout Task has id\nin Query requires id\nin Query.id: string", "- out Task.id: string"},
		{"a member that may be missing", "out Task.id: string\nin Query requires id\nin Query.id: string", "- out Task has id"},
		{"a demand more", "out Task.id: string\nout Task has id\nin Query requires id\nin Query requires state\nin Query.id: string", "+ in Query requires state"},
	} {
		all, err := Extend("a.txt", baseline, Parse(tt.code))
		if tt.breaks == "" {
			if err != nil || !maps.Equal(all, Parse(tt.code)) {
				t.Errorf("%s: %v, %v", tt.name, all, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "\n  "+tt.breaks+"\n") || !strings.Contains(err.Error(), "a.txt by hand") {
			t.Errorf("%s: %v", tt.name, err)
		}
		if again, err := Extend("a.txt", all, Parse(tt.code)); err == nil {
			t.Errorf("%s: accepted when it was written: %v", tt.name, again)
		}
	}
}

// source is a package of commands, tools and types as the real ones are.
const source = `package p

type State string
const ( Open State = "open"; Closed State = "closed" )
type Base struct { ID string ` + "`json:\"id\"`" + ` }
type Item struct {
	Base
	State State ` + "`json:\"state\"`" + `
	Next *Item ` + "`json:\"next,omitempty\"`" + `
	Tags map[string][]int ` + "`json:\"tags\"`" + `
	Raw []byte ` + "`json:\"raw\"`" + `
	Hidden string ` + "`json:\"-\"`" + `
	Own Own ` + "`json:\"own\"`" + `
	One struct { A, B bool } ` + "`json:\"one\"`" + `
}
type Own struct{}
func (Own) MarshalJSON() ([]byte, error) { return nil, nil }
type Tool[In, Out any] struct { Name string }
var list = Tool[Base, Item]{Name: "list_items"}
const exitOK, exitGone = 0, 4
type failure struct { Exit int; Kind string }
var gone = failure{Exit: exitGone, Kind: "gone"}

type view[T any] struct{}
func (view[T]) print(items []T) { writeJSON(1, items) }
func writeJSON(w int, v any) {}
func printed(v any, pretty func()) error { writeJSON(1, v); return nil }
func show() { _ = printed(Item{}, nil) }
func summary() { writeJSON(1, map[string]any{"count": 1}) }
func call[T any](get func() (T, error)) error { v, _ := get(); return printed(v, nil) }
func gets() { _ = call(func() (Base, error) { return Base{}, nil }) }
func lists() { view[Base]{}.print(nil) }
`

func code(t *testing.T) *Code {
	t.Helper()
	c := &Code{fset: token.NewFileSet(), packages: map[string]*checked{}}
	file, err := parser.ParseFile(c.fset, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	p := &checked{files: []*ast.File{file}, info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		Instances: map[*ast.Ident]types.Instance{},
	}}
	if p.types, err = (&types.Config{Importer: importer.Default()}).Check("p", c.fset, p.files, p.info); err != nil {
		t.Fatal(err)
	}
	c.packages["p"] = p
	return c
}

func contains(t *testing.T, f Facts, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !f[line] {
			t.Errorf("%q is missing in\n%s", line, f.Text(""))
		}
	}
}

func TestShapesAreThoseOfTheJSON(t *testing.T) {
	c, f := code(t), Facts{}
	c.Structs("p", &Shapes{Facts: f, Prefix: "out ", Tag: "json"})
	contains(t, f, "out p.Item.id: string", "out p.Item has id", "out p.Item.state: p.State", `out p.State may be "open"`, "out p.Item.next: p.Item",
		"out p.Item.tags: {}[]integer", "out p.Item.raw: base64", "out p.Item.own: p.Own (own form)", "out p.Item.one: object(A: boolean, B: boolean)")
	if f["out p.Item has next"] || strings.Contains(f.Text(""), "Hidden") {
		t.Error(f.Text(""))
	}
}

func TestToolsAndCodesAreFound(t *testing.T) {
	c, f := code(t), Facts{}
	c.Tools("p", f)
	c.ExitCodes("p", "exit", f)
	c.FailureCodes("p", "failure", "Kind", "Exit", f)
	contains(t, f, "tool list_items takes p.Base", "tool list_items returns p.Item", "in p.Base requires id", "exit code 4: gone", `error code "gone": exit code 4`)
}

func TestWhatFunctionsPrintIsFound(t *testing.T) {
	c := code(t)
	k := &commands{checked: c.packages["p"], functions: map[*types.Func]*function{}, printers: map[*types.Func]int{}, generic: map[*types.Func]int{}}
	k.index()
	for k.findPrinters() {
	}
	all := map[string][]Printed{}
	for f := range k.functions {
		if name := f.Name(); name == "show" || name == "summary" || name == "lists" || name == "gets" {
			k.reach(name, []*types.Func{f}, all)
		}
	}
	if p := all["show"]; len(p) != 1 || p[0].Type.String() != "p.Item" {
		t.Errorf("show: %v", p)
	}
	if p := all["gets"]; len(p) != 1 || p[0].Type.String() != "p.Base" {
		t.Errorf("gets: %v", p)
	}
	if p := all["lists"]; len(p) != 1 {
		t.Errorf("lists: %v", p)
	}
	if p := all["summary"]; len(p) != 1 || p[0].Keys["count"].String() != "int" {
		t.Errorf("summary: %v", p)
	}
}

func TestDescriptionsAndSchemasAreRead(t *testing.T) {
	f := Facts{}
	err := Description([]byte(`{"paths":{"/tasks":{"get":{"parameters":[{"name":"by","in":"query","schema":{"type":"array","items":{"type":"string"}}}],"responses":{"200":{}}}}},
		"components":{"schemas":{
		"request.get":{"properties":{"params":{"$ref":"#/components/schemas/Query"}}},
		"Query":{"properties":{"id":{"type":["string","null"]},"state":{"enum":["a","b"],"type":"string"}},"required":["id"]},
		"response.get":{"properties":{"result":{"$ref":"#/components/schemas/Task"}}},
		"Task":{"properties":{"id":{"type":"string"},"in":{"properties":{"x":{"type":"integer"}},"type":"object"}},"required":["id"]}}}}`), f)
	if err != nil {
		t.Fatal(err)
	}
	contains(t, f, "path GET /tasks", "path GET /tasks takes query by: []string", "path GET /tasks answers 200", "in Query requires id", "in Query.id: null or string",
		`in Query.state may be "a"`, "out Task has id", "out Task.in: object", "out Task.in.x: integer", "out response.get.result: Task")
	if err := Schema("a.json", []byte(`{"required":["v"],"properties":{"v":{"const":1},"m":{"type":"object","additionalProperties":{"type":"string"}}},"$defs":{"D":{"enum":["x"]}}}`), true, f); err != nil {
		t.Fatal(err)
	}
	contains(t, f, "a.json requires v", `a.json.v may be "1"`, "a.json.m: {}string", `a.json#D may be "x"`)
}
