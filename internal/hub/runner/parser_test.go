package runner_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// parse parses lines as the output of a program that ended with exit code code.
func parse(t *testing.T, parser string, code int, lines ...string) (runner.Outcome, *record, error) {
	t.Helper()
	def := fakeAgent("", nil)
	def.Parser = parser
	var h record
	out, err := runner.Parse(def, []byte(strings.Join(lines, "\n")), "", code, &h)
	return out, &h, err
}

func TestClaudeStreamSeparatesTheAnswerFromOtherEvents(t *testing.T) {
	out, h, err := parse(t, "claude-stream", 0,
		`{"type":"system","subtype":"init","session_id":"s1","model":"m"}`,
		`warning: not JSON`, `[1]`, `{"type":"from-the-future","x":{}}`, `{"type":`,
		`{"type":"stream_event","event":{"type":"message_start","message":{"id":"m1"}}}`,
		`{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"hm"}}}`,
		`{"type":"stream_event","event":{"type":"content_block_start","content_block":{"type":"text"}}}`,
		`{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"one"}}}`,
		`{"type":"stream_event","parent_tool_use_id":"t9","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"a subagent"}}}`,
		`{"type":"assistant","message":{"id":"m1","content":[{"type":"text","text":"one"},{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]}}`,
		`{"type":"assistant","parent_tool_use_id":"t9","message":{"id":"m9","content":[{"type":"text","text":"a subagent"}]}}`,
		`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"boom"}],"is_error":true}]}}`,
		`{"type":"assistant","message":{"id":"m2","content":[{"type":"text","text":"two"}]}}`,
		`{"type":"result","subtype":"success","is_error":false,"result":"two","usage":{"input_tokens":1,"cache_read_input_tokens":2,"output_tokens":3},"total_cost_usd":0.5}`)
	if err != nil || out.Text != "one\n\ntwo" || h.text() != out.Text {
		t.Errorf("%q, %v", out.Text, err)
	}
	if want := (runner.Usage{InputTokens: 3, OutputTokens: 3, CachedTokens: 2, CostUSD: 0.5}); out.Usage != want {
		t.Errorf("usage %+v", out.Usage)
	}
	if th := eventsOf[runner.Thought](h); len(th) != 1 || th[0].Text != "hm" {
		t.Errorf("thoughts %+v", th)
	}
	if tool := h.tools()["t1"]; tool.Status != runner.ToolFailed || tool.Title != "Bash: ls" || tool.Output != "boom" {
		t.Errorf("tool %+v", tool)
	}
	if s := eventsOf[runner.SessionStarted](h); len(s) != 1 || s[0] != (runner.SessionStarted{ID: "s1", Model: "m"}) {
		t.Errorf("session %+v", s)
	}
}

func TestAFieldOfAnotherTypeDoesNotHideTheLine(t *testing.T) {
	out, _, err := parse(t, "claude-stream", 0,
		`{"type":"result","subtype":"success","session_id":7,"result":"text","usage":"none","permission_denials":{}}`)
	if err != nil || out.Text != "text" {
		t.Errorf("%q, %v", out.Text, err)
	}
}

func TestClaudeErrorsAreErrorsWhateverTheirSubtype(t *testing.T) {
	for line, code := range map[string]runner.Code{
		`{"type":"result","subtype":"success","is_error":true,"result":"API Error: 500"}`:                         runner.CodeAgent,
		`{"type":"result","subtype":"success","is_error":true,"api_error_status":401,"result":"Failed"}`:          runner.CodeAuth,
		`{"type":"result","subtype":"success","is_error":true,"result":"Invalid API key · Fix external API key"}`: runner.CodeAuth,
		`{"type":"result","subtype":"error_max_turns","is_error":false}`:                                          runner.CodeAgent,
		`{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"half"}]}}`:                     runner.CodeProtocol,
		``: runner.CodeProtocol,
	} {
		_, _, err := parse(t, "claude-stream", 0, line)
		checkError(t, err, code, "")
	}
	// An answer that mentions credentials is no error.
	out, _, err := parse(t, "claude-stream", 0, `{"type":"result","subtype":"success","result":"HTTP 401 Unauthorized means: not logged in"}`)
	if err != nil || out.Status != runner.OutcomeCompleted {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestSuccessNeedsExitCodeZero(t *testing.T) {
	for parser, line := range map[string]string{
		"claude-stream": `{"type":"result","subtype":"success","result":"x"}`,
		"gemini-stream": `{"type":"result","status":"success"}`,
		"codex-jsonl":   `{"type":"turn.completed"}`,
		"vibe-stream":   `{"role":"assistant","content":"x"}`,
		"text":          `x`,
	} {
		if out, _, err := parse(t, parser, 0, line); err != nil || out.Status != runner.OutcomeCompleted {
			t.Errorf("%s: %+v, %v", parser, out, err)
		}
		_, _, err := parse(t, parser, 3, line)
		checkError(t, err, runner.CodeAgent, "exit code 3")
	}
}

func TestCodexToolsAndMessages(t *testing.T) {
	out, h, err := parse(t, "codex-jsonl", 0,
		`{"type":"thread.started","thread_id":"t-1"}`,
		`{"type":"item.completed","item":{"id":"0","type":"reasoning","text":"hm"}}`,
		`{"type":"item.started","item":{"id":"1","type":"command_execution","command":"bash -lc ls","status":"in_progress"}}`,
		`{"type":"item.completed","item":{"id":"1","type":"command_execution","command":"bash -lc ls","aggregated_output":"a\n","exit_code":0,"status":"completed"}}`,
		`{"type":"item.completed","item":{"id":"2","type":"command_execution","command":"false","exit_code":1,"status":"failed"}}`,
		`{"type":"item.completed","item":{"id":"3","type":"command_execution","command":"rm","status":"declined"}}`,
		`{"type":"item.completed","item":{"id":"4","type":"file_change","changes":[{"path":"a.go","kind":"add"},{"path":"b.go","kind":"update"}],"status":"completed"}}`,
		`{"type":"item.completed","item":{"id":"5","type":"mcp_tool_call","server":"s","tool":"t","arguments":{"x":1},"status":"completed"}}`,
		`{"type":"item.completed","item":{"id":"6","type":"web_search","query":"go"}}`,
		`{"type":"item.completed","item":{"id":"7","type":"error","message":"a warning"}}`,
		`{"type":"item.completed","item":{"id":"8","type":"agent_message","text":"one"}}`,
		`{"type":"item.completed","item":{"id":"9","type":"agent_message","text":"two"}}`,
		`{"type":"turn.completed","usage":{"input_tokens":1,"cached_input_tokens":2,"output_tokens":3}}`)
	if err != nil || out.Text != "one\n\ntwo" || len(out.Denials) != 1 || out.Denials[0].ID != "3" {
		t.Errorf("%+v, %v", out, err)
	}
	tools := h.tools()
	for id, want := range map[string]runner.ToolCall{
		"1": {Name: "command_execution", Title: "bash -lc ls", Status: runner.ToolCompleted, Output: "a\n"},
		"2": {Name: "command_execution", Title: "false", Status: runner.ToolFailed, Output: "exit code 1"},
		"3": {Name: "command_execution", Title: "rm", Status: runner.ToolDenied},
		"4": {Name: "file_change", Title: "add a.go, update b.go", Status: runner.ToolCompleted},
		"5": {Name: "s.t", Status: runner.ToolCompleted},
		"6": {Name: "web_search", Title: "go", Status: runner.ToolCompleted},
	} {
		got := tools[id]
		if got.Name != want.Name || got.Title != want.Title || got.Status != want.Status || got.Output != want.Output {
			t.Errorf("%s: %+v", id, got)
		}
	}
	if n := eventsOf[runner.Notice](h); len(n) != 1 || n[0].Text != "a warning" {
		t.Errorf("notices %+v", n)
	}
}

// The lines follow the source of vibe 2.18, which could not be installed where the other
// outputs were recorded.
func TestVibeMessages(t *testing.T) {
	lines := []string{
		`{"role":"system","content":"you are"}`,
		`{"role":"user","content":"do it"}`,
		`{"role":"assistant","content":"I look","reasoning_content":"hm","session_id":"v1","tool_calls":[{"id":"c1","index":0,"function":{"name":"bash","arguments":"{\"command\":\"ls\"}"},"type":"function"}]}`,
		`{"role":"tool","content":"a\nb","name":"bash","tool_call_id":"c1"}`,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c2","function":{"name":"bash","arguments":"not json"}},{"id":"c3","function":{"name":"bash","arguments":"{}"}}]}`,
		`{"role":"tool","content":"<user_cancellation>no</user_cancellation>","tool_call_id":"c2"}`,
		`{"role":"tool","content":"<tool_error>bash failed</tool_error>","tool_call_id":"c3"}`,
	}
	_, _, err := parse(t, "vibe-stream", 0, lines...)
	checkError(t, err, runner.CodeProtocol, "")

	out, h, err := parse(t, "vibe-stream", 0, append(lines, `{"role":"assistant","content":[{"type":"text","text":"done"}]}`)...)
	if err != nil || out.Text != "I look\n\ndone" || len(out.Denials) != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	tools := h.tools()
	for id, want := range map[string]runner.ToolStatus{"c1": runner.ToolCompleted, "c2": runner.ToolDenied, "c3": runner.ToolFailed} {
		if tools[id].Status != want || tools[id].Name != "bash" {
			t.Errorf("%s: %+v", id, tools[id])
		}
	}
	if tools["c1"].Title != "bash: ls" || len(eventsOf[runner.SessionStarted](h)) != 1 {
		t.Errorf("%+v", h.events)
	}

	def := fakeAgent("", nil)
	def.Parser = "vibe-stream"
	_, err = runner.Parse(def, nil, "Error: Missing MISTRAL_API_KEY. Set the environment variable, or run `vibe --setup` once interactively.", 1, &record{})
	checkError(t, err, runner.CodeAuth, "")
}

func TestJSONLinesByPaths(t *testing.T) {
	fields := &runner.JSONLFields{
		Type: "event.kind", Text: "event.data.0.text", Session: "meta.id", Error: "error.message",
		TextTypes: []string{"delta"}, DoneTypes: []string{"end"}, ErrorTypes: []string{"fail"},
	}
	begin := `{"meta":{"id":"s1"},"event":{"kind":"delta","data":[{"text":"one "}]}}`
	for name, tc := range map[string]struct {
		fields *runner.JSONLFields
		lines  []string
		text   string
		code   runner.Code
	}{
		"done":                               {fields, []string{begin, `{"event":{"kind":"other","data":[{"text":"no"}]}}`, `{"event":{"kind":"end"}}`}, "one ", ""},
		"no end":                             {fields, []string{begin}, "one ", runner.CodeProtocol},
		"error type":                         {fields, []string{begin, `{"event":{"kind":"fail"}}`, `{"event":{"kind":"end"}}`}, "one ", runner.CodeAgent},
		"error path":                         {fields, []string{`{"error":{"message":"no api key"}}`}, "", runner.CodeAuth},
		"error false":                        {&runner.JSONLFields{Text: "t", Error: "error"}, []string{`{"t":"a","error":false}`, `{"t":"b","error":null}`}, "ab", ""},
		"error object":                       {&runner.JSONLFields{Text: "t", Error: "error"}, []string{`{"error":{"x":1}}`}, "", runner.CodeAgent},
		"without types, the exit is the end": {&runner.JSONLFields{Text: "t"}, []string{`{"t":"a"}`, `{"t":1}`, `{"t":{"x":[]}}`, `{"u":1}`, `7`}, `a1{"x":[]}`, ""},
		"paths without values":               {&runner.JSONLFields{Text: "a.9.b"}, []string{`{"a":[]}`, `{"a":"x"}`, `{"a":[1]}`}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			def := fakeAgent("", nil)
			def.Parser, def.JSONL = "jsonl", tc.fields
			var h record
			out, err := runner.Parse(def, []byte(strings.Join(tc.lines, "\n")), "", 0, &h)
			checkError(t, err, tc.code, "")
			if out.Text != tc.text {
				t.Errorf("text %q", out.Text)
			}
			if tc.fields == fields && tc.text != "" && len(eventsOf[runner.SessionStarted](&h)) != 1 {
				t.Error("no session")
			}
		})
	}
}

func TestGeminisExitCodes(t *testing.T) {
	for code, want := range map[int]runner.Code{41: runner.CodeAuth, 145: runner.CodeAuth, 55: runner.CodeConfig, 42: runner.CodeAgent, 173: runner.CodeAgent} {
		_, _, err := parse(t, "gemini-stream", code, "")
		checkError(t, err, want, "")
	}
}

func TestAgentOutputIsBounded(t *testing.T) {
	big := strings.Repeat("x", 256<<10) // larger than each bound
	var lines []string
	for range 3000 {
		lines = append(lines, `{"type":"error","message":"warning"}`)
	}
	lines = append(lines, `{"type":"tool_use","tool_id":"1","tool_name":"t"}`, `{"type":"tool_result","tool_id":"1","status":"success","output":"`+big+`"}`,
		`{"type":"result","status":"error","error":{"message":"`+big+`"}}`)
	_, h, err := parse(t, "gemini-stream", 0, lines...)
	if n := len(eventsOf[runner.Notice](h)); n > 1000 {
		t.Errorf("%d notices", n)
	}
	if n := len(h.tools()["1"].Output); n > 64<<10 {
		t.Errorf("%d bytes of a tool's output", n)
	}
	if err == nil || len(err.Error()) > 8<<10 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}

func fuzzParser(f *testing.F, parser string, seeds ...string) {
	for _, pattern := range seeds {
		files, err := filepath.Glob(filepath.Join("testdata", "captures", pattern))
		if err != nil || len(files) == 0 {
			f.Fatal(pattern, err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, 0)
		}
	}
	def := fakeAgent("", nil)
	def.Parser, def.Limits.MaxOutput, def.Limits.MaxLine = parser, 1000, 1<<20
	def.JSONL = &runner.JSONLFields{Type: "type", Text: "item.text", Session: "thread_id", Error: "error", DoneTypes: []string{"turn.completed"}}
	f.Fuzz(func(t *testing.T, b []byte, code int) {
		var h record
		out, err := runner.Parse(def, b, "", code, &h)
		if out.Text != h.text() || len(out.Text) > 1000 || !utf8.ValidString(out.Text) {
			t.Errorf("outcome %q, deltas %q", out.Text, h.text())
		}
		if (err == nil) != (out.Status == runner.OutcomeCompleted) || err == nil && code != 0 {
			t.Errorf("%s with %v and exit code %d", out.Status, err, code)
		}
		for _, tool := range eventsOf[runner.ToolCall](&h) {
			if len(tool.Input) > 0 && !json.Valid(tool.Input) {
				t.Errorf("input %q", tool.Input)
			}
		}
	})
}

func FuzzClaudeStream(f *testing.F) { fuzzParser(f, "claude-stream", "*claude*.out") }
func FuzzGeminiStream(f *testing.F) { fuzzParser(f, "gemini-stream", "*gemini*.out") }
func FuzzCodexJSONL(f *testing.F)   { fuzzParser(f, "codex-jsonl", "*codex*.out") }
func FuzzJSONL(f *testing.F)        { fuzzParser(f, "jsonl", "*codex*.out", "*gemini*.out") }
func FuzzText(f *testing.F)         { fuzzParser(f, "text", "*text.out") }
func FuzzVibeStream(f *testing.F) {
	f.Add([]byte(`{"role":"assistant","content":"x","tool_calls":[{"id":"c","function":{"name":"n","arguments":"{}"}}]}
{"role":"tool","tool_call_id":"c","content":[{"text":"y"}]}`), 0)
	fuzzParser(f, "vibe-stream")
}

// discard is a Handler that ignores events, for benchmarks.
type discard struct{ record }

func (*discard) Event(runner.Event) {}

func BenchmarkClaudeStream(b *testing.B) {
	output, err := os.ReadFile(filepath.Join("testdata", "captures", "sg-claude-int.out"))
	if err != nil {
		b.Fatal(err)
	}
	def := fakeAgent("", nil)
	def.Parser = "claude-stream"
	b.SetBytes(int64(len(output)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = runner.Parse(def, output, "", 0, &discard{})
	}
}
