package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"mime"
	"net/http"
	"runtime/debug"
	"strconv"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
)

type rpcResponse struct {
	JSONRPC string     `json:"jsonrpc"`
	ID      jsonrpc.ID `json:"id"`
	Result  any        `json:"result"`
}

// rpcMethods are the methods of one version and the format of its events.
type rpcMethods struct {
	unary  map[string]rpcMethod
	stream map[string]rpcMethod // with results of the type eventSeq
	event  func(a2a.Event) (any, error)
	// errorEvents makes an error of a streaming method an event even if nothing else
	// was sent: clients of 0.3 refuse other media types.
	errorEvents bool
}

type (
	rpcMethod func(context.Context, a2asrv.RequestHandler, json.RawMessage) (any, error)
	eventSeq  = iter.Seq2[a2a.Event, error]
)

var methods = map[a2a.ProtocolVersion]rpcMethods{v10: methods10, v03: methods03}

var methods10 = rpcMethods{
	unary: map[string]rpcMethod{
		"SendMessage": method(same[*a2a.SendMessageRequest], a2asrv.RequestHandler.SendMessage,
			sure(func(result a2a.SendMessageResult) any { return a2a.StreamResponse{Event: result} })),
		"GetTask":                          method10(a2asrv.RequestHandler.GetTask),
		"ListTasks":                        method10(a2asrv.RequestHandler.ListTasks),
		"CancelTask":                       method10(a2asrv.RequestHandler.CancelTask),
		"CreateTaskPushNotificationConfig": method10(a2asrv.RequestHandler.CreateTaskPushConfig),
		"GetTaskPushNotificationConfig":    method10(a2asrv.RequestHandler.GetTaskPushConfig),
		"ListTaskPushNotificationConfigs":  method10(a2asrv.RequestHandler.ListTaskPushConfigs),
		"DeleteTaskPushNotificationConfig": method10(deletePushConfig),
		"GetExtendedAgentCard":             method10(a2asrv.RequestHandler.GetExtendedAgentCard),
	},
	stream: map[string]rpcMethod{
		"SendStreamingMessage": method10(streaming(a2asrv.RequestHandler.SendStreamingMessage)),
		"SubscribeToTask":      method10(streaming(a2asrv.RequestHandler.SubscribeToTask)),
	},
	event: func(e a2a.Event) (any, error) { return a2a.StreamResponse{Event: e}, nil },
}

// call is a method of a2asrv.RequestHandler.
type call[P, R any] = func(a2asrv.RequestHandler, context.Context, P) (R, error)

// method returns the method with parameters and results of the wire; to and from convert them.
func method[P, V, R, W any](to func(*P) (V, error), call call[V, R], from func(R) (W, error)) rpcMethod {
	return func(ctx context.Context, h a2asrv.RequestHandler, raw json.RawMessage) (any, error) {
		decoded, err := decodeParams[P](raw)
		if err != nil {
			return nil, err
		}
		params, err := to(decoded)
		if err != nil {
			return nil, fault(a2a.ErrInvalidParams, fmt.Sprintf("params: %v", err))
		}
		result, err := call(h, ctx, params)
		if err != nil {
			return nil, err
		}
		return from(result)
	}
}

// method10 is method with the types of the wire.
func method10[P, R any](call call[*P, R]) rpcMethod { return method(same[*P], call, same[R]) }

func same[T any](v T) (T, error) { return v, nil }

// sure returns a conversion that never fails.
func sure[A, B any](convert func(A) B) func(A) (B, error) {
	return func(a A) (B, error) { return convert(a), nil }
}

// streaming returns a streaming call, whose events have the error.
func streaming[P any](call func(a2asrv.RequestHandler, context.Context, P) eventSeq) call[P, eventSeq] {
	return func(h a2asrv.RequestHandler, ctx context.Context, params P) (eventSeq, error) {
		return call(h, ctx, params), nil
	}
}

func deletePushConfig(h a2asrv.RequestHandler, ctx context.Context, req *a2a.DeleteTaskPushConfigRequest) (any, error) {
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
	if err == nil {
		err = scopeFrom(r.Context()).unknown
	}
	if err != nil {
		writeRPCError(w, wireCodeOf(err).http, jsonrpc.IDOf(body, jsonrpc.Limits{}), err)
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
	s.dispatch(ctx, w, req, methods[version])
}

// parseRPC reads a request. With an error, it returns the request's id if it could be read. A request without an id
// is treated as one with id null: A2A has no notifications, and a faulty client would wait for an answer.
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

func (s *Server) dispatch(ctx context.Context, w http.ResponseWriter, req jsonrpc.Request, m rpcMethods) {
	call, streams := m.stream[req.Method]
	if !streams {
		call = m.unary[req.Method]
	}
	var more bool
	if streams {
		scope := scopeFrom(ctx)
		scope.more = &more
		ctx = withScope(ctx, scope)
	}
	if call == nil {
		writeRPCError(w, http.StatusOK, req.ID, fault(a2a.ErrMethodNotFound, "there is no method "+text.Quote(req.Method, 64)+" in this version of A2A"))
		return
	}
	result, err := s.safely(ctx, call, req)
	switch {
	case streams && err != nil:
		s.stream(w, req.ID, func(yield func(a2a.Event, error) bool) { yield(nil, err) }, m, &more)
	case streams:
		s.stream(w, req.ID, result.(eventSeq), m, &more)
	case err != nil:
		writeRPCError(w, http.StatusOK, req.ID, err)
	default:
		s.writeResult(w, req.ID, result, len(req.Params))
	}
}

// safely converts a panic to an internal error, so that the client gets an answer.
func (s *Server) safely(ctx context.Context, call rpcMethod, req jsonrpc.Request) (result any, err error) {
	name := req.Method // the parameters are garbage before the call ends
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("request panicked", "method", name, "panic", p, "stack", string(debug.Stack()))
			err = a2a.ErrInternalError
		}
	}()
	return call(ctx, s.handler, req.Params)
}

// writeResult writes an answer to a request with so many bytes of parameters, which it may repeat.
func (s *Server) writeResult(w http.ResponseWriter, id jsonrpc.ID, result any, params int) {
	encoded := s.reserveEncoding(max(resultSize(result), 2*params))
	var room []byte
	if r, ok := result.(a2a.StreamResponse); ok {
		room = make([]byte, 0, hub.EncodedSize(r.Event))
	}
	body, err := appendResponse(room, id, result)
	encoded()
	if err != nil {
		s.log.Error("result cannot be encoded", "error", err)
		writeRPCError(w, http.StatusOK, id, a2a.ErrInternalError)
		return
	}
	writeRPC(w, http.StatusOK, body)
}

// resultSize estimates the bytes of a result of 1.0.
func resultSize(result any) int {
	switch r := result.(type) {
	case a2a.StreamResponse:
		return hub.ContentSize(r.Event)
	case *a2a.Task:
		return hub.ContentSize(r)
	case *a2a.ListTasksResponse:
		n := 0
		for _, t := range r.Tasks {
			n += hub.ContentSize(t)
		}
		return n
	}
	return 0
}

// stream sends server-sent events, each a JSON-RPC response, until they end or one is an
// error. In 1.0 an error before the first event is an ordinary response. more is that of the call's scope.
func (s *Server) stream(w http.ResponseWriter, id jsonrpc.ID, events eventSeq, m rpcMethods, more *bool) {
	out := jsonrpc.EventStream{W: w, KeepAlive: s.opts.KeepAlive, CacheControl: "no-cache", Timeout: s.opts.WriteTimeout}
	defer out.Close()
	seq := 0
	for event, err := range recovered(events) {
		seq++
		var frame []byte
		if err == nil {
			encoded := s.reserveEncoding(hub.ContentSize(event))
			frame, err = m.frame(frameHead(hub.EncodedSize(event), seq), id, event)
			encoded()
		}
		if err != nil && !expected(err) {
			s.log.Error("stream failed", "error", err)
		}
		if err != nil && !out.Started() && !m.errorEvents {
			writeRPCError(w, http.StatusOK, id, err)
			return
		}
		if err != nil {
			frame = append(frameHead(0, seq), encodeRPCError(id, err)...)
		}
		send := out.Send
		if *more {
			send, *more = out.Hold, false
		}
		if send(append(frame, "\n\n"...)) != nil || err != nil {
			return
		}
	}
}

// frameHead returns the beginning of the frame of an event, with room for so many bytes.
func frameHead(room, seq int) []byte {
	head := strconv.AppendInt(append(make([]byte, 0, room), "id: "...), int64(seq), 10)
	return append(head, "\ndata: "...)
}

// frame appends the response with an event.
func (m rpcMethods) frame(dst []byte, id jsonrpc.ID, event a2a.Event) ([]byte, error) {
	result, err := m.event(event)
	if err != nil {
		return nil, err
	}
	return appendResponse(dst, id, result)
}

// appendResponse appends the response with a result.
func appendResponse(dst []byte, id jsonrpc.ID, result any) ([]byte, error) {
	r, ok := result.(a2a.StreamResponse)
	if !ok {
		return rawjson.Append(dst, rpcResponse{JSONRPC: jsonrpc.Version, ID: id, Result: result})
	}
	body := append(dst, `{"jsonrpc":"`+jsonrpc.Version+`","id":`...)
	body, err := rawjson.Append(body, id)
	if err == nil {
		body, err = hub.AppendEvent(append(body, `,"result":`...), r.Event)
	}
	if err != nil {
		return dst, err
	}
	return append(body, '}'), nil
}

// recovered converts a panic of events to an error.
func recovered(events eventSeq) eventSeq {
	return func(yield func(a2a.Event, error) bool) {
		defer func() {
			if p := recover(); p != nil {
				yield(nil, fmt.Errorf("stream panicked: %v", p))
			}
		}()
		events(yield)
	}
}

// readBody reads a request's JSON body of at most limit bytes. It returns a body of another media type with the error,
// so that the error can have the request's id.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	body, err := jsonrpc.BodyOf(w, r, limit)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, fault(errTooLarge, "the request is larger than "+strconv.FormatInt(limit, 10)+" bytes")
	}
	if err != nil {
		return nil, fault(a2a.ErrParseError, "the request could not be read completely")
	}
	return body, checkMediaType(r.Header.Get("Content-Type"))
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
	writeRPC(w, status, encodeRPCError(id, err))
}

func encodeRPCError(id jsonrpc.ID, err error) []byte {
	code := wireCodeOf(err)
	data, _ := rawjson.Append(nil, errorDetails(err, code)) // details have only strings and maps of them
	return jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: code.rpc, Message: errorText(err, code), Data: data})
}

func writeRPC(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	writeBody(w, body)
}
