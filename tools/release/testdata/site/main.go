// Site prints the first page of the site that it has been built with.
package main

import (
	"net/http/httptest"
	"os"

	"github.com/parleyhub/parley/internal/api/site"
)

func main() {
	w := httptest.NewRecorder()
	site.Handler("").ServeHTTP(w, httptest.NewRequest("GET", site.Path, nil))
	if _, err := w.Body.WriteTo(os.Stdout); err != nil {
		os.Exit(1)
	}
}
