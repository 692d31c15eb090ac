package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/budget"
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
	may, page := s.rightOf(r, foreign)
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
	share, ok := s.readBody(w, r)
	if !ok {
		return
	}
	defer share.Release()
	ctx := withRight(hub.WithSender(r.Context(), senderOf(r, foreign)), may, page)
	r = r.WithContext(budget.WithShare(ctx, share, r.ContentLength))
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

const (
	// smallBody is the size of bodies that need no reservation: their memory is bounded by the number of connections, so
	// that small requests never wait for large ones.
	smallBody = 16 << 10
	// preallocated is the size of bodies whose memory is allocated before they arrive, and what must have arrived of others
	// before the memory of a small body is.
	preallocated = 4 << 10
	// requestCost is how many times its size a large request holds while it is handled: as its body, decoded, as the agent's
	// prompt, and in the answer. While its agent works, only the prompt remains.
	requestCost = 4
	// bodyStep must arrive within Limits.BodyStep once memory is reserved for a body.
	bodyStep = 64 << 10
	// discardTimeout bounds how long the rest of a refused body is read.
	discardTimeout = 10 * time.Second
)

// readBody reads the whole body, within the limits of size, time and memory, before the handler runs, so that a slow or
// huge body costs one goroutine and what it has sent. The caller must release the memory, nil for a small body, after the
// handler. If ok is false, readBody has answered.
func (s *Server) readBody(w *response, r *http.Request) (share *budget.Share, ok bool) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil, true
	}
	body := bodyReader{server: s, w: w, r: r, deadline: time.Now().Add(s.cfg.Limits.ReadTimeout)}
	if err := body.read(); err != nil {
		body.share.Release()
		s.refuseBody(w, err)
		if errors.Is(err, budget.ErrSpent) || errors.Is(err, errTooLarge) {
			body.discard()
		}
		return nil, false
	}
	// net/http detects a disconnected client by reading on. It would mistake the deadline for that.
	w.readUntil(time.Time{})
	r.Body = jsonrpc.NewBody(body.buf.Bytes())
	r.ContentLength = int64(body.buf.Len())
	return body.share, true
}

var errTooLarge = errors.New("the body is too large")

// bodyReader reads the body of one request.
type bodyReader struct {
	server   *Server
	w        *response
	r        *http.Request
	deadline time.Time
	buf      bytes.Buffer
	share    *budget.Share // of a large body
}

func (b *bodyReader) read() error {
	limit := int64(b.server.cfg.Limits.Message)
	if b.r.ContentLength > limit {
		return errTooLarge
	}
	b.w.readUntil(b.deadline)
	if size := b.r.ContentLength; size > 0 && size <= preallocated {
		b.buf.Grow(int(size) + bytes.MinRead)
	}
	first := min(smallBody, limit) + 1
	n, err := io.Copy(&b.buf, io.LimitReader(b.r.Body, min(first, preallocated)))
	if err == nil && n == preallocated && n < first {
		b.buf.Grow(int(first-n) + bytes.MinRead) // once: many may wait with their beginnings
		var more int64
		more, err = io.Copy(&b.buf, io.LimitReader(b.r.Body, first-n))
		n += more
	}
	if err != nil || n < first {
		return err
	}
	if n > limit {
		return errTooLarge
	}
	return b.readLarge(limit)
}

// readLarge reserves memory for the whole body when its beginning has arrived, and reads the rest. Until the reservation
// the client waits. After it, a client that stops sending loses the reservation.
func (b *bodyReader) readLarge(limit int64) error {
	size := b.r.ContentLength
	if size < 0 { // not declared
		size = limit
	}
	ctx, cancel := context.WithDeadline(b.r.Context(), b.deadline)
	defer cancel()
	share, err := b.server.memory.Acquire(ctx, requestCost*size)
	if err != nil {
		return err
	}
	b.share = share
	if b.r.ContentLength >= 0 {
		b.buf.Grow(int(size) - b.buf.Len() + bytes.MinRead)
	}
	for {
		b.w.readUntil(earliest(b.deadline, time.Now().Add(b.server.cfg.Limits.BodyStep)))
		n, err := io.Copy(&b.buf, io.LimitReader(b.r.Body, bodyStep))
		switch {
		case err != nil:
			return err
		case int64(b.buf.Len()) > limit:
			return errTooLarge
		case n < bodyStep:
			share.Shrink(requestCost * int64(b.buf.Len()))
			return nil
		}
	}
}

// discard reads what a refused client still sends, so that it gets the answer and not a broken connection.
func (b *bodyReader) discard() {
	b.w.Flush()
	b.w.readUntil(time.Now().Add(discardTimeout))
	_, _ = io.CopyN(io.Discard, b.r.Body, int64(b.server.cfg.Limits.Message)) // the connection is closed in any case
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (s *Server) refuseBody(w *response, err error) {
	w.Header().Set("Connection", "close") // the rest of the body is not read
	switch {
	case errors.Is(err, errTooLarge):
		refuse(w, http.StatusRequestEntityTooLarge, jsonrpc.CodeInvalidRequest, "REQUEST_TOO_LARGE", "the request is larger than allowed",
			"send at most "+byteCount(s.cfg.Limits.Message))
	case errors.Is(err, budget.ErrSpent), errors.Is(err, context.DeadlineExceeded):
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, jsonrpc.CodeServerBusy, "SERVER_BUSY",
			"too many large requests at once: they share "+byteCount(int(s.memory.Total()))+" of memory",
			"send it again after a second, and fewer large requests at once")
	case errors.Is(err, os.ErrDeadlineExceeded):
		refuse(w, http.StatusRequestTimeout, jsonrpc.CodeInvalidRequest, "REQUEST_TIMEOUT", "the body was sent too slowly",
			fmt.Sprintf("send it within %v, and what exceeds %s at %s every %v or faster",
				s.cfg.Limits.ReadTimeout, byteCount(smallBody), byteCount(bodyStep), s.cfg.Limits.BodyStep))
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
	body, _ := jsonrpc.BodyOf(w, r, math.MaxInt64) // it is in memory
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
