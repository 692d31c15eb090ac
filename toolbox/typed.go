package toolbox

import (
	"context"
	"encoding/json"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// AddFunc offers a Go function as a tool. Its schemas are drawn from In and Out as
// the MCP SDK does it: fields without omitempty are required, a jsonschema tag
// describes a field. The result stands as structured content and as text.
func AddFunc[In, Out any](p *Provider, name, description string, f func(ctx context.Context, c *Call, in In) (Out, error)) error {
	input, err := jsonschema.For[In](nil)
	if err != nil {
		return failed(CodeInvalid, name, p.id, err, "no schema can be drawn from the arguments")
	}
	output, err := jsonschema.For[Out](nil)
	if err != nil {
		return failed(CodeInvalid, name, p.id, err, "no schema can be drawn from the result")
	}
	t := &mcp.Tool{Name: name, Description: description, InputSchema: input, OutputSchema: output}
	return p.AddTool(t, func(ctx context.Context, c *Call) (*mcp.CallToolResult, error) {
		var in In
		if err := json.Unmarshal(c.Arguments, &in); err != nil {
			return nil, failed(CodeArguments, c.Tool, p.id, err, "the arguments cannot be read")
		}
		out, err := f(ctx, c, in)
		if err != nil {
			return nil, err
		}
		data, err := json.Marshal(out)
		if err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(data)}}, StructuredContent: json.RawMessage(data)}, nil
	})
}
