package mounts

import (
	"bytes"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

const (
	maxNesting = 1000    // as in the SDK
	maxOwnID   = 1 << 53 // ids that decode does not leave to the SDK
)

// decode is [jsonrpc.DecodeMessage], which allocates 32 KiB for each message: the answers to calls, which are most of
// them, are decoded without it.
func decode(line []byte) (jsonrpc.Message, error) {
	if r := answer(line); r != nil {
		return r, nil
	}
	return jsonrpc.DecodeMessage(line)
}

// answer decodes a response with a result, a numeric id, and no other members; it returns nil for any other line.
func answer(line []byte) *jsonrpc.Response {
	if rawjson.Check(line, maxNesting) != nil {
		return nil
	}
	var version, id, result []byte
	for name, value := range rawjson.Members(line) {
		var to *[]byte
		switch name {
		case "jsonrpc":
			to = &version
		case "id":
			to = &id
		case "result":
			to = &result
		}
		if to == nil || *to != nil {
			return nil
		}
		*to = value
	}
	n, err := strconv.ParseUint(string(id), 10, 64)
	if err != nil || n > maxOwnID || string(version) != `"2.0"` || result == nil {
		return nil
	}
	key, err := jsonrpc.MakeID(float64(n))
	if err != nil {
		return nil
	}
	return &jsonrpc.Response{ID: key, Result: bytes.Clone(result)}
}
