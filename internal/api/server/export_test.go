package server

import (
	"context"
	"net/http"
	"strings"

	"github.com/parleyhub/parley/internal/base/caller"
)

// CalledBy returns the handler for requests that have no connection.
func (s *Server) CalledBy(c caller.Caller) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.Handler().ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
	})
}

// Opens opens a link and reports whether there is a cookie for it.
func (p *Pages) Opens(link string) bool { return p.open(strings.TrimPrefix(link, linkPath)) != "" }
