package main

import (
	"archive/zip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/third_party/jsonschema"
)

// conform checks a document against a schema of testdata.
func conform(t *testing.T, schema, text string) error {
	t.Helper()
	rules, err := os.ReadFile(filepath.Join("tools/release/testdata/schemas", schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	decoded, err := jsonschema.UnmarshalJSON(strings.NewReader(string(rules)))
	if err == nil {
		err = c.AddResource("file:///"+schema, decoded)
	}
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("file:///" + schema)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return compiled.Validate(doc)
}

// The MCP Registry and the clients that open bundles take what a release writes for them.
func TestTheEntryAndTheBundlesConformToTheirSchemas(t *testing.T) {
	chdirRoot(t)
	r := release{dir: t.TempDir(), version: "1.2.3"}
	work := t.TempDir()
	for _, p := range allPlatforms {
		system, arch, _ := strings.Cut(p, "/")
		if err := writeFile(filepath.Join(work, system+"-"+arch, executable("parley", system)), []byte("program")); err != nil {
			t.Fatal(err)
		}
	}
	bundles, err := r.writeBundles(work, allPlatforms)
	if err != nil || len(bundles) != len(allPlatforms) {
		t.Fatalf("%q, %v", bundles, err)
	}
	for _, name := range bundles {
		if err := conform(t, "bundle.json", manifestOf(t, filepath.Join(r.dir, name))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.writeRegistryEntry(bundles); err != nil {
		t.Fatal(err)
	}
	entry := read(t, r.dir)["server.json"]
	if err := conform(t, "server.json", entry); err != nil {
		t.Error(err)
	}
	for old, broken := range map[string]string{`"description"`: `"describes"`, mcpName: "parley", `"stdio"`: `"pipe"`, `"version": "1.2.3"`: `"version": 1`} {
		if err := conform(t, "server.json", strings.Replace(entry, old, broken, 1)); err == nil {
			t.Errorf("%s instead of %s conforms", broken, old)
		}
	}
}

// manifestOf returns the manifest of a bundle, whose program must be where the manifest says.
func manifestOf(t *testing.T, path string) string {
	t.Helper()
	r, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, err := r.Open("manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Server struct {
			EntryPoint string `json:"entry_point"`
		}
	}
	decode(t, string(text), &manifest)
	if _, err := r.Open(manifest.Server.EntryPoint); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	return string(text)
}

// VS Code and Zed read what install.md shows: an object by its name, with nothing that they do not know.
func TestTheSnippetsForEditorsAreWhatTheyRead(t *testing.T) {
	chdirRoot(t)
	page, err := os.ReadFile("docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	type entry struct {
		Type, Command string
		Args          []string
	}
	var snippets struct {
		Servers        map[string]entry `json:"servers"`         // VS Code
		ContextServers map[string]entry `json:"context_servers"` // Zed
	}
	blocks := strings.Split(string(page), "```json\n")[1:]
	for _, block := range blocks {
		text, _, _ := strings.Cut(block, "```")
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&snippets); err != nil {
			t.Errorf("%v in %s", err, text)
		}
	}
	code, zed := snippets.Servers["parley"], snippets.ContextServers["parley"]
	if len(blocks) != 2 || code.Type != "stdio" || code.Command != "parley" || !slices.Equal(code.Args, []string{"mcp", "--dir", "${workspaceFolder}"}) {
		t.Errorf("VS Code: %+v", code)
	}
	if zed.Command != "parley" || !slices.Equal(zed.Args, []string{"mcp"}) {
		t.Errorf("Zed: %+v", zed)
	}
}
