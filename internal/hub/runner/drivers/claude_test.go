package drivers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
	test "github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

// claudeTurn returns a session whose agent answers each prompt with lines; %ID% in them
// is the prompt's id.
func claudeTurn(t *testing.T, lines ...string) *duplex.Session {
	t.Helper()
	def := test.Definition(t, runner.DriverClaudeStdio, nil)
	return test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		if !claudeSpeaker.Handshake(a) {
			return
		}
		for {
			m, ok := a.Next()
			if !ok {
				return
			}
			if m["type"] != "user" {
				continue
			}
			for _, l := range lines {
				if a.Send(strings.ReplaceAll(l, "%ID%", fmt.Sprint(m["uuid"]))+"\n") != nil {
					return
				}
			}
		}
	}, nil)
}

func TestClaudeArguments(t *testing.T) {
	def := test.Definition(t, runner.DriverClaudeStdio, func(d *runner.Definition) {
		d.Args, d.Model, d.ModelArgs = []string{"--add-dir", "/x"}, "opus", []string{"--model", "{model}"}
	})
	d := drivers.Dialect(def)
	args := strings.Join(d.Args("abc"), " ")
	for _, want := range []string{"--permission-prompt-tool stdio", "--add-dir /x --model opus --resume abc"} {
		if !strings.Contains(args, want) {
			t.Errorf("arguments %q lack %q", args, want)
		}
	}
	if slices.Contains(d.Args(""), "--resume") {
		t.Error("a new conversation has an argument to resume")
	}
}

// claude runs turns of its own after the end of a background task; their results do not
// belong to the prompt.
func TestAResultBeforeThePromptsEchoIsNotItsEnd(t *testing.T) {
	const echo = `{"type":"user","uuid":"%ID%","isReplay":true,"message":{"role":"user","content":"x"}}`
	s := claudeTurn(t,
		`{"type":"user","uuid":"other","isReplay":true,"message":{"role":"user","content":"y"}}`,
		`{"type":"result","subtype":"success","is_error":false,"result":"of another turn"}`,
		echo,
		`{"type":"result","subtype":"success","is_error":false,"result":"mine"}`,
	)
	out, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
	if err != nil || out.Text != "mine" {
		t.Fatalf("outcome %+v, %v", out, err)
	}
}

func TestWholeMessagesAreUsedIfNothingWasStreamed(t *testing.T) {
	s := claudeTurn(t,
		`{"type":"assistant","message":{"id":"1","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"one"},{"type":"tool_use","id":"t","name":"Read","input":{"file_path":"/a"}}]}}`,
		`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"in"},{"type":"text","text":"side"}]}]}}`,
		`{"type":"assistant","parent_tool_use_id":"t","message":{"id":"2","content":"of a subagent"}}`,
		`{"type":"stream_event","parent_tool_use_id":"t","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"of a subagent"}}}`,
		`{"type":"assistant","message":{"id":"3","content":"two"}}`,
		`{"type":"result","subtype":"success","is_error":false,"result":"two"}`,
	)
	h := &test.Handler{}
	out, err := s.Turn(t.Context(), test.Prompt("x"), h)
	if err != nil || out.Text != "one\n\ntwo" {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	tool := h.Tool("t")
	if tool.Title != "Read: /a" || tool.Output != "inside" || tool.Status != runner.ToolCompleted {
		t.Errorf("tool %+v", tool)
	}
}

func TestClaudeErrors(t *testing.T) {
	retry := `{"type":"system","subtype":"api_retry","attempt":1,"max_retries":10,"error_status":401,"error":"authentication_failed"}`
	tests := map[string]struct {
		lines []string
		code  runner.Code
		text  string
	}{
		"an error flag overrides the subtype": {
			[]string{`{"type":"result","subtype":"success","is_error":true,"result":"API Error: 500"}`},
			runner.CodeAgent, "Test Agent reported an error: API Error: 500",
		},
		"no login": {
			[]string{
				`{"type":"assistant","error":"authentication_failed","message":{"id":"1","content":[{"type":"text","text":"Not logged in"}]}}`,
				`{"type":"result","subtype":"success","is_error":true,"result":"Not logged in · Please run /login"}`,
			},
			runner.CodeAuth, "Test Agent is not logged in: Not logged in · Please run /login; log in with: test-agent login",
		},
		"refused credentials are not retried": {
			[]string{retry, retry, retry},
			runner.CodeAuth, "Test Agent is not logged in: the credentials were refused; log in with: test-agent login",
		},
		"a list of errors": {
			[]string{`{"type":"result","subtype":"error_max_turns","is_error":true,"errors":["too many","turns"]}`},
			runner.CodeAgent, "Test Agent reported an error: error_max_turns: too many: turns",
		},
		"only a subtype": {
			[]string{`{"type":"result","subtype":"error_max_turns","is_error":true}`},
			runner.CodeAgent, "Test Agent reported an error: error_max_turns",
		},
		"an invalid result": {
			[]string{`{"type":"result","subtype":"success","is_error":"perhaps"}`},
			runner.CodeProtocol, "the end of claude's turn could not be understood",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := claudeTurn(t, tt.lines...).Turn(t.Context(), test.Prompt("x"), &test.Handler{})
			e, ok := errors.AsType[*runner.Error](err)
			if !ok || e.Code != tt.code || e.Error() != tt.text {
				t.Fatalf("outcome %+v, error %v", out, err)
			}
			if out.Text != "" {
				t.Errorf("the error is also the answer: %q", out.Text)
			}
		})
	}
}

func TestDenialsByClaudeItselfAreReported(t *testing.T) {
	s := claudeTurn(t,
		`{"type":"system","subtype":"permission_denied","tool_name":"Bash","tool_use_id":"t1","message":"no"}`,
		`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":"no"}]}}`,
		`{"type":"result","subtype":"success","is_error":false,"result":"sorry","permission_denials":[{"tool_name":"Bash","tool_use_id":"t1"},{"tool_name":"Write","tool_use_id":"t2","tool_input":{"file_path":"/a"}}]}`,
	)
	out, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
	if err != nil || len(out.Denials) != 2 || out.Denials[1].Title != "Write: /a" {
		t.Fatalf("outcome %+v, %v", out, err)
	}
}

// Of the changes that claude suggests, rules and directories are accepted for the
// session; a change of the mode is not.
func TestAllowAlwaysAppliesToTheSessionOnly(t *testing.T) {
	answered := make(chan string, 1)
	def := test.Definition(t, runner.DriverClaudeStdio, nil)
	s := test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		if !claudeSpeaker.Handshake(a) {
			return
		}
		id, ok := claudeSpeaker.Prompt(a)
		if !ok {
			return
		}
		err := a.SendLine(map[string]any{"type": "control_request", "request_id": "p", "request": map[string]any{
			"subtype": "can_use_tool", "tool_name": "Bash", "tool_use_id": "t", "input": map[string]any{"command": "ls"},
			"permission_suggestions": []any{
				map[string]any{"type": "addRules", "rules": []any{map[string]any{"toolName": "Bash"}}, "behavior": "allow", "destination": "localSettings"},
				map[string]any{"type": "addDirectories", "directories": []any{"/x"}, "destination": "userSettings"},
				map[string]any{"type": "setMode", "mode": "bypassPermissions", "destination": "session"},
			},
		}})
		if m, ok := a.Next(); ok && err == nil {
			b, _ := json.Marshal(m["response"])
			answered <- string(b)
		}
		_ = a.Send(claudeSpeaker.Done(id) + "\n") // a failure shows in the turn
		a.Wait()
	}, nil)
	h := &test.Handler{Answer: test.Choose(runner.AllowAlways, "")}
	if _, err := s.Turn(t.Context(), test.Prompt("x"), h); err != nil {
		t.Fatal(err)
	}
	const want = `{"request_id":"p","response":{"behavior":"allow","updatedInput":{"command":"ls"},"updatedPermissions":[` +
		`{"behavior":"allow","destination":"session","rules":[{"toolName":"Bash"}],"type":"addRules"},` +
		`{"destination":"session","directories":["/x"],"type":"addDirectories"}]},"subtype":"success"}`
	if got := <-answered; got != want {
		t.Errorf("answered %s", got)
	}
}

func TestARequestWithdrawnByClaudeIsDropped(t *testing.T) {
	s := claudeTurn(t,
		claudeSpeaker.Permission("9"),
		`{"type":"control_cancel_request","request_id":"9"}`,
		`{"type":"result","subtype":"success","is_error":false,"result":"went on"}`,
	)
	out, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{}) // would block if the request stayed open
	if err != nil || out.Text != "went on" {
		t.Fatalf("outcome %+v, %v", out, err)
	}
}

func TestClaudeRefusesTheHandshake(t *testing.T) {
	def := test.Definition(t, runner.DriverClaudeStdio, nil)
	s := test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		m, _ := a.Next()
		_ = a.SendLine(map[string]any{"type": "control_response", "response": map[string]any{ // a failure shows in the turn
			"subtype": "error", "request_id": m["request_id"], "error": "unsupported",
		}})
		a.Wait()
	}, nil)
	_, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
	if e, ok := errors.AsType[*runner.Error](err); !ok || e.Code != runner.CodeProtocol || !strings.Contains(e.Message, "unsupported") {
		t.Fatalf("error %v", err)
	}
}

func TestOpenSucceedsWithoutTheProgram(t *testing.T) {
	agent, err := drivers.All()[runner.DriverClaudeStdio](test.Definition(t, runner.DriverClaudeStdio, nil), runner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if p := agent.Probe(t.Context()); p.Stage != runner.StageMissing {
		t.Errorf("probe %+v", p)
	}
	if _, err := agent.Open(runner.SessionSpec{WorkDir: "relative"}); err == nil {
		t.Error("a relative directory was accepted")
	}
	s, err := agent.Open(runner.SessionSpec{WorkDir: t.TempDir(), Resume: "--not-an-id"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
	if e, ok := errors.AsType[*runner.Error](err); !ok || e.Code != runner.CodeNotInstalled {
		t.Errorf("error %v", err)
	}
}

// FuzzClaudeLines feeds random output of claude to a turn, which must end.
func FuzzClaudeLines(f *testing.F) {
	for _, l := range test.Load(f, "testdata/claude-bidir.jsonl") {
		if !l.FromHost && len(l.Text) < 4096 {
			f.Add(l.Text)
		}
	}
	f.Add(claudeSpeaker.Permission("1") + "\n" + claudeSpeaker.Unknown("2") + "\n" + claudeSpeaker.Event)
	f.Fuzz(func(t *testing.T, lines string) {
		def := test.Definition(t, runner.DriverClaudeStdio, nil)
		test.Fuzz(t, def, drivers.Dialect(def), claudeSpeaker, lines)
	})
}
