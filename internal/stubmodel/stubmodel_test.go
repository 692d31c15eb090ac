package stubmodel_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/stubmodel"
)

// post sends a request and returns the status and the body of the answer.
func post(t *testing.T, path, body string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
	w := httptest.NewRecorder()
	new(stubmodel.Handler).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

const (
	anthropicPath = "/v1/messages"
	geminiPath    = "/v1beta/models/m:streamGenerateContent"
	openaiPath    = "/v1/responses"
)

// asks returns, by path, a request to each API with the user's turns.
func asks(turns ...string) map[string]string {
	var anthropic, gemini, openai []string
	for _, text := range turns {
		anthropic = append(anthropic, fmt.Sprintf(`{"role":"user","content":[{"type":"text","text":%q}]}`, text))
		gemini = append(gemini, fmt.Sprintf(`{"role":"user","parts":[{"text":%q}]}`, text))
		openai = append(openai, fmt.Sprintf(`{"type":"message","role":"user","content":[{"type":"input_text","text":%q}]}`, text))
	}
	return map[string]string{
		anthropicPath: `{"model":"m","stream":true,"tools":[{"name":"Bash"},{"name":"Write"}],"messages":[` + strings.Join(anthropic, ",") + `]}`,
		geminiPath:    `{"contents":[` + strings.Join(gemini, ",") + `]}`,
		openaiPath:    `{"model":"m","stream":true,"tools":[{"name":"exec_command"}],"input":[` + strings.Join(openai, ",") + `]}`,
	}
}

func TestEveryAPIFollowsTheDirectives(t *testing.T) {
	for name, tc := range map[string]struct {
		turns []string
		code  int
		want  map[string]string
	}{
		"plain": {[]string{"hi"}, 200, map[string]string{
			anthropicPath: `"text":"def hell"`, geminiPath: `"text":"def hell"`, openaiPath: `"delta":"def hell"`,
		}},
		"remember": {[]string{"a", "b", "REMEMBER"}, 200, map[string]string{
			anthropicPath: "user turns seen: 3", geminiPath: "user turns seen: 3", openaiPath: "user turns seen: 3",
		}},
		"shell": {[]string{"TOOL: ls -l \nmore"}, 200, map[string]string{
			anthropicPath: `{\"command\":\"ls -l\"`, geminiPath: `"command":"ls -l"`, openaiPath: `{\"cmd\":\"ls -l\"}`,
		}},
		"escalation": {[]string{"ESC:id"}, 200, map[string]string{
			anthropicPath: `\"command\":\"id\"`, geminiPath: `"command":"id"`, openaiPath: `require_escalated`,
		}},
		"write": {[]string{"WRITE:/tmp/it's"}, 200, map[string]string{
			anthropicPath: `\"file_path\":\"/tmp/it's\"`, geminiPath: `"file_path":"/tmp/it's"`, openaiPath: `/tmp/it'\\\\''s`,
		}},
		"unauthorized": {[]string{"HTTP401"}, 401, map[string]string{
			anthropicPath: "authentication_error", geminiPath: "UNAUTHENTICATED", openaiPath: "Unauthorized",
		}},
		"too many": {[]string{"HTTP429"}, 429, map[string]string{
			anthropicPath: "rate_limit_error", geminiPath: "RESOURCE_EXHAUSTED", openaiPath: "Too Many Requests",
		}},
		"broken": {[]string{"HTTP500"}, 500, map[string]string{
			anthropicPath: "api_error", geminiPath: "INTERNAL", openaiPath: "Internal Server Error",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for path, body := range asks(tc.turns...) {
				code, got := post(t, path, body)
				if code != tc.code || !strings.Contains(got, tc.want[path]) {
					t.Errorf("%s: %d %s, want %s", path, code, got, tc.want[path])
				}
			}
		})
	}
}

func TestAMessageFailsAsOftenAsItSays(t *testing.T) {
	for path, body := range asks("HTTP529x2 hi") {
		handler := &stubmodel.Handler{} // the same text counts for all APIs
		for _, want := range []int{529, 529, 200} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
			if w.Code != want {
				t.Errorf("%s: got %d, want %d", path, w.Code, want)
			}
		}
	}
}

func TestTheResultOfAToolIsRepeated(t *testing.T) {
	for path, body := range map[string]string{
		anthropicPath: `{"stream":true,"tools":[{"name":"Bash"}],"messages":[{"role":"user","content":"TOOL:ls"},{"role":"assistant","content":"x"},
			{"role":"user","content":[{"type":"tool_result","content":"files"},{"type":"text","text":"<system-reminder>x"}]}]}`,
		geminiPath: `{"contents":[{"role":"user","parts":[{"text":"TOOL:ls"}]},{"role":"model","parts":[]},{"role":"user","parts":[{"functionResponse":{"response":"files"}}]}]}`,
		openaiPath: `{"tools":[{"name":"shell_command"}],"input":[{"type":"message","role":"user","content":[{"text":"<environment_context>"},{"text":"TOOL:ls"}]},
			{"type":"function_call_output","output":"files"}]}`,
	} {
		if _, got := post(t, path, body); !strings.Contains(got, "said: ") || !strings.Contains(got, "files") {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// Each result of a tool leads to the use of the next one.
func TestSeveralToolsAreUsedInTurn(t *testing.T) {
	const use = `"USE:first {}\nUSE:second {}"`
	result := map[string]string{
		anthropicPath: `,{"role":"user","content":[{"type":"tool_result","content":"done"}]}`,
		geminiPath:    `,{"role":"user","parts":[{"functionResponse":{"response":"done"}}]}`,
		openaiPath:    `,{"type":"function_call_output","output":"done"}`,
	}
	for path, conversation := range map[string][2]string{
		anthropicPath: {`{"stream":true,"tools":[{"name":"mcp__p__first"},{"name":"mcp__p__second"}],"messages":[{"role":"user","content":` + use + `}`, `]}`},
		geminiPath:    {`{"tools":[{"functionDeclarations":[{"name":"mcp_p_first"},{"name":"mcp_p_second"}]}],"contents":[{"parts":[{"text":` + use + `}]}`, `]}`},
		openaiPath:    {`{"tools":[{"name":"mcp__p","tools":[{"name":"first"},{"name":"second"}]}],"input":[{"role":"user","content":[{"text":` + use + `}]}`, `]}`},
	} {
		for answered, want := range []string{"first", "second", "done"} {
			_, got := post(t, path, conversation[0]+strings.Repeat(result[path], answered)+conversation[1])
			if !strings.Contains(got, want) {
				t.Errorf("%s after %d answers: %s", path, answered, got)
			}
		}
	}
}

// Codex makes one turn of what its user types while a bell rings.
func TestMessagesThatAreAnsweredAtOnceAllCount(t *testing.T) {
	const tools = `{"tools":[{"name":"mcp__p","tools":[{"name":"first"},{"name":"second"}]}],"input":[`
	const two = `{"type":"message","role":"user","content":[{"text":"USE:first {}"}]},{"type":"message","role":"user","content":[{"text":"a bell"}]}`
	if _, got := post(t, openaiPath, tools+two+`]}`); !strings.Contains(got, "first") {
		t.Errorf("the first message is lost: %s", got)
	}
	const more = `,{"type":"function_call_output","output":"done"},{"type":"message","role":"user","content":[{"text":"USE:second {}"}]}`
	if _, got := post(t, openaiPath, tools+two+more+`]}`); !strings.Contains(got, "second") {
		t.Errorf("a message in a turn is lost: %s", got)
	}
	const canceled = `{"type":"message","role":"user","content":[{"text":"SLOW"}]},{"type":"message","role":"user","content":[{"text":"REMEMBER two"}]}`
	if _, got := post(t, openaiPath, tools+canceled+`]}`); !strings.Contains(got, "user turns seen: 2") {
		t.Errorf("a canceled message is answered: %s", got)
	}
	const answered = `,{"type":"message","role":"assistant","content":[{"text":"an answer"}]},{"type":"message","role":"user","content":[{"text":"hi"}]}`
	if _, got := post(t, openaiPath, tools+two+answered+`]}`); strings.Contains(got, "first") || !strings.Contains(got, "hello") {
		t.Errorf("an answered message is answered again: %s", got)
	}
}

func TestRequestsWithoutAStreamAreAnsweredAtOnce(t *testing.T) {
	for path, tc := range map[string]struct{ body, want string }{
		"/v1/messages":              {`{"messages":[{"role":"user","content":"hi"}]}`, `def hello`},
		"/v1/messages ":             {`{"tools":[{"name":"Bash"}],"messages":[{"role":"user","content":"TOOL:ls"}]}`, `"tool_use"`},
		"/v1/messages  ":            {`{"messages":[{"role":"user","content":"TOOL:ls"}]}`, `"ok"`},
		"/m:generateContent":        {`{"contents":[{"parts":[{"text":"hi"}]}]}`, `def hello`},
		"/m:generateContent ":       {`{"contents":[{"parts":[{"text":"TOOL:ls"}]}]}`, `run_shell_command`},
		"/m:generateContent  ":      {`{"generationConfig":{"responseMimeType":"application/json"}}`, `next_speaker`},
		"/m:generateContent   ":     {`{"contents":[{"parts":[{"text":"HTTP403"}]}]}`, `PERMISSION_DENIED`},
		"/v1/responses":             {`{"input":"TOOL:ls"}`, `\"bash\"`},
		"/v1/messages/count_tokens": {`{}`, `input_tokens`},
		"/m:countTokens":            {`{}`, `totalTokens`},
		"/v1/models":                {``, `"list"`},
		"/unknown":                  {``, `has no /unknown`},
		"/v1/messages   ":           {`[`, `unexpected end`},
	} {
		if _, got := post(t, strings.TrimSpace(path), tc.body); !strings.Contains(got, tc.want) {
			t.Errorf("%s %s: %s", path, tc.body, got)
		}
	}
}

func TestASlowAnswerEndsWhenTheClientDisconnects(t *testing.T) {
	server := httptest.NewServer(new(stubmodel.Handler))
	defer server.Close() // blocks until every request has ended
	for path, body := range asks("SLOW") {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var seen strings.Builder
		buf := make([]byte, 1024)
		for !strings.Contains(seen.String(), "tick 0") {
			n, err := resp.Body.Read(buf)
			seen.Write(buf[:n])
			if err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// Each CLI has its own naming scheme for the tools of MCP servers.
func TestToolsOfMCPServersAreUsed(t *testing.T) {
	const use = `USE:send_message {\"channel\":\"errors\"}`
	for path, tc := range map[string]struct{ body, want string }{
		anthropicPath: {
			`{"stream":true,"tools":[{"name":"send_message"},{"name":"mcp__parley__send_message"}],"messages":[{"role":"user","content":"` + use + `"}]}`,
			`"name":"mcp__parley__send_message"`,
		},
		geminiPath: {
			`{"tools":[{"functionDeclarations":[{"name":"glob"},{"name":"mcp_parley_send_message"}]}],"contents":[{"parts":[{"text":"` + use + `"}]}]}`,
			`"functionCall":{"args":{"channel":"errors"},"name":"mcp_parley_send_message"}`,
		},
		openaiPath: {
			`{"tools":[{"name":"exec_command"},{"name":"mcp__parley","tools":[{"name":"read_messages"},{"name":"send_message"}]}],"input":"` + use + `"}`,
			`"name":"send_message","namespace":"mcp__parley"`,
		},
	} {
		if _, got := post(t, path, tc.body); !strings.Contains(got, tc.want) || !strings.Contains(got, "errors") {
			t.Errorf("%s: %s", path, got)
		}
	}
	for path, body := range asks(`USE:send_message {"channel":"errors"}`) {
		if _, got := post(t, path, body); !strings.Contains(got, "there is no tool send_message") {
			t.Errorf("%s without the tool: %s", path, got)
		}
	}
	for path, body := range asks("USE:send_message {") {
		if _, got := post(t, path, body); !strings.Contains(got, "bad ") {
			t.Errorf("%s with bad arguments: %s", path, got)
		}
	}
}
