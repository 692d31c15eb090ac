package site

import (
	"bytes"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Path is where the hub serves the site.
const Path = "/docs/"

// Handler returns the handler of [Path]. It builds the site at the first request: most hubs are never asked for it.
func Handler(docs fs.FS, version string) http.Handler {
	files := sync.OnceValue(func() map[string][]byte {
		files, _ := Build(docs, version) // tests check the links, which do not matter here
		return files
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, Path)
		if name == "" {
			name = "index.html"
		}
		content, ok := files()[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
	})
}
