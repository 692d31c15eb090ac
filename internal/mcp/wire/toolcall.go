package wire

import (
	"encoding/json"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// ToolCall is a call of a tool whose parts are those of its text.
type ToolCall struct {
	Name      string
	Arguments json.RawMessage // an object; nil for none
	Meta      map[string]json.RawMessage
}

// ReadToolCall reads the parameters of a call of a tool. It reports false for what only the SDK understands: further members, repeated
// ones, other types, or a name with escapes.
func ReadToolCall(params json.RawMessage) (c ToolCall, ok bool) {
	if rawjson.Check(params, maxNesting) != nil {
		return c, false
	}
	var name, meta json.RawMessage
	if !members(params, map[string]*json.RawMessage{"name": &name, "arguments": &c.Arguments, "_meta": &meta}) {
		return c, false
	}
	if c.Name, ok = plainString(name); !ok || c.Arguments != nil && rawjson.KindOf(c.Arguments) != rawjson.Object {
		return c, false
	}
	if meta == nil {
		return c, true
	}
	if rawjson.KindOf(meta) != rawjson.Object {
		return c, false
	}
	c.Meta = map[string]json.RawMessage{}
	for key, value := range rawjson.Members(meta) {
		if c.Meta[key] != nil {
			return c, false
		}
		c.Meta[key] = value
	}
	return c, true
}

// Text returns a text of the call's _meta, "" if it has none under that key.
func (c ToolCall) Text(key string) string { return rawjson.Text(c.Meta[key]) }

// ToolResult is the result of a call of a tool whose parts are those of its text.
type ToolResult struct {
	Texts      []json.RawMessage          // strings
	Structured json.RawMessage            // nil for none
	Meta       map[string]json.RawMessage // nil for none
}

// ReadToolResult reads a result that is no failure and has nothing but texts and structured content. It reports false for any other.
func ReadToolResult(result json.RawMessage) (r ToolResult, ok bool) {
	if rawjson.Check(result, maxNesting) != nil {
		return r, false
	}
	var content, meta, failed, kind json.RawMessage
	if !members(result, map[string]*json.RawMessage{
		"content": &content, "structuredContent": &r.Structured, "_meta": &meta, "isError": &failed, "resultType": &kind,
	}) {
		return r, false
	}
	if rawjson.KindOf(content) != rawjson.Array || failed != nil && string(failed) != "false" || kind != nil && string(kind) != `"complete"` ||
		rawjson.KindOf(r.Structured) == rawjson.Null {
		return r, false
	}
	for _, block := range rawjson.Elements(content) {
		var kind, text json.RawMessage
		if !members(block, map[string]*json.RawMessage{"type": &kind, "text": &text}) || string(kind) != `"text"` || rawjson.KindOf(text) != rawjson.String {
			return r, false
		}
		r.Texts = append(r.Texts, text)
	}
	if meta == nil {
		return r, true
	}
	r.Meta = map[string]json.RawMessage{}
	for key, value := range rawjson.Members(meta) {
		r.Meta[key] = value
	}
	return r, rawjson.KindOf(meta) == rawjson.Object
}

// members sets the members of a checked object by name. It reports false for another value, an unknown member or a repeated one.
func members(object json.RawMessage, to map[string]*json.RawMessage) bool {
	if rawjson.KindOf(object) != rawjson.Object {
		return false
	}
	for name, value := range rawjson.Members(object) {
		if to[name] == nil || *to[name] != nil {
			return false
		}
		*to[name] = value
	}
	return true
}
