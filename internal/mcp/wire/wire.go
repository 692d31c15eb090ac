// Package wire decodes the messages of MCP that are most of them, calls and their answers, without the SDK's decoder, which
// allocates 32 KiB for each message, and as much again for its method.
package wire

import (
	"bytes"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

const (
	maxNesting = 1000    // as in the SDK
	maxID      = 1 << 53 // numbers that Plain does not leave to the SDK
)

// Decode is [jsonrpc.DecodeMessage]. The message shares no memory with data.
func Decode(data []byte) (jsonrpc.Message, error) {
	if m := Plain(data); m != nil {
		return m, nil
	}
	return jsonrpc.DecodeMessage(data)
}

// Plain decodes a request, a notification or a response with a result: one that has no other members and none twice, a
// method without escapes, and as its id a whole number of at most 53 bits without a sign, or a string without escapes. It
// returns nil for any other text.
func Plain(data []byte) jsonrpc.Message {
	if rawjson.Check(data, maxNesting) != nil {
		return nil
	}
	var version, id, method, params, result []byte
	for name, value := range rawjson.Members(data) {
		var to *[]byte
		switch name {
		case "jsonrpc":
			to = &version
		case "id":
			to = &id
		case "method":
			to = &method
		case "params":
			to = &params
		case "result":
			to = &result
		}
		if to == nil || *to != nil {
			return nil
		}
		*to = value
	}
	if string(version) != `"2.0"` {
		return nil
	}
	key, known := plainID(id)
	switch {
	case id != nil && !known:
		return nil
	case method == nil && params == nil && result != nil && id != nil:
		return &jsonrpc.Response{ID: key, Result: bytes.Clone(result)}
	case result == nil:
		if name, ok := plainString(method); ok {
			return &jsonrpc.Request{ID: key, Method: name, Params: bytes.Clone(params)}
		}
	}
	return nil
}

// plainID returns the id that text is.
func plainID(text []byte) (id jsonrpc.ID, ok bool) {
	var value any
	if s, isString := plainString(text); isString {
		value = s
	} else {
		n, err := strconv.ParseUint(string(text), 10, 64)
		if err != nil || n > maxID {
			return id, false
		}
		value = float64(n)
	}
	id, err := jsonrpc.MakeID(value)
	return id, err == nil
}

// plainString returns the string that text is, if it has no escapes.
func plainString(text []byte) (s string, ok bool) {
	if len(text) < 2 || text[0] != '"' || bytes.IndexByte(text, '\\') >= 0 {
		return "", false
	}
	return string(text[1 : len(text)-1]), true
}
