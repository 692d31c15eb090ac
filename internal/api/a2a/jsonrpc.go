package a2a

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/base/text"
)

// jsonrpcBinding is A2A over JSON-RPC 2.0, both versions.
type jsonrpcBinding struct {
	handler      a2asrv.RequestHandler
	keepAlive    time.Duration
	writeTimeout time.Duration
	log          *slog.Logger
}

type rpcResponse struct {
	JSONRPC string     `json:"jsonrpc"`
	ID      jsonrpc.ID `json:"id"`
	Result  any        `json:"result"`
}

type rpcFailure struct {
	JSONRPC string     `json:"jsonrpc"`
	ID      jsonrpc.ID `json:"id"`
	Error   *rpcError  `json:"error"`
}

// rpcMethods are the methods of one version and the format of its events.
type rpcMethods struct {
	unary  map[string]unaryMethod
	stream map[string]streamMethod
	event  func(a2a.Event) (any, error)
	// errorEvents makes an error of a streaming method an event even if nothing else
	// was sent: clients of 0.3 refuse other media types.
	errorEvents bool
}

type (
	unaryMethod  func(context.Context, a2asrv.RequestHandler, json.RawMessage) (any, error)
	streamMethod func(context.Context, a2asrv.RequestHandler, json.RawMessage) (iter.Seq2[a2a.Event, error], error)
)

var methods = map[a2a.ProtocolVersion]rpcMethods{v10: methods10, v03: methods03}

var methods10 = rpcMethods{
	unary: map[string]unaryMethod{
		"SendMessage":                      unary10(sendMessage10),
		"GetTask":                          unary10(a2asrv.RequestHandler.GetTask),
		"ListTasks":                        unary10(a2asrv.RequestHandler.ListTasks),
		"CancelTask":                       unary10(a2asrv.RequestHandler.CancelTask),
		"CreateTaskPushNotificationConfig": unary10(a2asrv.RequestHandler.CreateTaskPushConfig),
		"GetTaskPushNotificationConfig":    unary10(a2asrv.RequestHandler.GetTaskPushConfig),
		"ListTaskPushNotificationConfigs":  unary10(a2asrv.RequestHandler.ListTaskPushConfigs),
		"DeleteTaskPushNotificationConfig": unary10(deletePushConfig10),
		"GetExtendedAgentCard":             unary10(a2asrv.RequestHandler.GetExtendedAgentCard),
	},
	stream: map[string]streamMethod{
		"SendStreamingMessage": stream10(a2asrv.RequestHandler.SendStreamingMessage),
		"SubscribeToTask":      stream10(a2asrv.RequestHandler.SubscribeToTask),
	},
	event: func(e a2a.Event) (any, error) { return a2a.StreamResponse{Event: e}, nil },
}

func unary10[P, R any](call func(a2asrv.RequestHandler, context.Context, *P) (R, error)) unaryMethod {
	return func(ctx context.Context, h a2asrv.RequestHandler, raw json.RawMessage) (any, error) {
		params, err := decodeParams[P](raw)
		if err != nil {
			return nil, err
		}
		return call(h, ctx, params)
	}
}

func stream10[P any](call func(a2asrv.RequestHandler, context.Context, *P) iter.Seq2[a2a.Event, error]) streamMethod {
	return func(ctx context.Context, h a2asrv.RequestHandler, raw json.RawMessage) (iter.Seq2[a2a.Event, error], error) {
		params, err := decodeParams[P](raw)
		if err != nil {
			return nil, err
		}
		return call(h, ctx, params), nil
	}
}

func sendMessage10(h a2asrv.RequestHandler, ctx context.Context, req *a2a.SendMessageRequest) (a2a.StreamResponse, error) {
	result, err := h.SendMessage(ctx, req)
	return a2a.StreamResponse{Event: result}, err
}

func deletePushConfig10(h a2asrv.RequestHandler, ctx context.Context, req *a2a.DeleteTaskPushConfigRequest) (any, error) {
	return nil, h.DeleteTaskPushConfig(ctx, req)
}

// serveJSONRPC answers one JSON-RPC request.
func (s *Server) serveJSONRPC(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		writeRPCError(w, http.StatusMethodNotAllowed, jsonrpc.NullID, fault(errMethodNotAllowed, "JSON-RPC requests are POSTs"))
		return
	}
	body, err := readBody(w, r, s.opts.MaxBody)
	if err != nil {
		writeRPCError(w, wireCodeOf(err).http, jsonrpc.NullID, err)
		return
	}
	req, err := parseRPC(body)
	if err != nil {
		writeRPCError(w, http.StatusOK, req.ID, err)
		return
	}
	version, err := requestedVersion(r.Header, r.URL.Query())
	if err != nil {
		writeRPCError(w, http.StatusOK, req.ID, err)
		return
	}
	if version == "" {
		version = methodVersion(req.Method)
	}
	scope := scopeFrom(r.Context())
	scope.version = version
	ctx := withScope(r.Context(), scope)
	ctx, _ = a2asrv.NewCallContext(ctx, a2av0.ToServiceParams(r.Header)) // with the names of both versions
	s.rpc.dispatch(ctx, w, req, methods[version])
}

// parseRPC reads a request. With an error, it returns the request's id if it could be
// read. A request without an id is treated as one with id null: A2A has no
// notifications, and a faulty client would wait for an answer.
func parseRPC(body []byte) (jsonrpc.Request, error) {
	message := jsonrpc.Decode(body, jsonrpc.Limits{})
	if message.Batch {
		return jsonrpc.Request{}, fault(a2a.ErrInvalidRequest, "A2A has no batches: send one request at a time")
	}
	call := message.Calls[0]
	if call.Err == nil {
		return call.Request, nil
	}
	kind := a2a.ErrInvalidRequest
	if call.Err.Code == jsonrpc.CodeParseError {
		kind = a2a.ErrParseError
	}
	return call.Request, a2a.NewError(kind, call.Err.Message)
}

func (b jsonrpcBinding) dispatch(ctx context.Context, w http.ResponseWriter, req jsonrpc.Request, m rpcMethods) {
	if call, ok := m.unary[req.Method]; ok {
		result, err := b.safely(ctx, call, req)
		if err != nil {
			writeRPCError(w, http.StatusOK, req.ID, err)
			return
		}
		b.writeResult(w, req.ID, result)
		return
	}
	call, ok := m.stream[req.Method]
	if !ok {
		writeRPCError(w, http.StatusOK, req.ID, fault(a2a.ErrMethodNotFound, "there is no method "+text.Quote(req.Method, 64)+" in this version of A2A"))
		return
	}
	events, err := call(ctx, b.handler, req.Params)
	if err != nil {
		events = func(yield func(a2a.Event, error) bool) { yield(nil, err) }
	}
	b.stream(ctx, w, req.ID, events, m)
}

// safely converts a panic to an internal error, so that the client gets an answer.
func (b jsonrpcBinding) safely(ctx context.Context, call unaryMethod, req jsonrpc.Request) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			b.log.Error("request panicked", "method", req.Method, "panic", p, "stack", string(debug.Stack()))
			err = a2a.ErrInternalError
		}
	}()
	return call(ctx, b.handler, req.Params)
}

func (b jsonrpcBinding) writeResult(w http.ResponseWriter, id jsonrpc.ID, result any) {
	body, err := rawjson.Append(nil, rpcResponse{JSONRPC: jsonrpc.Version, ID: id, Result: result})
	if err != nil {
		b.log.Error("result cannot be encoded", "error", err)
		writeRPCError(w, http.StatusOK, id, a2a.ErrInternalError)
		return
	}
	writeRPC(w, http.StatusOK, body)
}

// stream sends server-sent events, each a JSON-RPC response. In 1.0 an error before the
// first event is an ordinary response.
func (b jsonrpcBinding) stream(ctx context.Context, w http.ResponseWriter, id jsonrpc.ID, events iter.Seq2[a2a.Event, error], m rpcMethods) {
	out := newEventStream(w, b.writeTimeout)
	err := out.run(ctx, b.keepAlive, events, func(event a2a.Event, err error) ([]byte, error) {
		if err != nil && !expected(err) {
			b.log.Error("stream failed", "error", err)
		}
		if err == nil {
			var result any
			if result, err = m.event(event); err == nil {
				return rawjson.Append(nil, rpcResponse{JSONRPC: jsonrpc.Version, ID: id, Result: result})
			}
			b.log.Error("event cannot be converted", "error", err)
			err = a2a.ErrInternalError
		}
		if !out.started && !m.errorEvents {
			return nil, err
		}
		return rawjson.Append(nil, rpcFailure{JSONRPC: jsonrpc.Version, ID: id, Error: newRPCError(err)})
	})
	if err != nil && !out.started {
		writeRPCError(w, http.StatusOK, id, err)
	}
}

// readBody reads a request's JSON body of at most limit bytes.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if err := checkMediaType(r.Header.Get("Content-Type")); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	if n := r.ContentLength; n > 0 && n <= limit {
		buf.Grow(int(n) + bytes.MinRead) // without MinRead, reading EOF would grow the buffer
	}
	_, err := io.Copy(&buf, http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, fault(errTooLarge, "the request is larger than "+strconv.FormatInt(limit, 10)+" bytes")
	}
	if err != nil {
		return nil, fault(a2a.ErrParseError, "the request could not be read completely")
	}
	return buf.Bytes(), nil
}

// checkMediaType accepts the media types of A2A's JSON.
func checkMediaType(contentType string) error {
	media, _, err := mime.ParseMediaType(contentType)
	if err == nil && (media == "application/json" || media == "application/a2a+json") {
		return nil
	}
	return fault(a2a.ErrUnsupportedContentType, "Content-Type must be application/json, not "+text.Quote(contentType, 64))
}

func writeRPCError(w http.ResponseWriter, status int, id jsonrpc.ID, err error) {
	body, mErr := rawjson.Append(nil, rpcFailure{JSONRPC: jsonrpc.Version, ID: id, Error: newRPCError(err)})
	if mErr != nil { // impossible: details have only strings and maps of them
		body = []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"internal error"}}`)
	}
	writeRPC(w, status, body)
}

func writeRPC(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	writeBody(w, body)
}
