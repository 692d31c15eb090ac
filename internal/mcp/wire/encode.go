package wire

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Encode is [jsonrpc.EncodeMessage], always on one line. Parameters and results must be JSON, as those of the SDK and of Decode are: they
// are copied as they are.
func Encode(m jsonrpc.Message) ([]byte, error) {
	if line := plain(m); line != nil {
		return line, nil
	}
	return jsonrpc.EncodeMessage(m)
}

// plain encodes a request, a notification or a response with a result; nil where a text of it may need escapes.
func plain(m jsonrpc.Message) []byte {
	switch m := m.(type) {
	case *jsonrpc.Request:
		if m.Method == "" || !isPlain(m.Method) {
			return nil
		}
		return message(m.ID, []byte(`,"method":"`+m.Method+`"`), `,"params":`, m.Params)
	case *jsonrpc.Response:
		if m.Error == nil && len(m.Result) > 0 {
			return message(m.ID, nil, `,"result":`, m.Result)
		}
	}
	return nil
}

// message returns the line of a message: its id, what is before its body, and its body, if there is one.
func message(id jsonrpc.ID, before []byte, name string, body json.RawMessage) []byte {
	if bytes.ContainsAny(body, "\n\r") {
		var line bytes.Buffer
		if json.Compact(&line, body) != nil {
			return nil
		}
		body = line.Bytes()
	}
	line := slices.Grow([]byte(`{"jsonrpc":"2.0"`), 64+len(before)+len(body))
	switch id := id.Raw().(type) {
	case nil:
	case int64:
		line = strconv.AppendInt(append(line, `,"id":`...), id, 10)
	case string:
		if !isPlain(id) {
			return nil
		}
		line = append(append(append(line, `,"id":"`...), id...), '"')
	default:
		return nil
	}
	line = append(line, before...)
	if len(body) > 0 {
		line = append(append(line, name...), body...)
	}
	return append(line, '}')
}

// isPlain reports whether a text is the same in JSON.
func isPlain(text string) bool {
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
