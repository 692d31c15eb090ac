package jsonrpc

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// Emit sends an event of a running request. It blocks while the peer is slow and
// returns an error after the peer has disconnected.
type Emit func(event any) error

// Handler answers requests. It must be safe for concurrent use.
type Handler interface {
	// Handle returns the result or an error: an *Error is sent to the peer; any other is logged and becomes an
	// internal error. emit is nil if the transport cannot send events for this request. ctx ends with the peer's
	// connection, except for notifications, which get a minute.
	Handle(ctx context.Context, req Request, emit Emit) (result any, err error)
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, req Request, emit Emit) (any, error)

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, req Request, emit Emit) (any, error) {
	return f(ctx, req, emit)
}

// Dispatcher calls a handler for decoded messages and encodes the answers. It is safe for concurrent use.
type Dispatcher struct {
	Handler Handler
	Log     *slog.Logger // nil means slog.Default
	// Parallel is how many requests of a batch run concurrently; 0 means 8.
	Parallel int
}

// Serve returns the answer to a message, nil for none. It blocks until all calls are
// answered. emit is for a single request; requests of a batch cannot stream.
func (d *Dispatcher) Serve(ctx context.Context, msg Message, emit Emit) []byte {
	if !msg.Batch {
		return d.ServeCall(ctx, nil, msg.Calls[0], emit)
	}
	answers := make([][]byte, len(msg.Calls))
	var group errgroup.Group
	group.SetLimit(cmp.Or(max(d.Parallel, 0), 8))
	for i, call := range msg.Calls {
		group.Go(func() error {
			answers[i] = d.ServeCall(ctx, nil, call, nil)
			return nil
		})
	}
	_ = group.Wait() // the functions return no errors
	return joinBatch(answers)
}

func joinBatch(answers [][]byte) []byte {
	batch := []byte{'['}
	for _, answer := range answers {
		if answer == nil {
			continue
		}
		if len(batch) > 1 {
			batch = append(batch, ',')
		}
		batch = append(batch, answer...)
	}
	if len(batch) == 1 {
		return nil // only notifications
	}
	return append(batch, ']')
}

// ServeCall appends the answer to a call to dst. It returns nil for a notification.
func (d *Dispatcher) ServeCall(ctx context.Context, dst []byte, call Call, emit Emit) []byte {
	if call.Err != nil {
		return AppendError(dst, call.Request.ID, call.Err)
	}
	if call.Request.IsNotification() {
		d.notify(ctx, call.Request)
		return nil
	}
	result, err := d.Call(ctx, call.Request, emit)
	if err != nil {
		return AppendError(dst, call.Request.ID, err)
	}
	answer, encodeErr := AppendResult(dst, call.Request.ID, result)
	if encodeErr != nil {
		d.log().ErrorContext(ctx, "cannot encode a result", "method", call.Request.Method, "error", encodeErr)
		return AppendError(dst, call.Request.ID, InternalError())
	}
	return answer
}

// notificationTime bounds the handling of a notification.
const notificationTime = time.Minute

// notify completes a notification even if its sender disconnects.
func (d *Dispatcher) notify(ctx context.Context, req Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notificationTime)
	defer cancel()
	if _, err := d.Call(ctx, req, nil); err != nil {
		d.log().DebugContext(ctx, "a notification failed", "method", req.Method, "code", err.Code)
	}
}

// Call calls the handler and returns its result or the error for the peer. A panic is
// logged and becomes an internal error.
func (d *Dispatcher) Call(ctx context.Context, req Request, emit Emit) (result any, rpcErr *Error) {
	defer func() {
		if p := recover(); p != nil {
			d.log().ErrorContext(ctx, "a handler panicked", "method", req.Method, "panic", p, "stack", string(debug.Stack()))
			result, rpcErr = nil, InternalError()
		}
	}()
	result, err := d.Handler.Handle(ctx, req, emit)
	if err == nil {
		return result, nil
	}
	if errors.As(err, &rpcErr) {
		return nil, rpcErr
	}
	if ctx.Err() == nil { // otherwise the peer has disconnected
		d.log().ErrorContext(ctx, "a request failed", "method", req.Method, "error", err)
	}
	return nil, InternalError()
}

func (d *Dispatcher) log() *slog.Logger {
	if d.Log != nil {
		return d.Log
	}
	return slog.Default()
}

// AppendResult appends a response with a result to dst. If the result cannot be encoded, it returns dst unchanged.
func AppendResult(dst []byte, id ID, result any) ([]byte, error) {
	start := len(dst)
	dst = append(dst, `{"jsonrpc":"2.0","result":`...)
	dst, err := rawjson.Append(dst, result)
	if err != nil {
		return dst[:start], err
	}
	return appendID(dst, id), nil
}

// AppendError appends a response with an error to dst.
func AppendError(dst []byte, id ID, e *Error) []byte {
	start := len(dst)
	dst = append(dst, `{"jsonrpc":"2.0","error":`...)
	dst, err := rawjson.Append(dst, e)
	if err != nil { // only invalid data of another server
		return AppendError(dst[:start], id, InternalError())
	}
	return appendID(dst, id)
}

// AppendNotification appends a notification to dst. If it cannot be encoded, it returns dst unchanged.
func AppendNotification(dst []byte, method string, params any) ([]byte, error) {
	start := len(dst)
	dst = append(dst, `{"jsonrpc":"2.0","method":`...)
	dst, err := rawjson.Append(dst, method)
	if err != nil {
		return dst[:start], err
	}
	dst = append(dst, `,"params":`...)
	if dst, err = rawjson.Append(dst, params); err != nil {
		return dst[:start], err
	}
	return append(dst, '}'), nil
}

func appendID(dst []byte, id ID) []byte {
	if id.IsZero() {
		id = NullID
	}
	dst = append(dst, `,"id":`...)
	dst = append(dst, id.raw...)
	return append(dst, '}')
}
