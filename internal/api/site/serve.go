// Package site serves the documentation of the program's own version. The pages are those of package render: a release has them
// finished and compressed, so that it does not link the Markdown parser; other builds make them at the first request.
package site

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Path is where the hub serves the site.
const Path = "/docs/"

// Handler returns the handler of [Path]. It prepares the pages at the first request: most hubs are never asked for them.
func Handler(version string) http.Handler {
	return serve(func() map[string][]byte { return pages(version) })
}

// serve returns the handler of the files that make returns at the first request.
func serve(make func() map[string][]byte) http.Handler {
	files := sync.OnceValue(make)
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
