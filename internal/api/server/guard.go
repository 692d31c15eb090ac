package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/caller"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
)

// guard checks access and limits of each request before the mux.
func (s *Server) guard(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := newResponse(rw, s.cfg.Limits.WriteTimeout)
		start := time.Now()
		s.admit(w, r, mux)
		if s.log.Enabled(r.Context(), slog.LevelDebug) {
			s.log.DebugContext(r.Context(), "http", "method", r.Method, "path", r.URL.Path, "status", w.status, "bytes", w.bytes, "took", time.Since(start))
		}
	})
}

func (s *Server) admit(w *response, r *http.Request, mux *http.ServeMux) {
	securityHeaders(w.Header())
	if !s.access.hostAllowed(r.Host) {
		s.forbid(w, r, "the Host header names another server: "+text.Quote(r.Host, 100),
			"call the hub as 127.0.0.1 or localhost, or add the name to http.allowedHosts in the hub's configuration")
		return
	}
	ok, foreign := s.access.originAllowed(r)
	if !ok {
		s.forbid(w, r, "pages of the origin "+text.Quote(r.Header.Get("Origin"), 100)+" may not call the hub",
			"add the origin to http.allowedOrigins in the hub's configuration")
		return
	}
	if foreign && corsHeaders(w, r) {
		return
	}
	if s.openPage(w, r) {
		return
	}
	may := s.rightOf(r, foreign)
	if may == mayView && !viewable(r) {
		s.forbid(w, r, viewOnlyMessage, viewOnlyRemedy)
		return
	}
	if may == mayNothing {
		if !s.public(r) {
			s.requireToken(w, r)
			return
		}
		r.Body = http.NoBody // bodies cost memory that clients with the token share
	}
	release, ok := s.readBody(w, r)
	if !ok {
		return
	}
	defer release()
	r = r.WithContext(withRight(hub.WithSender(r.Context(), senderOf(r, foreign)), may))
	if _, pattern := mux.Handler(r); pattern == "" {
		noRoute(w, r, mux)
		return
	}
	mux.ServeHTTP(w, r)
}

// requireToken answers a request without a valid token with 401.
func (s *Server) requireToken(w *response, r *http.Request) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="parley"`)
	message, remedy := "a valid bearer token is required", "send the header Authorization: Bearer TOKEN with the hub's token, http.token in its configuration; for a browser: parley ui --web"
	if !s.access.guarded {
		who := callerOf(r)
		message = "a valid bearer token is required: the system does not say whether this connection is of the hub's user"
		if who.Kind == caller.Other {
			message = "a valid bearer token is required: this connection is of another user of this computer than the hub's"
		}
		remedy = "send the header Authorization: Bearer TOKEN with the token in the file http-token in the hub's data directory, which only its user can read; for the user's own browser: parley ui --web"
		s.refusals.Do(func() {
			s.log.WarnContext(r.Context(), "refused a request of "+who.String(), "path", text.Clip(r.URL.Path, 200), "remedy", remedy)
		})
	}
	refuse(w, http.StatusUnauthorized, codeAuthentication, "AUTHENTICATION_ERROR", message, remedy)
}

// forbid answers with 403 and logs the remedy: the page or program that called often does not show it. Only some
// refusals are logged, so that no page can fill the log.
func (s *Server) forbid(w *response, r *http.Request, message, remedy string) {
	s.refusals.Do(func() {
		s.log.WarnContext(r.Context(), "refused a request: "+message, "path", text.Clip(r.URL.Path, 200), "remedy", remedy)
	})
	refuse(w, http.StatusForbidden, jsonrpc.CodeInvalidRequest, "FORBIDDEN", message, remedy)
}

// public reports whether a request needs no token: it reads the short GET /health or, if a token is configured, a public
// card, which says that the rest needs one. Escaped paths are not public, because handlers may split them in another way.
func (s *Server) public(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.URL.RawPath != "" {
		return false
	}
	path := r.URL.Path
	if path == healthPath {
		return true
	}
	if !s.access.guarded {
		return false // other users of this computer
	}
	if s.cfg.PublicPath != nil && s.cfg.PublicPath(path) {
		return true
	}
	if path == hubCardPath {
		return s.cfg.Cards.Public("")
	}
	file, ok := strings.CutPrefix(path, agentCardsPath)
	id, isCard := strings.CutSuffix(file, ".json")
	return ok && isCard && id != "" && s.cfg.Cards.Public(id)
}

// securityHeaders sets the headers for an API. Handlers of pages replace them.
func securityHeaders(h http.Header) {
	h["X-Content-Type-Options"] = []string{"nosniff"}
	h["X-Frame-Options"] = []string{"DENY"}
	h["Referrer-Policy"] = []string{"no-referrer"}
	h["Content-Security-Policy"] = []string{"default-src 'none'; frame-ancestors 'none'"}
	h["Cross-Origin-Resource-Policy"] = []string{"same-origin"}
	h["Cache-Control"] = []string{"no-store"}
}

// corsHeaders allows a foreign origin to read the answer. It answers preflight requests
// itself and returns true for them.
func corsHeaders(w *response, r *http.Request) bool {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
	h.Add("Vary", "Origin")
	h.Set("Cross-Origin-Resource-Policy", "cross-origin")
	h.Set("Access-Control-Expose-Headers", "Mcp-Session-Id")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, A2A-Version, A2A-Extensions, Last-Event-ID, "+
		"Mcp-Protocol-Version, Mcp-Session-Id, Mcp-Method, Mcp-Name, Parley-Project")
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// smallBody is the size of bodies that do not count against Limits.BodyMemory.
const smallBody = 64 << 10

// readBody reads the whole body, within the limits of size and time, before the handler
// runs, so that a slow or huge body costs one goroutine and bounded memory. The caller
// must call release after the handler. If ok is false, readBody has answered.
func (s *Server) readBody(w *response, r *http.Request) (release func(), ok bool) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return func() {}, true
	}
	deadline := time.Now().Add(s.cfg.Limits.ReadTimeout)
	w.readUntil(deadline)
	body, held, err := s.readAll(r, deadline)
	if err != nil {
		s.bodies.Release(held)
		s.refuseBody(w, err)
		return nil, false
	}
	// net/http detects a disconnected client by reading on. It would mistake the deadline for that.
	w.readUntil(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return func() { s.bodies.Release(held) }, true
}

var (
	errTooLarge = errors.New("the body is too large")
	errBusy     = errors.New("no memory for another large body")
)

// readAll returns the body and the memory that it has acquired from s.bodies, also with
// an error: none for a small body; for a large one, the limit while it is read.
func (s *Server) readAll(r *http.Request, deadline time.Time) (body []byte, held int64, err error) {
	limit := int64(s.cfg.Limits.Message)
	if r.ContentLength > limit {
		return nil, 0, errTooLarge
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 && r.ContentLength <= smallBody {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	first := min(smallBody, limit+1)
	n, err := io.Copy(&buf, io.LimitReader(r.Body, first))
	switch {
	case err != nil || n < first:
		return buf.Bytes(), 0, err
	case n > limit:
		return nil, 0, errTooLarge
	}
	ctx, cancel := context.WithDeadline(r.Context(), deadline)
	defer cancel()
	if s.bodies.Acquire(ctx, limit) != nil {
		return nil, 0, errBusy
	}
	_, err = io.Copy(&buf, io.LimitReader(r.Body, limit-first+1))
	switch {
	case err != nil:
		return nil, limit, err
	case int64(buf.Len()) > limit:
		return nil, limit, errTooLarge
	}
	s.bodies.Release(limit - int64(buf.Len()))
	return buf.Bytes(), int64(buf.Len()), nil
}

func (s *Server) refuseBody(w *response, err error) {
	w.Header().Set("Connection", "close") // the rest of the body is not read
	switch {
	case errors.Is(err, errTooLarge):
		refuse(w, http.StatusRequestEntityTooLarge, jsonrpc.CodeInvalidRequest, "REQUEST_TOO_LARGE", "the request is larger than allowed",
			"send at most "+byteCount(s.cfg.Limits.Message))
	case errors.Is(err, errBusy):
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, jsonrpc.CodeServerBusy, "SERVER_BUSY", "too many large requests at once", "try again")
	case errors.Is(err, os.ErrDeadlineExceeded):
		refuse(w, http.StatusRequestTimeout, jsonrpc.CodeInvalidRequest, "REQUEST_TIMEOUT", "the body was sent too slowly", "")
	default:
		refuse(w, http.StatusBadRequest, jsonrpc.CodeInvalidRequest, "INVALID_REQUEST", "the body could not be read", "")
	}
}

// noRoute answers requests without a handler as the mux would, but in JSON.
func noRoute(w *response, r *http.Request, mux *http.ServeMux) {
	probe := &probeWriter{header: http.Header{}}
	mux.ServeHTTP(probe, r)
	if allow := probe.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		refuseCall(w, r, http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED", "the path does not support "+r.Method, "use "+allow)
		return
	}
	refuseCall(w, r, http.StatusNotFound, "NOT_FOUND", "there is nothing at this path",
		"the paths are /, /stream, /a2a, /agents/ID/a2a and /mcp; documents are below /.well-known")
}

// probeWriter records the methods that the mux allows.
type probeWriter struct{ header http.Header }

func (p *probeWriter) Header() http.Header         { return p.header }
func (p *probeWriter) Write(b []byte) (int, error) { return len(b), nil }
func (p *probeWriter) WriteHeader(int)             {}

// refuse writes an HTTP error with a JSON-RPC error as its body, for a request whose body is not read.
func refuse(w http.ResponseWriter, status, code int, name, message, remedy string) {
	writeRefusal(w, jsonrpc.NullID, status, code, name, message, remedy)
}

// refuseCall is refuse for an invalid request whose body readBody has read: the error has the request's id.
func refuseCall(w http.ResponseWriter, r *http.Request, status int, name, message, remedy string) {
	body, _ := io.ReadAll(r.Body) // it is in memory
	writeRefusal(w, jsonrpc.IDOf(body, jsonrpc.Limits{}), status, jsonrpc.CodeInvalidRequest, name, message, remedy)
}

func writeRefusal(w http.ResponseWriter, id jsonrpc.ID, status, code int, name, message, remedy string) {
	err := jsonrpc.NewError(code, message, jsonrpc.Details{Code: name, Remedy: remedy})
	writeJSON(w, status, jsonrpc.AppendError(nil, id, err))
}

// response bounds each write by WriteTimeout, and counts for the log.
type response struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	status  int
	bytes   int64
}

func newResponse(w http.ResponseWriter, timeout time.Duration) *response {
	return &response{ResponseWriter: w, control: http.NewResponseController(w), timeout: timeout, status: http.StatusOK}
}

// Unwrap lets http.ResponseController reach the connection.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader writes the status with a new deadline: that of an earlier request on the connection may have passed.
func (w *response) WriteHeader(status int) {
	if status >= http.StatusOK {
		w.status = status
	}
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

// Write writes within the timeout.
func (w *response) Write(b []byte) (int, error) {
	w.extend()
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// FlushError flushes the connection's buffer.
func (w *response) FlushError() error {
	w.extend()
	return w.control.Flush()
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() } // the next write returns the error

func (w *response) readUntil(deadline time.Time) {
	_ = w.control.SetReadDeadline(deadline) // only writers in tests have no deadlines
}

func (w *response) extend() {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout)) // as above
}
