package toolbox

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/mcp/wire"
)

// outcome is what a tool has returned: a value, or the text that a mounted server has sent, which is forwarded as it is.
type outcome struct {
	value *mcp.CallToolResult // nil if there is a text
	text  json.RawMessage     // of a result without a failure
	parts wire.ToolResult     // of the text
}

// received returns the outcome that a server has sent.
func received(text json.RawMessage) (outcome, error) {
	if parts, ok := wire.ReadToolResult(text); ok {
		return outcome{text: text, parts: parts}, nil
	}
	value := new(mcp.CallToolResult)
	if err := json.Unmarshal(text, value); err != nil {
		return outcome{}, err
	}
	if value.InputRequests != nil {
		return outcome{}, errAsks
	}
	return outcome{value: value}, nil
}

var errAsks = errors.New("the server asks for input, which a mounted server may not")

// result returns the outcome as a value, whose structured content and _meta are as convert returns them.
func (o outcome) result(convert func([]byte) any) *mcp.CallToolResult {
	if o.text == nil {
		return o.value
	}
	r := &mcp.CallToolResult{Content: make([]mcp.Content, 0, len(o.parts.Texts))}
	for _, text := range o.parts.Texts {
		r.Content = append(r.Content, &mcp.TextContent{Text: rawjson.Text(text)})
	}
	if o.parts.Structured != nil {
		r.StructuredContent = convert(o.parts.Structured)
	}
	if o.parts.Meta != nil {
		r.Meta = mcp.Meta{}
		for key, value := range o.parts.Meta {
			r.Meta[key] = convert(value)
		}
	}
	return r
}

// asText leaves JSON as it is.
func asText(data []byte) any { return json.RawMessage(data) }

// json returns the outcome as JSON.
func (o outcome) json() (json.RawMessage, error) {
	switch {
	case o.text != nil:
		return o.text, nil
	case o.value != nil && o.value.Content == nil:
		listed := *o.value
		listed.Content = []mcp.Content{} // not null
		return json.Marshal(&listed)
	}
	return json.Marshal(o.value)
}

// CallJSON is [Box.Call] for a server that forwards results as text: it returns the JSON of a CallToolResult, for failures as [Box.Serve] answers
// them. It reports false, and does nothing, if the caller may not see a tool of that name.
func (b *Box) CallJSON(ctx context.Context, caller, name string, arguments json.RawMessage, progress func(Progress)) (result json.RawMessage, known bool) {
	if !b.Offers(caller, name) {
		return nil, false
	}
	out, err := b.call(ctx, caller, name, arguments, progress)
	if err == nil {
		if result, err = out.json(); err == nil {
			return result, true
		}
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = failed(CodeResult, name, "", err, "the result of "+name+" is not JSON")
	}
	if result, err = json.Marshal(e.result()); err != nil {
		result, _ = json.Marshal(failed(e.Code, name, e.SourceAgent, nil, e.Message).result()) // texts always marshal
	}
	return result, true
}

// Offers reports whether a caller may see a tool.
func (b *Box) Offers(caller, name string) bool {
	b.mu.RLock()
	o := b.offers[kindTool][name]
	b.mu.RUnlock()
	return o != nil && b.permit(caller, o.base().id) == nil
}
