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

// none is the type of the arguments of tools without arguments.
type none struct{}

// addTool registers a tool that returns content without structured output.
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

// addContentTools adds the tools with constant results.
func addContentTools(server *mcp.Server) {
	for _, t := range []struct {
		name, description string
		content           []mcp.Content
	}{
		{"test_simple_text", "Answers with a text.", []mcp.Content{text("This is a simple text response for testing.")}},
		{"test_image_content", "Answers with a picture.", []mcp.Content{picture()}},
		{"test_audio_content", "Answers with a sound.", []mcp.Content{sound()}},
		{"test_embedded_resource", "Answers with a resource.", []mcp.Content{
			embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."),
		}},
		{"test_multiple_content_types", "Answers with a text, a picture and a resource.", []mcp.Content{
			text("Multiple content types test:"), picture(),
			embedded("test://mixed-content-resource", "application/json", `{"test":"data","value":123}`),
		}},
		// It sends no requests to the client.
		{"test_streaming_elicitation", "Answers on a stream that carries no request.", []mcp.Content{text("nothing was asked")}},
	} {
		addTool(server, &mcp.Tool{Name: t.name, Description: t.description},
			func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, error) {
				return answer(t.content...), nil
			})
	}
	addTool(server, &mcp.Tool{Name: "test_error_handling", Description: "Fails."},
		func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, error) {
			result := answer(text("This tool intentionally returns an error for testing"))
			result.IsError = true
			return result, nil
		})
}

// addClientTools adds the tools that send notifications or requests to the client while
// they run, as in the revisions with sessions.
func addClientTools(server *mcp.Server) {
	addTool(server, &mcp.Tool{Name: "test_tool_with_logging", Description: "Logs three lines."}, logThrice)
	addTool(server, &mcp.Tool{Name: "test_logging_tool", Description: "Logs a line, to who wants the log."},
		func(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
			return answer(text("logged")), info(ctx, req, "test_logging_tool was called")
		})
	addTool(server, &mcp.Tool{Name: "test_tool_with_progress", Description: "Tells its progress three times."}, progressThrice)
	addTool(server, &mcp.Tool{Name: "test_sampling", Description: "Asks the client's model."}, sample)
	type in struct {
		Message string `json:"message" jsonschema:"what to tell the user"`
	}
	addTool(server, &mcp.Tool{Name: "test_elicitation", Description: "Asks the user for a name and an address."},
		func(ctx context.Context, req *mcp.CallToolRequest, in in) (*mcp.CallToolResult, error) {
			return elicit(ctx, req, in.Message, form([]string{"username", "email"}, object{
				"username": object{"type": "string", "description": "User's response"},
				"email":    object{"type": "string", "description": "User's email address"},
			}))
		})
	addTool(server, &mcp.Tool{Name: "test_elicitation_sep1034_defaults", Description: "Asks the user with defaults of every type."},
		func(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
			return elicit(ctx, req, "Are these right?", form(nil, object{
				"name":     object{"type": "string", "default": "John Doe"},
				"age":      object{"type": "integer", "default": 30},
				"score":    object{"type": "number", "default": 95.5},
				"status":   object{"type": "string", "enum": []string{"active", "inactive", "pending"}, "default": "active"},
				"verified": object{"type": "boolean", "default": true},
			}))
		})
	addTool(server, &mcp.Tool{Name: "test_elicitation_sep1330_enums", Description: "Asks the user to choose, in every way there is."},
		func(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
			plain := []string{"option1", "option2", "option3"}
			titled := []object{
				{"const": "value1", "title": "First Option"},
				{"const": "value2", "title": "Second Option"},
				{"const": "value3", "title": "Third Option"},
			}
			return elicit(ctx, req, "What do you choose?", form(nil, object{
				"untitledSingle": object{"type": "string", "enum": plain},
				"titledSingle":   object{"type": "string", "oneOf": titled},
				"legacyEnum": object{
					"type": "string", "enum": []string{"opt1", "opt2", "opt3"}, "enumNames": []string{"Option One", "Option Two", "Option Three"},
				},
				"untitledMulti": object{"type": "array", "items": object{"type": "string", "enum": plain}},
				"titledMulti":   object{"type": "array", "items": object{"anyOf": titled}},
			}))
		})
}

// object is a JSON object.
type object = map[string]any

// form is the schema of a request to the user.
func form(required []string, properties object) object {
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

func logThrice(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	for _, line := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
		if err := errors.Join(info(ctx, req, line), pause(ctx)); err != nil {
			return nil, err
		}
	}
	return answer(text("three lines were logged")), nil
}

func progressThrice(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	token := req.Params.GetProgressToken()
	for _, done := range []float64{0, 50, 100} {
		if token != nil {
			err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: done, Total: 100})
			if err != nil {
				return nil, fmt.Errorf("tell the progress: %w", err)
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

func elicit(ctx context.Context, req *mcp.CallToolRequest, message string, schema object) (*mcp.CallToolResult, error) {
	result, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: message, RequestedSchema: schema})
	if err != nil {
		return nil, fmt.Errorf("ask the user: %w", err)
	}
	content, err := json.Marshal(result.Content)
	if err != nil {
		return nil, fmt.Errorf("encode the user's answer: %w", err)
	}
	return answerf("User response: action=%s, content=%s", result.Action, content), nil
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

// addProtocolTools adds the tools for the tests of schemas, headers, capabilities,
// changed lists and broken streams.
func addProtocolTools(server *mcp.Server) {
	repeat := func(_ context.Context, _ *mcp.CallToolRequest, in object) (*mcp.CallToolResult, error) {
		return answerf("called with %v", in), nil
	}
	addTool(server, &mcp.Tool{
		Name: "json_schema_2020_12_tool", Description: "Repeats its arguments.", InputSchema: json.RawMessage(richSchema),
	}, repeat)
	addTool(server, &mcp.Tool{
		Name: "test_x_mcp_header", Description: "Repeats its arguments, of which one is in a header too.", InputSchema: json.RawMessage(headerSchema),
	}, repeat)
	addTool(server, &mcp.Tool{Name: "test_missing_capability", Description: "Needs a client that offers a model."}, needSampling)
	addTool(server, &mcp.Tool{Name: "test_reconnection", Description: "Breaks the stream, and answers on the next."}, reconnect)
	addTool(server, &mcp.Tool{Name: "test_trigger_tool_change", Description: "Changes the list of tools for a moment."},
		func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, error) {
			const name = "test_transient_tool"
			addTool(server, &mcp.Tool{Name: name, Description: "Is there for a moment."},
				func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, error) { return answer(), nil })
			server.RemoveTools(name)
			return answer(text("the list of tools has changed")), nil
		})
	addTool(server, &mcp.Tool{Name: "test_trigger_prompt_change", Description: "Changes the list of prompts for a moment."},
		func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, error) {
			const name = "test_transient_prompt"
			server.AddPrompt(&mcp.Prompt{Name: name, Description: "Is there for a moment."},
				func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) { return userPrompt(""), nil })
			server.RemovePrompts(name)
			return answer(text("the list of prompts has changed")), nil
		})
}

func needSampling(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
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

func reconnect(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	if req.Extra != nil && req.Extra.CloseSSEStream != nil {
		req.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: step})
	}
	if err := errors.Join(pause(ctx), pause(ctx)); err != nil {
		return nil, err
	}
	return answer(text("the client came back")), nil
}
