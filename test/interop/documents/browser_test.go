//go:build interop && linux

package documents_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/test/interop/rig"
)

// open opens a page in a new tab and waits until its script has run.
func open(t *testing.T, b *rig.Browser, url string) *rig.Page {
	t.Helper()
	p := b.Open(t, url)
	p.Until(t, "typeof window.open_ === 'function'")
	return p
}

// servePage serves page.html and the published npm packages, with an import map instead of
// a bundler. It returns the page's origin.
func servePage(t *testing.T) string {
	t.Helper()
	packages := []string{"yjs", "lib0", "y-websocket", "y-protocols", "isomorphic.js"}
	modules := rig.Modules(t, packages...)
	imports := map[string]string{}
	for _, name := range packages {
		addImports(t, imports, modules, name)
	}
	table, err := json.Marshal(map[string]any{"imports": imports})
	if err != nil {
		t.Fatal(err)
	}
	html, err := os.ReadFile("page.html")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /modules/", http.StripPrefix("/modules/", http.FileServer(http.Dir(modules))))
	mux.HandleFunc("GET /page.mjs", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "page.mjs") })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, strings.Replace(string(html), "IMPORTS", string(table), 1)) // the browser reports missing files
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// addImports adds a package's exports for browsers.
func addImports(t *testing.T, imports map[string]string, modules, name string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(modules, name, "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Exports map[string]json.RawMessage
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		t.Fatal(err)
	}
	for key, value := range manifest.Exports {
		if file := forBrowsers(value); file != "" {
			imports[path.Join(name, key)] = "/" + path.Join("modules", name, file)
		}
	}
}

// forBrowsers returns the file that an entry of a package's exports selects for a browser,
// or "".
func forBrowsers(entry json.RawMessage) string {
	var file string
	if json.Unmarshal(entry, &file) == nil {
		return file
	}
	var conditions map[string]json.RawMessage
	if json.Unmarshal(entry, &conditions) != nil {
		return ""
	}
	for _, condition := range []string{"browser", "module", "import", "default"} {
		if next, ok := conditions[condition]; ok {
			return forBrowsers(next)
		}
	}
	return ""
}

// opening returns the script that opens a document in a page.
func opening(server, room, token string) string {
	return fmt.Sprintf("open_({server: %q, room: %q, token: %q})", server, room, token)
}
