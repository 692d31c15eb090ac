package server

import (
	"context"
	"net/http"

	"github.com/parleyhub/parley/internal/base/caller"
)

// CalledBy returns the handler for requests that have no connection.
func (s *Server) CalledBy(c caller.Caller) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.Handler().ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
	})
}
