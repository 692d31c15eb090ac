package jsonrpc

import (
	"encoding/json"
	"fmt"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// Call is an element of a message: a request, or its error. With an error, Request.ID is
// the request's id, or null if it could not be read.
type Call struct {
	Request Request
	Err     *Error
}

// Message is a decoded message: a call or a batch.
type Message struct {
	Calls []Call
	Batch bool // the answer is an array
}

// Decode decodes a request, a notification or a batch. The requests refer to data, which must not change while they
// are in use. An invalid message, an empty batch or one above the limit becomes one call with the error.
func Decode(data []byte, limits Limits) Message {
	limits = limits.withDefaults()
	if err := rawjson.Check(data, limits.Depth); err != nil {
		return refused(ParseError(err.Error()))
	}
	if rawjson.KindOf(data) != rawjson.Array {
		return Message{Calls: []Call{decodeCall(data, limits)}}
	}
	var calls []Call
	for i, raw := range rawjson.Elements(data) {
		if i == limits.Batch {
			return refused(InvalidRequest(fmt.Sprintf("a batch has at most %d requests", limits.Batch)))
		}
		calls = append(calls, decodeCall(raw, limits))
	}
	if len(calls) == 0 {
		return refused(InvalidRequest("a batch has at least one request"))
	}
	return Message{Calls: calls, Batch: true}
}

// IDOf returns the id of a request that is refused for another reason than its content; null for a batch, and for
// anything that is no request.
func IDOf(data []byte, limits Limits) ID {
	if rawjson.KindOf(data) != rawjson.Object {
		return NullID
	}
	if id := Decode(data, limits).Calls[0].Request.ID; !id.IsZero() {
		return id
	}
	return NullID
}

// refused returns a message with one error for the id null.
func refused(err *Error) Message {
	return Message{Calls: []Call{{Request: Request{ID: NullID}, Err: err}}}
}

func decodeCall(raw json.RawMessage, limits Limits) Call {
	if rawjson.KindOf(raw) != rawjson.Object {
		return Call{Request: Request{ID: NullID}, Err: InvalidRequest("a request is an object")}
	}
	var version, method, params, id json.RawMessage
	var duplicate string
	for name, value := range rawjson.Members(raw) {
		var member *json.RawMessage
		switch name {
		case "jsonrpc":
			member = &version
		case "method":
			member = &method
		case "params":
			member = &params
		case "id":
			member = &id
		default:
			continue
		}
		if *member != nil {
			duplicate = name
		}
		*member = value
	}

	call := Call{Request: Request{Method: rawjson.Text(method), Params: params}}
	call.Request.ID, call.Err = decodeID(id, limits)
	switch {
	case duplicate == "id":
		call.Request.ID, call.Err = NullID, InvalidRequest("id is a duplicate")
	case call.Err != nil:
	case duplicate != "":
		call.Err = InvalidRequest(duplicate + " is a duplicate")
	case rawjson.KindOf(version) != rawjson.String || rawjson.Text(version) != Version:
		call.Err = InvalidRequest(`jsonrpc must be "2.0"`)
	case rawjson.KindOf(method) != rawjson.String:
		call.Err = InvalidRequest("method must be a string")
	default:
		call.Request.Params, call.Err = decodeParams(params)
	}
	if call.Err != nil && call.Request.ID.IsZero() {
		call.Request.ID = NullID // an invalid notification is answered
	}
	return call
}

func decodeID(raw json.RawMessage, limits Limits) (ID, *Error) {
	switch rawjson.KindOf(raw) {
	case rawjson.Missing:
		return ID{}, nil
	case rawjson.String, rawjson.Number, rawjson.Null:
		if len(raw) > limits.ID {
			return NullID, InvalidRequest(fmt.Sprintf("an id has at most %d bytes", limits.ID))
		}
		return ID{string(raw)}, nil
	default:
		return NullID, InvalidRequest("id must be a string, a number or null")
	}
}

func decodeParams(raw json.RawMessage) (json.RawMessage, *Error) {
	switch rawjson.KindOf(raw) {
	case rawjson.Missing, rawjson.Null:
		return nil, nil
	case rawjson.Object, rawjson.Array:
		return raw, nil
	default:
		return nil, InvalidRequest("params must be an object or an array")
	}
}
