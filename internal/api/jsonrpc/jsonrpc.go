// Package jsonrpc implements JSON-RPC 2.0 for any transport: it decodes requests,
// notifications and batches, calls a [Handler], and encodes the answers.
//
// Where the specification leaves a choice:
//
//   - Member names match by case. Duplicates of jsonrpc, method, params and id are
//     errors; unknown members are ignored.
//   - An id is a string, a number or null of at most 1 KiB, and is returned byte
//     for byte, so that large and fractional numbers stay exact.
//   - "params": null means no parameters.
//   - A batch's answers are in the order of its requests.
//   - Text that is not UTF-8 or nests too deeply is a parse error.
package jsonrpc

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// Version is the value of every message's member jsonrpc.
const Version = "2.0"

// The error codes of JSON-RPC 2.0, and CodeServerBusy from its range for servers.
const (
	CodeParseError     = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternalError  = -32603
	CodeServerBusy     = -32000
)

// Limits bound received messages. Zero means the default in the comment.
type Limits struct {
	Depth int // nested arrays and objects: 64
	Batch int // requests in a batch: 100
	ID    int // bytes of an id: 1024
}

func (l Limits) withDefaults() Limits {
	return Limits{Depth: cmp.Or(max(l.Depth, 0), 64), Batch: cmp.Or(max(l.Batch, 0), 100), ID: cmp.Or(max(l.ID, 0), 1024)}
}

// ID is the id of a request in its original notation. The zero ID means none, as in a notification.
type ID struct{ raw string }

// NullID is the id null, for answers to requests with an unknown id.
var NullID = ID{"null"}

// StringID returns the id with the text s.
func StringID(s string) ID {
	raw, err := rawjson.Append(nil, s)
	if err != nil {
		return NullID // a string always encodes
	}
	return ID{string(raw)}
}

// NumberID returns the id n.
func NumberID(n int64) ID { return ID{fmt.Sprint(n)} }

// IsZero reports whether there is no id.
func (id ID) IsZero() bool { return id.raw == "" }

// String returns the id as JSON, "" for none.
func (id ID) String() string { return id.raw }

// MarshalJSON returns the original notation; the zero ID is null.
func (id ID) MarshalJSON() ([]byte, error) {
	if id.IsZero() {
		return []byte("null"), nil
	}
	return []byte(id.raw), nil
}

// UnmarshalJSON accepts a string, a number or null.
func (id *ID) UnmarshalJSON(data []byte) error {
	switch rawjson.KindOf(data) {
	case rawjson.String, rawjson.Number, rawjson.Null:
		id.raw = string(data)
		return nil
	default:
		return errors.New("an id is a string, a number or null")
	}
}

// Request is a request, or a notification if ID is zero.
type Request struct {
	ID     ID
	Method string
	Params json.RawMessage // an object or array that passed rawjson.Check; nil for none
}

// IsNotification reports whether the request has no id, so it gets no answer.
func (r Request) IsNotification() bool { return r.ID.IsZero() }

// MarshalJSON returns the request in its wire format.
func (r Request) MarshalJSON() ([]byte, error) {
	wire := struct {
		JSONRPC string          `json:"jsonrpc"`
		Method  string          `json:"method"`
		Params  json.RawMessage `json:"params,omitempty"`
		ID      ID              `json:"id,omitzero"`
	}{Version, r.Method, r.Params, r.ID}
	return rawjson.Append(nil, wire)
}

// Response is an answer as a client reads it. Exactly one of Result and Error is set.
type Response struct {
	JSONRPC string          `json:"jsonrpc"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
	ID      ID              `json:"id"`
}

// Error is the error object of an answer.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Details is the content of Error.Data in this project.
type Details struct {
	Code   string `json:"code"`             // the code's name, e.g. "TASK_NOT_FOUND"
	Field  string `json:"field,omitempty"`  // the offending parameter, e.g. "message.parts[0].text"
	Remedy string `json:"remedy,omitempty"` // what to do next
}

// NewError returns an error with details.
func NewError(code int, message string, details Details) *Error {
	data, err := rawjson.Append(nil, details)
	if err != nil {
		data = nil // a struct of strings always encodes
	}
	return &Error{Code: code, Message: message, Data: data}
}

// Error returns the message and the code.
func (e *Error) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// Details decodes Data; the zero Details if it has another format.
func (e *Error) Details() Details {
	var d Details
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return Details{} // another server's data
	}
	return d
}

// ParseError returns the error of text that is not JSON.
func ParseError(reason string) *Error {
	return NewError(CodeParseError, "Parse error: "+reason, Details{Code: "PARSE_ERROR"})
}

// InvalidRequest returns the error of JSON that is not a request.
func InvalidRequest(reason string) *Error {
	return NewError(CodeInvalidRequest, "Invalid Request: "+reason, Details{Code: "INVALID_REQUEST"})
}

// MethodNotFound returns the error of an unknown method.
func MethodNotFound(method string) *Error {
	return NewError(CodeMethodNotFound, fmt.Sprintf("Method not found: %.100q", method), Details{Code: "METHOD_NOT_FOUND"})
}

// InvalidParams returns the error of a wrong parameter; field "" means all of them.
func InvalidParams(field, reason string) *Error {
	return NewError(CodeInvalidParams, "Invalid params: "+cmp.Or(field, "params")+" "+reason, Details{Code: "INVALID_PARAMS", Field: field})
}

// InternalError returns the error of a failure of the server, without its cause.
func InternalError() *Error {
	return NewError(CodeInternalError, "Internal error", Details{Code: "INTERNAL_ERROR"})
}
