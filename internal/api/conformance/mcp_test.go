package conformance_test

//lint:file-ignore SA1019 logging, sampling and roots are tested too

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/api/conformance"
)

// The last revision with sessions, and the first one without.
const (
	withSessions    = "2025-11-25"
	withoutSessions = "2026-07-28"
)

// mcpClient is a client that answers all requests of the server, and records them and
// the notifications.
type mcpClient struct {
	*mcp.ClientSession
	mu       sync.Mutex
	logged   []any
	progress []float64
	asked    []any // the schemas of the questions to the user
}

// serveMCP returns the address of a suite's MCP endpoint.
func serveMCP(t *testing.T) string {
	t.Helper()
	s, err := conformance.New(t.Context(), conformance.Options{DataDir: t.TempDir(), Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return server.URL + "/mcp"
}

func connectMCP(t *testing.T, version string, opts mcp.ClientOptions) *mcpClient {
	t.Helper()
	c := &mcpClient{}
	opts.LoggingMessageHandler = func(_ context.Context, req *mcp.LoggingMessageRequest) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.logged = append(c.logged, req.Params.Data)
	}
	opts.ProgressNotificationHandler = func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.progress = append(c.progress, req.Params.Progress)
	}
	opts.ElicitationHandler = func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asked = append(c.asked, req.Params.RequestedSchema)
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"username": "ann", "email": "ann@example.com", "name": "Ann", "color": "red", "ok": true, "context": "tests"}}, nil
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &opts)
	client.AddRoots(&mcp.Root{URI: "file:///home/ann"})
	transport := &http.Transport{}
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: serveMCP(t), HTTPClient: &http.Client{Transport: transport}},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
		transport.CloseIdleConnections()
	})
	c.ClientSession = session
	return c
}

// withModel returns the options of a client that offers a model to the server.
func withModel() mcp.ClientOptions {
	return mcp.ClientOptions{CreateMessageHandler: func(_ context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
		return &mcp.CreateMessageResult{Role: "assistant", Model: "stub", Content: &mcp.TextContent{Text: "Paris"}}, nil
	}}
}

// call returns the content of a tool's result as JSON.
func (c *mcpClient) call(t *testing.T, name string, args map[string]any) string {
	t.Helper()
	params := &mcp.CallToolParams{Name: name, Arguments: args}
	if args == nil {
		params.Arguments = map[string]any{}
	}
	params.SetProgressToken("token of " + name)
	result, err := c.CallTool(t.Context(), params)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	b, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Each case is one of the suite's scenarios.
func TestToolsOfTheMCPSuite(t *testing.T) {
	for _, version := range []string{withSessions, withoutSessions} {
		t.Run(version, func(t *testing.T) {
			c := connectMCP(t, version, withModel())
			// The list tells the client which arguments to send as headers.
			if list, err := c.ListTools(t.Context(), nil); err != nil || len(list.Tools) < 25 {
				t.Fatalf("%+v %v", list, err)
			}
			tests := []struct {
				name string
				args map[string]any
				says string
			}{
				{"test_simple_text", nil, `"This is a simple text response for testing."`},
				{"test_image_content", nil, `"mimeType":"image/png","data":"iVBORw0KGgo`},
				{"test_audio_content", nil, `"mimeType":"audio/wav","data":"UklGRiYAAABXQVZF`},
				{"test_embedded_resource", nil, `"uri":"test://embedded-resource"`},
				{"test_multiple_content_types", nil, `"{\"test\":\"data\",\"value\":123}"`},
				{"test_error_handling", nil, `"isError":true`},
				{"test_tool_with_progress", nil, `token of test_tool_with_progress`},
				{"json_schema_2020_12_tool", map[string]any{"email": "x", "contactMethod": "email"}, `email:x`},
				{"json_schema_2020_12_tool", map[string]any{"phone": "x"}, `"isError":true`}, // else: an email
				{"test_x_mcp_header", map[string]any{"region": "eu"}, `region:eu`},
				{"test_missing_capability", nil, `offers a model`},
				{"test_trigger_tool_change", nil, `tools has changed`},
				{"test_trigger_prompt_change", nil, `prompts has changed`},
				{"test_logging_tool", nil, `logged`},
				{"test_streaming_elicitation", nil, `nothing was asked`},
				{"test_input_required_result_elicitation", nil, `"Hello, Ann!"`},
				{"test_input_required_result_sampling", nil, `Paris`},
				{"test_input_required_result_list_roots", nil, `file:///home/ann`},
				{"test_input_required_result_multiple_inputs", nil, `"Paris, Ann, of 1 roots"`},
				{"test_input_required_result_multi_round", nil, `"Ann likes red"`},
				{"test_input_required_result_request_state", nil, `"state-ok: confirmed true"`},
				{"test_input_required_result_tampered_state", nil, `"state-ok: confirmed true"`},
				{"test_input_required_result_capabilities", nil, `"3 answers came"`},
			}
			for _, tt := range tests {
				if got := c.call(t, tt.name, tt.args); !strings.Contains(got, tt.says) {
					t.Errorf("%s: %s is not in %s", tt.name, tt.says, got)
				}
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if !slices.Equal(c.progress, []float64{0, 50, 100}) {
				t.Errorf("progress %v", c.progress)
			}
		})
	}
}

// Only revisions with sessions let a server call its client.
func TestToolsOfTheMCPSuiteThatCallTheClient(t *testing.T) {
	c := connectMCP(t, withSessions, withModel())
	if err := c.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args map[string]any
		says string
	}{
		"test_tool_with_logging":            {nil, `three lines`},
		"test_reconnection":                 {nil, `came back`},
		"test_sampling":                     {map[string]any{"prompt": "the capital?"}, `LLM response: Paris`},
		"test_elicitation":                  {map[string]any{"message": "who?"}, `action=accept, content={`},
		"test_elicitation_sep1034_defaults": {nil, `action=accept`},
		"test_elicitation_sep1330_enums":    {nil, `ann@example.com`},
	} {
		if got := c.call(t, name, tc.args); !strings.Contains(got, tc.says) {
			t.Errorf("%s: %s is not in %s", name, tc.says, got)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if want := []any{"Tool execution started", "Tool processing data", "Tool execution completed"}; !slices.Equal(c.logged, want) {
		t.Errorf("logged %v", c.logged)
	}
	if len(c.asked) != 3 {
		t.Errorf("the user was asked %d times", len(c.asked))
	}
}

func TestStateOfAToolIsSealed(t *testing.T) {
	manual := mcp.ClientOptions{MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}}
	c := connectMCP(t, withoutSessions, manual)
	const confirm, other = "test_input_required_result_request_state", "test_input_required_result_tampered_state"
	asked, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: confirm, Arguments: map[string]any{}})
	if err != nil || asked.InputRequests["confirm"] == nil || asked.RequestState == "" {
		t.Fatalf("%+v %v", asked, err)
	}
	yes := mcp.InputResponseMap{"confirm": &mcp.ElicitResult{Action: "accept", Content: map[string]any{"ok": true}}}
	for name, tc := range map[string]struct{ tool, state string }{
		"changed":            {confirm, asked.RequestState + "x"},
		"of another tool":    {other, asked.RequestState},
		"without a seal":     {confirm, "state-ok"},
		"with an empty seal": {confirm, ".state-ok"},
		"not of base64":      {confirm, "!.state-ok"},
		"of many rounds":     {"test_input_required_result_multi_round", "2:Eve"},
	} {
		_, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tc.tool, Arguments: map[string]any{}, InputResponses: yes, RequestState: tc.state})
		var re *jsonrpc.Error
		if !errors.As(err, &re) || re.Code != jsonrpc.CodeInvalidParams {
			t.Errorf("state %s: %v", name, err)
		}
	}
	// The server asks again for a missing answer.
	again, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: confirm, Arguments: map[string]any{}, RequestState: asked.RequestState})
	if err != nil || again.InputRequests["confirm"] == nil {
		t.Errorf("%+v %v", again, err)
	}
	done, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: confirm, Arguments: map[string]any{}, InputResponses: yes, RequestState: asked.RequestState})
	if err != nil || len(done.Content) != 1 {
		t.Errorf("%+v %v", done, err)
	}
}

func TestAToolErrorNamesTheMissingCapability(t *testing.T) {
	c := connectMCP(t, withoutSessions, mcp.ClientOptions{})
	_, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "test_missing_capability", Arguments: map[string]any{}})
	var re *jsonrpc.Error
	if !errors.As(err, &re) || re.Code != mcp.CodeMissingRequiredClientCapabilities || !strings.Contains(string(re.Data), `"sampling":{}`) {
		t.Errorf("%v", err)
	}
}

func TestResourcesPromptsAndCompletionsOfTheMCPSuite(t *testing.T) {
	for _, version := range []string{withSessions, withoutSessions} {
		t.Run(version, func(t *testing.T) {
			c := connectMCP(t, version, mcp.ClientOptions{})
			for uri, says := range map[string]string{
				"test://static-text":       `"This is the content of the static text resource."`,
				"test://static-binary":     `"blob":"iVBORw0KGgo`,
				"test://watched-resource":  `"Watched resource content"`,
				"test://template/123/data": `\"id\":\"123\",\"templateTest\":true`,
			} {
				result, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
				if b, _ := json.Marshal(result); err != nil || !strings.Contains(string(b), says) {
					t.Errorf("%s: %s %v", uri, b, err)
				}
			}
			for name, says := range map[string]string{
				"test_simple_prompt":                 `"This is a simple prompt for testing."`,
				"test_prompt_with_arguments":         `arg1='a', arg2='b'`,
				"test_prompt_with_embedded_resource": `"uri":"test://x"`,
				"test_prompt_with_image":             `"image/png"`,
				"test_input_required_result_prompt":  `"Context: tests"`,
			} {
				result, err := c.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: name, Arguments: map[string]string{"arg1": "a", "arg2": "b", "resourceUri": "test://x"}})
				b, _ := json.Marshal(result)
				if err != nil || !strings.Contains(strings.ReplaceAll(string(b), `\u0027`, `'`), says) {
					t.Errorf("%s: %s %v", name, b, err)
				}
			}
			result, err := c.Complete(t.Context(), &mcp.CompleteParams{
				Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "test_prompt_with_arguments"}, Argument: mcp.CompleteParamsArgument{Name: "arg1", Value: "part"},
			})
			if err != nil || !slices.Equal(result.Completion.Values, []string{"party"}) {
				t.Errorf("%+v %v", result, err)
			}
			if version == withSessions {
				if err := c.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "test://watched-resource"}); err != nil {
					t.Error(err)
				}
				if err := c.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: "test://watched-resource"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
