package server

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/api/screens"
	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/hub"
)

const (
	healthPath         = "/health"
	hubCardPath        = "/.well-known/agent.json"
	agentCardsPath     = "/.well-known/agents/"
	codeAuthentication = dialect.CodeAuthenticationError
)

func (s *Server) routes() {
	d := &jsonrpc.Dispatcher{Handler: s.cfg.HTTPHandler, Log: s.log}
	s.calls, s.pageCalls = d, d
	if s.cfg.PageHandler != nil {
		s.pageCalls = &jsonrpc.Dispatcher{Handler: s.cfg.PageHandler, Log: s.log}
	}
	s.mux.HandleFunc("POST /{$}", func(w http.ResponseWriter, r *http.Request) { s.rpc(w, r, s.dispatcher(r), false) })
	s.mux.HandleFunc("POST /stream", func(w http.ResponseWriter, r *http.Request) { s.rpc(w, r, s.dispatcher(r), true) })
	s.mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) { s.events(w, r, d) })
	s.mux.HandleFunc("GET /tasks/{id}/trace", func(w http.ResponseWriter, r *http.Request) { s.trace(w, r, d) })
	s.mux.HandleFunc("GET /totals", func(w http.ResponseWriter, r *http.Request) { s.totals(w, r, d) })
	s.mux.HandleFunc("GET "+healthPath, s.health)
	s.mux.HandleFunc("GET "+hubCardPath, func(w http.ResponseWriter, r *http.Request) { s.document(w, r, s.cfg.Cards.HubCard(r.Context())) })
	s.mux.HandleFunc("GET /.well-known/agents", func(w http.ResponseWriter, r *http.Request) { s.document(w, r, s.cfg.Cards.AgentCards(r.Context())) })
	s.mux.HandleFunc("GET "+agentCardsPath+"{file}", s.agentCard)
}

// rpc answers a JSON-RPC message. Streaming methods are answered with Server-Sent
// Events on both paths; on /stream, message/send streams too.
func (s *Server) rpc(w http.ResponseWriter, r *http.Request, d *jsonrpc.Dispatcher, stream bool) {
	if !isJSON(r) {
		refuseCall(w, r, http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE",
			"the body must be JSON in UTF-8, not encoded", "send the header Content-Type: application/json")
		return
	}
	body, err := jsonrpc.BodyOf(w, r, int64(s.cfg.Limits.Message))
	if err != nil { // impossible: readBody has read it
		refuse(w, http.StatusBadRequest, jsonrpc.CodeInvalidRequest, "INVALID_REQUEST", "the body could not be read", "")
		return
	}
	msg := jsonrpc.Decode(body, s.cfg.Limits.RPC)
	if screens.ViewOnly(r.Context()) && changes(msg.Calls) {
		writeRefusal(w, jsonrpc.IDOf(body, jsonrpc.Limits{}), http.StatusForbidden, jsonrpc.CodeInvalidRequest, "FORBIDDEN", viewOnlyMessage, viewOnlyRemedy)
		return
	}
	if msg.Batch {
		s.answer(w, d.Serve(r.Context(), msg, nil))
		return
	}
	call := msg.Calls[0]
	if stream && call.Request.Method == dialect.MethodSend {
		call.Request.Method = dialect.MethodStream
	}
	if call.Err == nil && !call.Request.IsNotification() && dialect.Streams(call.Request.Method) {
		s.stream(w, r, d, call.Request)
		return
	}
	s.answer(w, d.ServeCall(r.Context(), nil, call, nil))
}

// stream answers a request with Server-Sent Events. An error before the first event is answered in plain JSON.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, d *jsonrpc.Dispatcher, req jsonrpc.Request) {
	events := &jsonrpc.EventStream{W: w, KeepAlive: s.cfg.Limits.KeepAlive, CacheControl: "no-cache, no-store"}
	defer events.Close()
	result, rpcErr := d.Call(r.Context(), req, func(event any) error {
		frame, err := jsonrpc.AppendResult([]byte("data: "), req.ID, event)
		if err != nil {
			return err
		}
		return events.Send(append(frame, "\n\n"...))
	})
	switch {
	case events.Started() && rpcErr != nil:
		frame := jsonrpc.AppendError([]byte("data: "), req.ID, rpcErr)
		_ = events.Send(append(frame, "\n\n"...)) // fails only if the client has disconnected
	case events.Started(): // the last event has the result
	case rpcErr != nil:
		writeJSON(w, http.StatusOK, jsonrpc.AppendError(nil, req.ID, rpcErr))
	default:
		answer, err := jsonrpc.AppendResult(nil, req.ID, result)
		if err != nil {
			answer = jsonrpc.AppendError(nil, req.ID, jsonrpc.InternalError())
		}
		writeJSON(w, http.StatusOK, answer)
	}
}

func (s *Server) answer(w http.ResponseWriter, answer []byte) {
	if answer == nil {
		w.WriteHeader(http.StatusNoContent) // only notifications
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

func isJSON(r *http.Request) bool {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return false
	}
	given := r.Header.Get("Content-Type")
	if given == "application/json" {
		return true
	}
	mediaType, params, err := mime.ParseMediaType(given)
	if err != nil || mediaType != "application/json" {
		return false
	}
	charset := params["charset"]
	return charset == "" || strings.EqualFold(charset, "utf-8")
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails only if the client has disconnected
}

// health answers GET /health. To callers without a right to more, it only says whether the hub works.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	report := dialect.HealthReport{Status: dialect.HubHealthy}
	if s.cfg.Health != nil {
		report = s.cfg.Health()
	}
	if s.draining.Load() {
		report.Status, report.Reason = dialect.HubUnhealthy, "the hub is stopping"
	}
	status := http.StatusOK
	if report.Status != dialect.HubHealthy {
		status = http.StatusServiceUnavailable
	}
	if !s.access.permitted(r) {
		report = dialect.HealthReport{Status: report.Status}
	}
	body, err := rawjson.Append(nil, report)
	if err != nil {
		refuseInternal(w)
		return
	}
	writeJSON(w, status, body)
}

// trace answers GET /tasks/{id}/trace with the result of hub/tasks/trace.
func (s *Server) trace(w http.ResponseWriter, r *http.Request, d *jsonrpc.Dispatcher) {
	params := map[string]any{"id": r.PathValue("id")}
	for _, name := range []string{"turn", "limit"} {
		if v := r.URL.Query().Get(name); v != "" {
			params[name] = json.Number(v)
			if !json.Valid([]byte(v)) {
				params[name] = v // hub/tasks/trace says what is wrong
			}
		}
	}
	w.Header().Set("Cache-Control", "no-store")
	answer(w, r, d, dialect.MethodTasksTrace, params)
}

// answer calls a method and writes its result, or its error without JSON-RPC's envelope.
func answer(w http.ResponseWriter, r *http.Request, d *jsonrpc.Dispatcher, method string, params map[string]any) {
	raw, err := rawjson.Append(nil, params)
	if err != nil {
		refuseInternal(w)
		return
	}
	result, rpcErr := d.Call(r.Context(), jsonrpc.Request{Method: method, Params: raw}, nil)
	if rpcErr != nil {
		writeJSON(w, statusOf(rpcErr), jsonrpc.AppendError(nil, jsonrpc.NullID, rpcErr))
		return
	}
	body, err := rawjson.Append(nil, result)
	if err != nil {
		refuseInternal(w)
		return
	}
	writeJSON(w, http.StatusOK, body)
}

// statusOf returns the HTTP status of a path that answers without JSON-RPC's envelope.
func statusOf(err *jsonrpc.Error) int {
	switch err.Code {
	case jsonrpc.CodeInvalidParams:
		return http.StatusBadRequest
	case jsonrpc.CodeMethodNotFound, dialect.CodeTaskNotFound:
		return http.StatusNotFound
	case jsonrpc.CodeInternalError:
		return http.StatusInternalServerError
	}
	return http.StatusServiceUnavailable
}

func (s *Server) agentCard(w http.ResponseWriter, r *http.Request) {
	id, isCard := strings.CutSuffix(r.PathValue("file"), ".json")
	card, err := s.cfg.Cards.AgentCard(r.Context(), id)
	var he *hub.Error
	switch {
	case !isCard, errors.As(err, &he) && he.Code == hub.CodeAgentNotFound:
		refuse(w, http.StatusNotFound, dialect.CodeAgentNotFound, "AGENT_NOT_FOUND",
			fmt.Sprintf("there is no agent card %.100q", r.PathValue("file")), "GET /.well-known/agents lists the agents")
	case err != nil:
		s.log.ErrorContext(r.Context(), "cannot make an agent card", "agent", id, "error", err)
		refuseInternal(w)
	default:
		s.document(w, r, card)
	}
}

func refuseInternal(w http.ResponseWriter) {
	refuse(w, http.StatusInternalServerError, jsonrpc.CodeInternalError, "INTERNAL_ERROR", "Internal error", "")
}

// document writes a cacheable document with a hash as its ETag.
func (s *Server) document(w http.ResponseWriter, r *http.Request, v any) {
	body, err := rawjson.Append(nil, v)
	if err != nil {
		s.log.ErrorContext(r.Context(), "cannot encode a document", "path", r.URL.Path, "error", err)
		refuseInternal(w)
		return
	}
	sum := sha256.Sum256(body)
	etag := `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
	h := w.Header()
	h.Set("ETag", etag)
	if s.access.guarded {
		h.Set("Cache-Control", "private, max-age=60")
	} else {
		h.Set("Cache-Control", "public, max-age=60")
	}
	if matches(r.Header.Get("If-None-Match"), etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	writeJSON(w, http.StatusOK, body)
}

func matches(header, etag string) bool {
	for candidate := range strings.SplitSeq(header, ",") {
		candidate = strings.TrimPrefix(strings.TrimSpace(candidate), "W/")
		if candidate == etag || candidate == "*" {
			return true
		}
	}
	return false
}

func byteCount(n int) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	if n >= 1<<10 && n%(1<<10) == 0 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
