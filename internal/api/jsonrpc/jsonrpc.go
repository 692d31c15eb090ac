// Package jsonrpc is JSON-RPC 2.0 to the letter, for any transport: it decodes
// requests, notifications and batches, calls a [Handler], and encodes the
// answers. It knows nothing of sockets, HTTP or the hub.
//
// Where the specification leaves room, the package decides:
//
//   - Member names match by case. A request that has jsonrpc, method, params or
//     id twice is refused; members that the specification does not know are
//     ignored.
//   - An id is a string, a number or null and is echoed byte for byte, so big
//     and fractional numbers stay what they were. It may have 1 KiB.
//   - "params": null means no parameters.
//   - The order of a batch's answers is that of its requests.
//   - Text that is not UTF-8 or nests too deep is a parse error.
package jsonrpc

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// Version is the value of every message's member jsonrpc.
const Version = "2.0"

// The error codes that JSON-RPC 2.0 defines, and CodeServerBusy from the range
// that it leaves to servers.
const (
	CodeParseError     = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternalError  = -32603
	CodeServerBusy     = -32000
)

// Limits bound what is taken from a peer. Zero means the default in the comment.
type Limits struct {
	Depth int // nested arrays and objects: 64
	Batch int // requests in a batch: 100
	ID    int // bytes of an id: 1024
}

func (l Limits) withDefaults() Limits {
	if l.Depth <= 0 {
		l.Depth = 64
	}
	if l.Batch <= 0 {
		l.Batch = 100
	}
	if l.ID <= 0 {
		l.ID = 1024
	}
	return l
}

// ID is the id of a request as it was written. The zero ID is that of a
// notification, which has none.
type ID struct{ raw string }

// NullID is the id null: that of an answer to a request whose id is unknown.
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

// IsZero tells whether there is no id.
func (id ID) IsZero() bool { return id.raw == "" }

// String returns the id as JSON, "" for none.
func (id ID) String() string { return id.raw }

// MarshalJSON returns the id as it was received; no id is null.
func (id ID) MarshalJSON() ([]byte, error) {
	if id.IsZero() {
		return []byte("null"), nil
	}
	return []byte(id.raw), nil
}

// UnmarshalJSON takes a string, a number or null.
func (id *ID) UnmarshalJSON(data []byte) error {
	switch rawjson.KindOf(data) {
	case rawjson.String, rawjson.Number, rawjson.Null:
		id.raw = string(data)
		return nil
	default:
		return errors.New("an id is a string, a number or null")
	}
}

// Request is a call, or a notification where ID is zero.
type Request struct {
	ID     ID
	Method string
	Params json.RawMessage // an object or array that passed rawjson.Check; nil if there was none
}

// IsNotification tells whether nobody waits for an answer.
func (r Request) IsNotification() bool { return r.ID.IsZero() }

// MarshalJSON writes the request as it goes over the wire.
func (r Request) MarshalJSON() ([]byte, error) {
	wire := struct {
		JSONRPC string          `json:"jsonrpc"`
		Method  string          `json:"method"`
		Params  json.RawMessage `json:"params,omitempty"`
		ID      ID              `json:"id,omitzero"`
	}{Version, r.Method, r.Params, r.ID}
	return rawjson.Append(nil, wire)
}

// Response is an answer as a client reads it. Exactly one of Result and Error
// is there.
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

// Details is what this project puts into Error.Data.
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

// Details returns what Data says, as far as it can be read.
func (e *Error) Details() Details {
	var d Details
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return Details{} // another server's data
	}
	return d
}

// ParseError says that the text is no JSON.
func ParseError(reason string) *Error {
	return NewError(CodeParseError, "Parse error: "+reason, Details{Code: "PARSE_ERROR"})
}

// InvalidRequest says that the JSON is no request object.
func InvalidRequest(reason string) *Error {
	return NewError(CodeInvalidRequest, "Invalid Request: "+reason, Details{Code: "INVALID_REQUEST"})
}

// MethodNotFound says that there is no such method.
func MethodNotFound(method string) *Error {
	return NewError(CodeMethodNotFound, fmt.Sprintf("Method not found: %.100q", method), Details{Code: "METHOD_NOT_FOUND"})
}

// InvalidParams says that a parameter is wrong; field names it, "" means all.
func InvalidParams(field, reason string) *Error {
	where := field
	if where == "" {
		where = "params"
	}
	return NewError(CodeInvalidParams, "Invalid params: "+where+" "+reason, Details{Code: "INVALID_PARAMS", Field: field})
}

// InternalError says nothing but that the fault is the server's; the cause is
// for its log.
func InternalError() *Error {
	return NewError(CodeInternalError, "Internal error", Details{Code: "INTERNAL_ERROR"})
}
