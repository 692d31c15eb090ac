package a2a

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// decodeParams decodes a method's parameters. Its errors are invalid parameters
// (-32602) and name the field where possible.
func decodeParams[P any](raw json.RawMessage) (*P, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		raw = []byte("{}")
	}
	if raw[0] != '{' {
		return nil, invalid("params", "must be an object")
	}
	p := new(P)
	err := json.Unmarshal(camelKeys(raw), p)
	if err == nil {
		return p, nil
	}
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) && te.Field != "" {
		return nil, invalid(te.Field, "must not be a "+te.Value)
	}
	return nil, fault(a2a.ErrInvalidParams, fmt.Sprintf("params: %v", err))
}

// structural are the members, by camelCase name, whose own members are the protocol's. Those of other members
// (metadata, data, params of extensions) are the user's and are not renamed.
var structural = map[string]bool{
	"message": true, "parts": true, "content": true, "file": true, "configuration": true, "config": true,
	"pushNotificationConfig": true, "taskPushNotificationConfig": true, "authentication": true,
}

// camelKeys renames the protocol's members from snake_case, the names in its .proto file, which its JSON form must
// accept too. The camelCase member wins over a snake_case one.
func camelKeys(raw json.RawMessage) json.RawMessage {
	if !hasSnake(raw) {
		return raw
	}
	switch raw = bytes.TrimSpace(raw); {
	case len(raw) == 0:
		return raw
	case raw[0] == '[':
		return camelArray(raw)
	case raw[0] == '{':
		return camelObject(raw)
	}
	return raw
}

func camelArray(raw json.RawMessage) json.RawMessage {
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return raw // not JSON: the decoder reports it
	}
	for i := range items {
		items[i] = camelKeys(items[i])
	}
	return remarshal(items, raw)
}

func camelObject(raw json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return raw // not JSON: the decoder reports it
	}
	renamed := make(map[string]json.RawMessage, len(members))
	for name, value := range members {
		camel := camelCase(name)
		if structural[camel] {
			value = camelKeys(value)
		}
		if _, both := members[camel]; both && camel != name {
			continue
		}
		renamed[camel] = value
	}
	return remarshal(renamed, raw)
}

func remarshal(v any, fallback json.RawMessage) json.RawMessage {
	out, err := json.Marshal(v)
	if err != nil {
		return fallback // impossible: v is valid JSON
	}
	return out
}

// hasSnake reports whether there may be a snake_case name. Most requests have none and are decoded only once.
func hasSnake(raw []byte) bool {
	for i := 1; i+1 < len(raw); i++ {
		if raw[i] == '_' && lower(raw[i-1]) && lower(raw[i+1]) {
			return true
		}
	}
	return false
}

func lower(c byte) bool { return 'a' <= c && c <= 'z' }

// camelCase converts history_length to historyLength.
func camelCase(name string) string {
	if !strings.Contains(name, "_") {
		return name
	}
	var b strings.Builder
	up := false
	for i := range len(name) {
		switch c := name[i]; {
		case c == '_' && i > 0:
			up = true
		case up && lower(c):
			b.WriteByte(c - 'a' + 'A')
			up = false
		default:
			b.WriteByte(c)
			up = false
		}
	}
	return b.String()
}
