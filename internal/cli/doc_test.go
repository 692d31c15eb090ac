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
		{"doc", "edit", "plan", "--set", "x"}, {"doc", "edit", "plan", "--text", "x"}, {"doc", "edit"},
		{"doc", "edit", "plan", `[{"op":"increment","path":["n"]}] [{"op":"increment","path":["lost"]}]`}, {"doc", "edit", "plan", "[]", "[]"},
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
	if o := p.runWith(t, strings.NewReader(strings.Repeat(" ", 9<<20)), nil, "doc", "edit", "plan", "-"); o.code != 2 || !strings.Contains(o.stderr, "larger than 8 MiB") {
		t.Errorf("too much: %+v", o)
	}
	want(t, p.run(t, "doc", "edit", "odd", "--set", "m.k=1]"), 0, `"k": "1]"`)
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

// Documents are shared with agents elsewhere by role; nobody has one by default.
func TestDocumentsAreShared(t *testing.T) {
	p := newHub(t)
	want(t, p.run(t, "doc", "edit", "plan", "--set", "m.k=1"), 0, "")
	want(t, p.run(t, "doc", "share", "plan"), 0, "Shared with no agent elsewhere.")
	want(t, p.run(t, "doc", "share", "plan", "mars", "writer"), 0, "mars\twriter\n")
	want(t, p.run(t, "doc", "share", "plan", "venus", "reader"), 0, "mars\twriter\nvenus\treader\n")
	if roles := decode[map[string]string](t, p.run(t, "--format", "json", "doc", "share", "plan")); len(roles) != 2 || roles["mars"] != "writer" {
		t.Errorf("the roles are %v", roles)
	}
	want(t, p.run(t, "doc", "share", "plan", "mars", "none"), 0, "venus\treader\n")
	want(t, p.run(t, "doc", "share", "new", "mars", "owner"), 0, "mars\towner\n")
	want(t, p.run(t, "doc", "show", "new"), 0, "{}")
	for args, message := range map[string]string{
		"share":                 "share wants a document",
		"share plan mars":       "share wants a document",
		"share plan mars king":  "the roles are reader, writer, owner",
		"share plan hub writer": "no agent of another process",
		"share none":            "there is no document none",
		"share none mars none":  "there is no document none",
		"share a.b mars writer": "a document's name",
		"share plan * writer":   "every agent",
	} {
		o := p.run(t, append([]string{"doc"}, strings.Fields(args)...)...)
		if o.code == 0 || !strings.Contains(o.stderr, message) {
			t.Errorf("%s: %+v", args, o)
		}
	}
}
