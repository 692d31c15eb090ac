//go:build interop

// Package site_test searches in the documentation as a reader does: with the site's own script.
package site_test

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/parleyhub/parley/docs"
	"github.com/parleyhub/parley/internal/api/site"
	"github.com/parleyhub/parley/internal/api/site/render"
	"github.com/parleyhub/parley/test/interop/rig"
)

// ask searches for each argument and prints the pages that are found, best first.
const ask = `const { search } = require("./search.js");
require("./sections.js");
console.log(JSON.stringify(process.argv.slice(2).map((q) => search(globalThis.sections, q).map((s) => s.p))));`

func TestANewcomerFindsPages(t *testing.T) {
	files, err := render.Build(docs.Files, "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"search.js": files["search.js"], "sections.js": files["sections.js"], "ask.cjs": []byte(ask)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	questions := []struct{ query, page string }{
		{"install", "install.html"}, {"upgrades", "install.html"}, {"swarm", "swarms.html"}, {"documents", "documents.html"}, {"troubleshooting", "troubleshooting.html"},
		{"command lines", "cli.html"}, {"configurations", "configuration.html"}, {"how do I wake a session?", "waking.html"}, {"permission", "agents.html"}, {"inst", "install.html"},
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

// In a browser, a newcomer finds five things by search and opens them, with a light and a dark page, wide and narrow.
func TestANewcomerSearchesInABrowser(t *testing.T) {
	server := httptest.NewServer(site.Handler("1.0.0"))
	defer server.Close()
	page := rig.StartBrowser(t).Open(t, server.URL+site.Path)
	for i, q := range []struct{ query, link, heading string }{
		{"wake", "waking.html", "Waking open sessions"},
		{"install on Windows", "install.html#install", "Install"},
		{"dead letter", "cli.html#parley-network-dead-letters", "parley network dead-letters"},
		{"backup", "reliability.html#back-up-and-restore", "Back up and restore"},
		{"permission questions", "a2a.html#permission-questions", "Permission questions"},
	} {
		if i%2 == 0 {
			page.Show(t, 1280, 800, i == 0)
		} else {
			page.Show(t, 390, 844, i == 1)
		}
		page.Until(t, "document.getElementById('search') !== null")
		var focused bool
		page.Eval(t, "document.getElementById('search').focus(), true", &focused)
		page.Type(t, q.query)
		page.Until(t, "document.querySelector('#results li a')?.getAttribute('href') === "+quote(t, q.link))
		keep(t, page, q.query)
		page.Eval(t, "document.querySelector('#results li a').click(), true", &focused)
		page.Until(t, "document.readyState === 'complete' && [...document.querySelectorAll('main h1, main h2')].some((h) => h.textContent === "+quote(t, q.heading)+")")
		var wide bool
		if page.Eval(t, "document.documentElement.scrollWidth > innerWidth", &wide); wide {
			t.Errorf("%s: the page is wider than the window", q.query)
		}
		keep(t, page, q.query+" opened")
	}
	if problems := page.Problems(t); len(problems) > 0 {
		t.Errorf("the browser reports %q", problems)
	}
}

// The pages that are opened as files, without a server and a network, are searched, too.
func TestTheSiteIsSearchedAsFiles(t *testing.T) {
	files, err := render.Build(docs.Files, "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	page := rig.StartBrowser(t).Open(t, "file://"+filepath.ToSlash(filepath.Join(dir, "index.html")))
	page.Until(t, "document.readyState === 'complete' && document.getElementById('search') !== null")
	var focused bool
	page.Eval(t, "document.getElementById('search').focus(), true", &focused)
	page.Type(t, "back up")
	page.Until(t, "document.querySelector('#results li a')?.getAttribute('href') === 'reliability.html#back-up-and-restore'")
	if problems := page.Problems(t); len(problems) > 0 {
		t.Errorf("the browser reports %q", problems)
	}
}

func quote(t *testing.T, text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(quoted)
}

// keep writes a picture of the page into the directory that PARLEY_PICTURES names, to be looked at.
func keep(t *testing.T, page *rig.Page, name string) {
	dir := os.Getenv("PARLEY_PICTURES")
	if dir == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), page.Picture(t), 0o600); err != nil {
		t.Error(err)
	}
}
