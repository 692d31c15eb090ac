package a2a

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/log"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// maxDepth bounds the nesting of a document, as in package jsonrpc.
const maxDepth = 64

// serveREST serves a REST call at the path below an A2A address.
func (s *Server) serveREST(w http.ResponseWriter, r *http.Request, below string) {
	version := v10
	if below == "/v1" || strings.HasPrefix(below, "/v1/") {
		version = v03
	}
	asked, err := requestedVersion(r.Header, r.URL.Query())
	if err == nil && asked != "" && asked != version {
		err = fault(a2a.ErrVersionNotSupported, "A2A 0.3 is served below /v1, 1.0 outside it")
	}
	if err != nil {
		writeRESTError(w, err)
		return
	}
	scope := scopeFrom(r.Context())
	scope.version = version
	r = r.WithContext(log.AttachLogger(withScope(r.Context(), scope), s.log))
	if r, err = s.restRequest(w, r, below); err != nil {
		writeRESTError(w, err)
		return
	}
	gate := &restGate{ResponseWriter: w, rc: http.NewResponseController(w), timeout: s.opts.WriteTimeout}
	s.restBinding(version, scope.agent, below).ServeHTTP(gate, r)
	gate.finish()
}

func (s *Server) restBinding(version a2a.ProtocolVersion, agent, below string) http.Handler {
	switch {
	case version == v03:
		return s.rest03
	case agent == "" && !restRoot(below):
		return s.tenant
	}
	return s.rest
}

// restRoot reports whether a path starts without a tenant.
func restRoot(below string) bool {
	first, _, _ := strings.Cut(below[1:], "/")
	return slices.Contains([]string{"message:send", "message:stream", "tasks", "extendedAgentCard"}, first)
}

// restRequest prepares a request for the SDK's binding: the path below it without a
// trailing slash, a checked body and the names of 1.0.
func (s *Server) restRequest(w http.ResponseWriter, r *http.Request, below string) (*http.Request, error) {
	out := r.Clone(r.Context())
	out.URL.Path, out.URL.RawPath = strings.TrimRight(below, "/"), ""
	if out.URL.Path == "" {
		out.URL.Path = "/"
	}
	out.URL.RawQuery = camelQuery(r.URL.Query()).Encode()
	if !hasBody(r) {
		return out, nil
	}
	body, err := readBody(w, r, s.opts.MaxBody)
	if err != nil {
		return nil, err
	}
	if err := rawjson.Check(body, maxDepth); err != nil {
		return nil, fault(a2a.ErrParseError, err.Error())
	}
	body = camelKeys(body)
	if strings.HasPrefix(below, "/v1/") && strings.HasSuffix(out.URL.Path, "/pushNotificationConfigs") {
		body = wrapConfig03(body, r.URL.Query().Get("configId"))
	}
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return out, nil
}

// wrapConfig03 wraps a push configuration of 0.3 in the message that the SDK expects. By the protocol's HTTP rule,
// and from the JavaScript client, the body is the configuration alone.
func wrapConfig03(body []byte, id string) []byte {
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil || members["pushNotificationConfig"] == nil {
		return body
	}
	return remarshal(map[string]any{"config": json.RawMessage(body), "configId": id}, body)
}

// hasBody reports whether a call has a body. A POST without one, such as :cancel, needs no media type.
func hasBody(r *http.Request) bool {
	return r.Method == http.MethodPost && r.ContentLength != 0
}

func camelQuery(query url.Values) url.Values {
	out := make(url.Values, len(query))
	for name, values := range query {
		if camel := camelCase(name); camel == name || !query.Has(camel) {
			out[camel] = values
		}
	}
	return out
}

// restGate corrects the answers of the SDK's REST bindings. A stream whose first event is an error becomes that
// error with its status (the SDK writes 200). The mux's plain texts, such as for an unknown path, become errors of
// A2A. An empty answer becomes {}. Errors of 0.3 have the media type of JSON, not of problem documents (RFC 9457),
// which the SDK's own client does not read.
type restGate struct {
	http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	state   gateState
	held    bytes.Buffer // the incomplete first event of a stream
}

type gateState int

const (
	gateFresh  gateState = iota // nothing written
	gateHeld                    // a stream whose first event may be an error
	gateStream                  // a stream that started with another event
	gatePlain                   // an ordinary answer
	gateDone                    // the gate has answered itself
)

// Unwrap is for http.ResponseController.
func (g *restGate) Unwrap() http.ResponseWriter { return g.ResponseWriter }

func (g *restGate) WriteHeader(status int) {
	if g.state != gateFresh {
		return
	}
	contentType := g.Header().Get("Content-Type")
	switch {
	case status == http.StatusOK && strings.HasPrefix(contentType, "text/event-stream"):
		g.state = gateHeld
	case status >= 400 && strings.HasPrefix(contentType, "text/plain"):
		g.state = gateDone
		writeRESTError(g.ResponseWriter, muxError(status))
	default:
		if strings.HasPrefix(contentType, "application/problem+json") {
			g.Header().Set("Content-Type", "application/json")
		}
		g.state = gatePlain
		g.ResponseWriter.WriteHeader(status)
	}
}

// muxError returns the error for a status of http.ServeMux. Its redirects for unclean paths are not errors.
func muxError(status int) error {
	if status == http.StatusMethodNotAllowed {
		return fault(errMethodNotAllowed, "this path does not support the request's method")
	}
	return fault(a2a.ErrMethodNotFound, "there is no such path in A2A's REST binding")
}

func (g *restGate) Write(p []byte) (int, error) {
	if g.state == gateFresh {
		g.WriteHeader(http.StatusOK)
	}
	switch g.state {
	case gateHeld:
		return len(p), g.hold(p)
	case gateDone:
		return len(p), nil
	case gateStream:
		g.extend()
	}
	return g.ResponseWriter.Write(p)
}

// hold buffers the first event until it is complete.
func (g *restGate) hold(p []byte) error {
	g.held.Write(p)
	event, whole := bytes.CutSuffix(g.held.Bytes(), []byte("\n\n"))
	if !whole {
		return nil
	}
	if _, data, ok := bytes.Cut(event, []byte("data: ")); ok {
		if status, isError := errorStatus(data); isError {
			g.state = gateDone
			h := g.Header()
			h.Set("Content-Type", "application/json")
			h.Del("Cache-Control")
			g.ResponseWriter.WriteHeader(status)
			_, err := g.ResponseWriter.Write(data)
			return err
		}
	}
	return g.release()
}

// release starts the stream.
func (g *restGate) release() error {
	g.state = gateStream
	g.extend()
	g.ResponseWriter.WriteHeader(http.StatusOK)
	_, err := g.ResponseWriter.Write(g.held.Bytes())
	g.held.Reset()
	return err
}

// extend bounds the next write, so that a client that does not read cannot hold a goroutine and a subscription
// forever. Writers without deadlines, in tests, are left without.
func (g *restGate) extend() { _ = g.rc.SetWriteDeadline(time.Now().Add(g.timeout)) }

// errorStatus reports whether an event is an error, by the member "error", which no event of A2A has.
func errorStatus(data []byte) (status int, isError bool) {
	var event struct {
		Error *struct {
			Code int `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(data, &event) != nil || event.Error == nil {
		return 0, false
	}
	if event.Error.Code < 400 || event.Error.Code > 599 {
		return http.StatusInternalServerError, true
	}
	return event.Error.Code, true
}

// Flush implements http.Flusher, which the SDK needs.
func (g *restGate) Flush() {
	if g.state == gateHeld || g.state == gateDone {
		return
	}
	_ = g.rc.Flush() // the next write reports a disconnected client
}

// finish completes an empty answer.
func (g *restGate) finish() {
	switch g.state {
	case gateFresh:
		g.Header().Set("Content-Type", "application/json")
		g.ResponseWriter.WriteHeader(http.StatusOK)
		writeBody(g.ResponseWriter, []byte("{}"))
	case gateHeld:
		_ = g.release() // a stream without a complete event: the client has disconnected
	}
}
