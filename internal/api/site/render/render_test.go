package render_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/parleyhub/parley/docs"
	"github.com/parleyhub/parley/internal/api/site/render"
)

func markdown(pages map[string]string) fstest.MapFS {
	all := fstest.MapFS{}
	for name, text := range pages {
		all[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return all
}

func TestPagesAreLinkedWithEachOther(t *testing.T) {
	files, err := render.Build(markdown(map[string]string{
		"a-second-opinion.md": "# Start & go\n\nSee [the queues](queues.md#work-queues), [below](#next), [schema](../schema/a.json), [web](https://example.com/a.md), [API](api.json).\n\n![A](a.svg)\n\n## Next\n\n<script>alert(1)</script>\n",
		"queues.md":           "# Queues\n\n## Work queues\n\n| a | b |\n|---|---|\n| `c` | d |\n",
		"a.svg":               "<svg/>",
		"api.json":            "{}",
	}), "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	page := string(files["a-second-opinion.html"])
	for _, want := range []string{
		`href="queues.html#work-queues"`, `href="#next"`, `href="https://github.com/parleyhub/parley/blob/main/schema/a.json"`, `href="https://example.com/a.md"`,
		`<title>Start &amp; go – Parley 1.2.3</title>`, `aria-current="page"`, `<img src="a.svg"`, `href="api.json"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in\n%s", want, page)
		}
	}
	if strings.Contains(page, "alert(1)") {
		t.Error("raw HTML is in the page")
	}
	if string(files["a.svg"]) != "<svg/>" || string(files["api.json"]) != "{}" || string(files["index.html"]) != page || !strings.Contains(string(files["queues.html"]), "<td><code>c</code></td>") {
		t.Errorf("%d files", len(files))
	}
	var index []struct{ P, T, H, A, B string }
	text := strings.TrimSuffix(strings.TrimPrefix(string(files["sections.js"]), "globalThis.sections = "), ";\n")
	if err := json.Unmarshal([]byte(text), &index); err != nil {
		t.Fatal(err)
	}
	if last := index[len(index)-1]; last.P != "queues.html" || last.T != "Queues" || last.H != "Work queues" || last.A != "work-queues" || last.B != "a b c d" {
		t.Errorf("the index: %+v", index)
	}
}

func TestLinksThatLeadNowhereAreErrors(t *testing.T) {
	_, err := render.Build(markdown(map[string]string{"a-second-opinion.md": "# A\n\n[x](none.md) [y](#nothing) ![z](none.svg) [d](none.json)\n"}), "1")
	for _, want := range []string{"no page for the link none.md", "no heading for the link #nothing", "none.svg", "none.json"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Every link within the documentation leads to a page and a heading that exist.
func TestTheLinksOfTheDocumentation(t *testing.T) {
	if _, err := render.Build(docs.Files, "1"); err != nil {
		t.Error(err)
	}
	// What the program has is what the directory has, without what is for contributors.
	entries, err := os.ReadDir("../../../../docs")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".md") || name == "spec-coverage.md" {
			continue
		}
		if _, err := docs.Files.Open(name); err != nil {
			t.Errorf("%v: name it in docs/docs.go", err)
		}
	}
}
