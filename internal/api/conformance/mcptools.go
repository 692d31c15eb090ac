package conformance

//lint:file-ignore SA1019 logging and sampling are tested too

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/wait"
)

// handler answers a call of a tool.
type handler = func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error)

// tool is a tool without arguments.
type tool struct {
	name, description string
	call              handler
}

func addTools(server *mcp.Server, tools ...tool) {
	for _, t := range tools {
		addTool(server, &mcp.Tool{Name: t.name, Description: t.description},
			func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, error) {
				return t.call(ctx, req)
			})
	}
}

// addTool adds a tool that returns content without structured output.
func addTool[In any](server *mcp.Server, tool *mcp.Tool, call func(context.Context, *mcp.CallToolRequest, In) (*mcp.CallToolResult, error)) {
	mcp.AddTool(server, tool, func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
		result, err := call(ctx, req, in)
		return result, nil, err
	})
}

func answer(content ...mcp.Content) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: content}
}

func answerf(format string, args ...any) *mcp.CallToolResult {
	return answer(text(fmt.Sprintf(format, args...)))
}

// shows returns the handler with a constant result.
func shows(content ...mcp.Content) handler {
	return func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return answer(content...), nil
	}
}

// addContentTools adds the tools with constant results.
func addContentTools(server *mcp.Server) {
	addTools(server,
		tool{"test_simple_text", "Answers with a text.", shows(text("This is a simple text response for testing."))},
		tool{"test_image_content", "Answers with a picture.", shows(picture())},
		tool{"test_audio_content", "Answers with a sound.", shows(sound())},
		tool{"test_embedded_resource", "Answers with a resource.",
			shows(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))},
		tool{"test_multiple_content_types", "Answers with a text, a picture and a resource.",
			shows(text("Multiple content types test:"), picture(),
				embedded("test://mixed-content-resource", "application/json", `{"test":"data","value":123}`))},
		// It sends no requests to the client.
		tool{"test_streaming_elicitation", "Answers on a stream without requests.", shows(text("nothing was asked"))},
		tool{"test_error_handling", "Fails.", fail},
	)
}

func fail(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	result := answer(text("This tool intentionally returns an error for testing"))
	result.IsError = true
	return result, nil
}

// addClientTools adds the tools that send notifications or requests to the client while
// they run, as in the revisions with sessions.
func addClientTools(server *mcp.Server) {
	plain := []string{"option1", "option2", "option3"}
	titled := []object{
		{"const": "value1", "title": "First Option"},
		{"const": "value2", "title": "Second Option"},
		{"const": "value3", "title": "Third Option"},
	}
	addTools(server,
		tool{"test_tool_with_logging", "Logs three lines.", logThrice},
		tool{"test_logging_tool", "Logs one line.", logOnce},
		tool{"test_tool_with_progress", "Reports its progress three times.", progressThrice},
		tool{"test_elicitation_sep1034_defaults", "Asks the user with defaults of every type.", elicits("Are these right?", object{
			"name":     object{"type": "string", "default": "John Doe"},
			"age":      object{"type": "integer", "default": 30},
			"score":    object{"type": "number", "default": 95.5},
			"status":   object{"type": "string", "enum": []string{"active", "inactive", "pending"}, "default": "active"},
			"verified": object{"type": "boolean", "default": true},
		})},
		tool{"test_elicitation_sep1330_enums", "Asks the user to choose, with every kind of enum.", elicits("What do you choose?", object{
			"untitledSingle": object{"type": "string", "enum": plain},
			"titledSingle":   object{"type": "string", "oneOf": titled},
			"legacyEnum": object{
				"type": "string", "enum": []string{"opt1", "opt2", "opt3"}, "enumNames": []string{"Option One", "Option Two", "Option Three"},
			},
			"untitledMulti": object{"type": "array", "items": object{"type": "string", "enum": plain}},
			"titledMulti":   object{"type": "array", "items": object{"anyOf": titled}},
		})},
	)
	addTool(server, &mcp.Tool{Name: "test_sampling", Description: "Asks the client's model."}, sample)
	type in struct {
		Message string `json:"message" jsonschema:"what to tell the user"`
	}
	addTool(server, &mcp.Tool{Name: "test_elicitation", Description: "Asks the user for a name and an address."},
		func(ctx context.Context, req *mcp.CallToolRequest, in in) (*mcp.CallToolResult, error) {
			return elicits(in.Message, object{
				"username": object{"type": "string", "description": "User's response"},
				"email":    object{"type": "string", "description": "User's email address"},
			}, "username", "email")(ctx, req)
		})
}

// object is a JSON object.
type object = map[string]any

// form is the schema of a request to the user.
func form(properties object, required ...string) object {
	schema := object{"type": "object", "properties": properties}
	if required != nil {
		schema["required"] = required
	}
	return schema
}

// step is the duration of a step of the tools that report progress in three steps.
const step = 50 * time.Millisecond

func pause(ctx context.Context) error {
	wait.Pause(ctx, step)
	return ctx.Err()
}

func info(ctx context.Context, req *mcp.CallToolRequest, line string) error {
	return req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: line})
}

func logOnce(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return answer(text("logged")), info(ctx, req, "test_logging_tool was called")
}

func logThrice(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	for _, line := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
		if err := errors.Join(info(ctx, req, line), pause(ctx)); err != nil {
			return nil, err
		}
	}
	return answer(text("three lines were logged")), nil
}

func progressThrice(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	token := req.Params.GetProgressToken()
	for _, done := range []float64{0, 50, 100} {
		if token != nil {
			err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: done, Total: 100})
			if err != nil {
				return nil, fmt.Errorf("report the progress: %w", err)
			}
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
	return answerf("progress was told for %v", token), nil
}

type prompt struct {
	Prompt string `json:"prompt" jsonschema:"what to ask the model"`
}

func sample(ctx context.Context, req *mcp.CallToolRequest, in prompt) (*mcp.CallToolResult, error) {
	result, err := req.Session.CreateMessage(ctx, question(in.Prompt, 100))
	if err != nil {
		return nil, fmt.Errorf("ask the client's model: %w", err)
	}
	said, ok := result.Content.(*mcp.TextContent)
	if !ok {
		return nil, fmt.Errorf("the client's model answered with %T", result.Content)
	}
	return answerf("LLM response: %s", said.Text), nil
}

// question returns a request to the client's model.
func question(s string, maxTokens int64) *mcp.CreateMessageParams {
	return &mcp.CreateMessageParams{Messages: []*mcp.SamplingMessage{{Role: "user", Content: text(s)}}, MaxTokens: maxTokens}
}

// elicits returns the handler that asks the user.
func elicits(message string, properties object, required ...string) handler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		result, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: message, RequestedSchema: form(properties, required...)})
		if err != nil {
			return nil, fmt.Errorf("ask the user: %w", err)
		}
		content, err := json.Marshal(result.Content)
		if err != nil {
			return nil, fmt.Errorf("encode the user's answer: %w", err)
		}
		return answerf("User response: action=%s, content=%s", result.Action, content), nil
	}
}

// richSchema has the keywords of JSON Schema 2020-12 that clients used to drop.
const richSchema = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema",
	"type": "object",
	"$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
	"properties": {
		"name": {"type": "string"},
		"address": {"$ref": "#/$defs/address"},
		"contactMethod": {"type": "string", "enum": ["phone", "email"]},
		"phone": {"type": "string"},
		"email": {"type": "string"}
	},
	"allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
	"if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
	"then": {"required": ["phone"]},
	"else": {"required": ["email"]},
	"additionalProperties": false
}`

// headerSchema has an argument that clients also send in an HTTP header.
const headerSchema = `{
	"type": "object",
	"properties": {
		"region": {"type": "string", "description": "repeated in Mcp-Param-Region", "x-mcp-header": "Region"},
		"level": {"type": "integer", "description": "not repeated"}
	}
}`

// addProtocolTools adds the tools for the tests of schemas, headers, capabilities, changed lists and broken streams.
func addProtocolTools(server *mcp.Server) {
	repeat := func(_ context.Context, _ *mcp.CallToolRequest, in object) (*mcp.CallToolResult, error) {
		return answerf("called with %v", in), nil
	}
	addTool(server, &mcp.Tool{
		Name: "json_schema_2020_12_tool", Description: "Repeats its arguments.", InputSchema: json.RawMessage(richSchema),
	}, repeat)
	addTool(server, &mcp.Tool{
		Name: "test_x_mcp_header", Description: "Repeats its arguments; one is also in a header.", InputSchema: json.RawMessage(headerSchema),
	}, repeat)
	const name, description = "test_transient", "Exists for a moment."
	addTools(server,
		tool{"test_missing_capability", "Needs a client that offers a model.", needSampling},
		tool{"test_reconnection", "Breaks the stream, and answers on the next one.", reconnect},
		tool{"test_trigger_tool_change", "Changes the list of tools for a moment.",
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				addTools(server, tool{name + "_tool", description, shows()})
				server.RemoveTools(name + "_tool")
				return answer(text("the list of tools has changed")), nil
			}},
		tool{"test_trigger_prompt_change", "Changes the list of prompts for a moment.",
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				addPrompt(server, name+"_prompt", description, nil, func(map[string]string) []mcp.Content { return nil })
				server.RemovePrompts(name + "_prompt")
				return answer(text("the list of prompts has changed")), nil
			}},
	)
}

func needSampling(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if can := req.ClientCapabilities(); can != nil && can.Sampling != nil {
		return answer(text("the client offers a model")), nil
	}
	data, err := json.Marshal(mcp.MissingRequiredClientCapabilityData{
		RequiredCapabilities: &mcp.ClientCapabilities{Sampling: &mcp.SamplingCapabilities{}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode what is missing: %w", err)
	}
	return nil, &jsonrpc.Error{Code: mcp.CodeMissingRequiredClientCapabilities, Message: "the client must offer a model (sampling)", Data: data}
}

func reconnect(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if req.Extra != nil && req.Extra.CloseSSEStream != nil {
		req.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: step})
	}
	if err := errors.Join(pause(ctx), pause(ctx)); err != nil {
		return nil, err
	}
	return answer(text("the client came back")), nil
}
