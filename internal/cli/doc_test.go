//go:build unix

package cli_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// People list, read and edit documents; edits of one call happen together or not at all.
func TestDocuments(t *testing.T) {
	p := newHub(t)
	want(t, p.run(t, "doc", "list"), 0, "No documents.")
	want(t, p.run(t, "doc", "edit", "plan", "--set", "plan.status=open", "--set", "plan.n=3", "--text", "notes=first"), 0, `"status": "open"`)
	o := p.runWith(t, strings.NewReader(`[{"op":"insert","path":["todo"],"values":["test it"]},{"op":"increment","path":["runs"]}]`), nil, "doc", "edit", "plan", "-")
	want(t, o, 0, "test it")
	shown := decode[struct {
		Name    string
		Version string
		Content struct {
			Plan  map[string]any
			Notes string
			Todo  []string
		}
	}](t, p.run(t, "--format", "json", "doc", "show", "plan"))
	if shown.Name != "plan" || shown.Version == "" || shown.Content.Notes != "first" || shown.Content.Plan["n"] != 3.0 || len(shown.Content.Todo) != 1 {
		t.Errorf("it shows %+v", shown)
	}
	if names := decode[[]string](t, p.run(t, "--format", "json", "doc", "list")); len(names) != 1 || names[0] != "plan" {
		t.Errorf("the documents are %v", names)
	}
	want(t, p.run(t, "doc", "list"), 0, "plan\n")
	for _, args := range [][]string{
		{"doc"}, {"doc", "show"}, {"doc", "edit", "plan"}, {"doc", "edit", "plan", "no JSON"}, {"doc", "edit", "plan", `[{"up":1}]`},
		{"doc", "edit", "plan", "--set", "x"}, {"doc", "edit", "plan", "--text", "x"},
	} {
		if o := p.run(t, args...); o.code != 2 || o.stdout != "" {
			t.Errorf("%q: %+v", args, o)
		}
	}
	for args, message := range map[string]string{
		"show none":                 "there is no document none",
		"show a.b":                  "a document's name",
		"edit plan --set notes.x=1": "no shared map",
		"edit plan --set x=1":       "needs a key",
		"watch none":                "there is no document none",
	} {
		o := p.run(t, append([]string{"doc"}, strings.Fields(args)...)...)
		if o.code == 0 || !strings.Contains(o.stderr, message) {
			t.Errorf("%s: %+v", args, o)
		}
	}
	want(t, p.run(t, "doc", "edit", "churn", "--set", "m.k=1"), 0, "")
	want(t, p.run(t, "doc", "edit", "churn", "--set", "m.k=2", "--set", "m.l=1"), 0, "")
	want(t, p.run(t, "doc", "compact", "churn"), 0, "2 are left")
	want(t, p.run(t, "doc", "show", "churn"), 0, `"k": 2`)
	after := p.run(t, "--format", "json", "doc", "show", "plan")
	var again struct{ Version string }
	if err := json.Unmarshal([]byte(after.stdout), &again); err != nil || again.Version != shown.Version {
		t.Errorf("edits that failed changed it: %+v", after)
	}
}
