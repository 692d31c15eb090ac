//go:build interop

// Package site_test searches in the documentation as a reader does: with the site's own script.
package site_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/parleyhub/parley/docs"
	"github.com/parleyhub/parley/internal/api/site/render"
	"github.com/parleyhub/parley/test/interop/rig"
)

// ask searches for each argument and prints the pages that are found, best first.
const ask = `const { search } = require("./search.js"), sections = require("./search.json");
console.log(JSON.stringify(process.argv.slice(2).map((q) => search(sections, q).map((s) => s.p))));`

func TestANewcomerFindsPages(t *testing.T) {
	files, err := render.Build(docs.Files, "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"search.js": files["search.js"], "search.json": files["search.json"], "ask.cjs": []byte(ask)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	questions := []struct{ query, page string }{
		{"install", "install.html"}, {"upgrades", "install.html"}, {"swarm", "swarms.html"}, {"documents", "documents.html"}, {"troubleshooting", "troubleshooting.html"},
		{"command lines", "cli.html"}, {"configurations", "configuration.html"},
	}
	args := []string{filepath.Join(dir, "ask.cjs")}
	for _, q := range questions {
		args = append(args, q.query)
	}
	out, err := rig.Node(t.Context(), t, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var found [][]string
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatal(err)
	}
	for i, q := range questions {
		if len(found[i]) == 0 || found[i][0] != q.page {
			t.Errorf("%s: %q, want %s first", q.query, found[i], q.page)
		}
	}
}
