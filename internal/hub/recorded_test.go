package hub_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	"github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

// printed is an agent of the driver exec that prints what a CLI has printed.
func printed(t *testing.T, parser, output string) runner.Agent {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs cat")
	}
	file := filepath.Join(t.TempDir(), "output")
	if err := os.WriteFile(file, []byte(output), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := runner.Open(runner.Definition{ID: "a", Driver: runner.DriverExec, Command: "cat", Args: []string{file}, Parser: parser}, runner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func capture(t *testing.T, name string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("runner", "testdata", "captures", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// replayed is an agent that replays the handshake and one turn of a recorded conversation. A turn begins with the
// host's message begin.
func replayed(t *testing.T, driver, file, begin string, turn int) *fakeAgent {
	t.Helper()
	handshake, turns := duplextest.Split(duplextest.Load(t, filepath.Join("runner", "drivers", "testdata", file)), begin)
	def := duplextest.Definition(t, driver, func(d *runner.Definition) { d.Model = "stub-model" })
	s := duplextest.Session(t, def, drivers.Dialect(def), func(a *duplextest.Agent) {
		if err := a.Replay(append(handshake, turns[turn]...)); err != nil {
			t.Error(err)
		}
		a.Wait()
	}, nil)
	return &fakeAgent{turn: s.Turn}
}

// TestTheTracesOfRecordedTurns replays what CLIs have sent; for vibe and the tool of codex exec, lines that follow
// their source code.
func TestTheTracesOfRecordedTurns(t *testing.T) {
	type agent = func(t *testing.T) runner.Agent
	output := func(parser, name string) agent {
		return func(t *testing.T) runner.Agent { return printed(t, parser, capture(t, name)) }
	}
	lines := func(parser string, lines ...string) agent {
		return func(t *testing.T) runner.Agent { return printed(t, parser, strings.Join(lines, "\n")) }
	}
	replay := func(driver, file, begin string, turn int) agent {
		return func(t *testing.T) runner.Agent { return replayed(t, driver, file, begin, turn) }
	}
	const (
		touch       = "touch /home/user/project"
		touched     = "(Bash completed with no output)"
		touchInput  = `{"command":"touch /home/user/project","description":"stub"}`
		claudeModel = "claude-opus-5-5"
	)
	for name, tt := range map[string]struct {
		agent  agent
		answer string        // "" if there is no question
		tool   hub.ToolTrace // Output is its beginning
		model  string
		usage  runner.Usage
	}{
		"claude": {
			agent: output("claude-stream", "pt-claude-allow.out"), model: claudeModel, usage: runner.Usage{InputTokens: 20, OutputTokens: 24, CostUSD: 0.0005600000000000001},
			tool: hub.ToolTrace{Name: "Bash", Title: "Bash: " + touch, Status: runner.ToolCompleted, Input: jsontext.Value(touchInput), Output: touched},
		},
		"gemini": {
			agent: output("gemini-stream", "pt-gemini-yolo.out"), model: "auto", usage: runner.Usage{InputTokens: 30, OutputTokens: 15},
			tool: hub.ToolTrace{Name: "run_shell_command", Title: "run_shell_command: " + touch, Status: runner.ToolCompleted, Input: jsontext.Value(touchInput)},
		},
		"codex": {
			agent: lines("codex-jsonl", `{"type":"thread.started","thread_id":"t-1"}`,
				`{"type":"item.started","item":{"id":"1","type":"command_execution","command":"bash -lc ls","status":"in_progress"}}`,
				`{"type":"item.completed","item":{"id":"1","type":"command_execution","command":"bash -lc ls","aggregated_output":"a\n","exit_code":0,"status":"completed"}}`,
				`{"type":"item.completed","item":{"id":"3","type":"agent_message","text":"done"}}`,
				`{"type":"turn.completed","usage":{"input_tokens":5,"cached_input_tokens":1,"output_tokens":2}}`),
			usage: runner.Usage{InputTokens: 5, OutputTokens: 2, CachedTokens: 1},
			tool:  hub.ToolTrace{Name: "command_execution", Status: runner.ToolCompleted, Output: "a\n"},
		},
		"vibe": {
			agent: lines("vibe-stream", `{"role":"user","content":"do it"}`,
				`{"role":"assistant","content":"I look","session_id":"v1","tool_calls":[{"id":"c1","index":0,"function":{"name":"bash","arguments":"{\"command\":\"ls\"}"},"type":"function"}]}`,
				`{"role":"tool","content":"a\nb","name":"bash","tool_call_id":"c1"}`, `{"role":"assistant","content":"done"}`),
			tool: hub.ToolTrace{Name: "bash", Title: "bash: ls", Status: runner.ToolCompleted, Input: jsontext.Value(`{"command":"ls"}`), Output: "a\nb"},
		},
		"claude asks and is allowed": {
			agent: replay(runner.DriverClaudeStdio, "claude-bidir.jsonl", "user", 0), answer: "allow", model: claudeModel,
			usage: runner.Usage{InputTokens: 20, OutputTokens: 24, CostUSD: 0.0005600000000000001},
			tool:  hub.ToolTrace{Name: "Bash", Title: "Bash: " + touch, Status: runner.ToolCompleted, Input: jsontext.Value(touchInput), Output: touched},
		},
		"claude asks and is denied": {
			agent: replay(runner.DriverClaudeStdio, "claude-bidir.jsonl", "user", 1), answer: "user said no", model: claudeModel,
			usage: runner.Usage{InputTokens: 20, OutputTokens: 24, CostUSD: 0.0011200000000000001},
			tool:  hub.ToolTrace{Name: "Bash", Title: "Bash: " + touch, Status: runner.ToolDenied, Input: jsontext.Value(touchInput), Output: "user said no"},
		},
		"codex asks": {
			agent: replay(runner.DriverCodexAppServer, "codex-appserver.jsonl", "turn/start", 0), answer: "accept", model: "stub-model", usage: runner.Usage{InputTokens: 20, OutputTokens: 10},
			tool: hub.ToolTrace{Name: "shell", Status: runner.ToolCompleted, Output: "curl 7.88.1"},
		},
		"gemini asks over ACP": {
			agent: replay(runner.DriverACP, "acp/gemini.jsonl", "session/prompt", 1), answer: "proceed_once", model: "auto", usage: runner.Usage{InputTokens: 20, OutputTokens: 10},
			tool: hub.ToolTrace{Name: "execute", Title: touch, Status: runner.ToolCompleted},
		},
		"claude asks over ACP": {
			agent: replay(runner.DriverACP, "acp/claude.jsonl", "session/prompt", 1), answer: "allow-once", usage: runner.Usage{InputTokens: 20, OutputTokens: 24, CostUSD: 0.0014000000000000002},
			tool: hub.ToolTrace{Name: "Bash", Title: touch, Status: runner.ToolCompleted, Input: jsontext.Value(touchInput), Output: touched},
		},
		"codex over ACP": {
			agent: replay(runner.DriverACP, "acp/codex.jsonl", "session/prompt", 1), model: "stub-model[medium]", usage: runner.Usage{InputTokens: 20, OutputTokens: 10},
			tool: hub.ToolTrace{Name: "exec_command", Title: touch, Status: runner.ToolCompleted},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, hub.Config{
				Bus: openBus(t, t.TempDir(), bus.DurabilityFast), DataDir: t.TempDir(), Agents: []hub.Agent{{Definition: working("a"), Runner: tt.agent(t)}},
			}, nil)
			task := send(t, h, request("a", "use the tool"))
			if tt.answer != "" {
				req := request("a", tt.answer)
				req.Message.TaskID = task.ID
				task = send(t, h, req)
			}
			got := traces(t, h, string(task.ID), hub.TraceQuery{})[0]
			if got.State != "completed" || got.Prompt != "use the tool" || got.Model != tt.model || got.Usage != tt.usage || got.Derived {
				t.Errorf("%+v", got)
			}
			if len(got.Tools) != 1 {
				t.Fatalf("tools %+v", got.Tools)
			}
			checkTool(t, got.Tools[0], tt.tool)
			checkQuestion(t, got, tt.answer)
		})
	}
}

func checkTool(t *testing.T, got, want hub.ToolTrace) {
	t.Helper()
	if got.ID == "" || got.Name != want.Name || want.Title != "" && got.Title != want.Title || got.Title == "" || got.Status != want.Status {
		t.Errorf("tool %+v", got)
	}
	if want.Input != nil && string(got.Input) != string(want.Input) || !strings.HasPrefix(got.Output, want.Output) {
		t.Errorf("input %s, output %q", got.Input, got.Output)
	}
	if got.StartedAt.IsZero() || got.EndedAt.Before(got.StartedAt) {
		t.Errorf("from %s to %s", got.StartedAt, got.EndedAt)
	}
}

// checkQuestion checks the only question of a trace. answer is the id of an option, or a reason to deny.
func checkQuestion(t *testing.T, got hub.Trace, answer string) {
	t.Helper()
	if answer == "" {
		if len(got.Questions) != 0 {
			t.Errorf("questions %+v", got.Questions)
		}
		return
	}
	if len(got.Questions) != 1 || got.Questions[0].Answer == nil {
		t.Fatalf("questions %+v", got.Questions)
	}
	q := got.Questions[0]
	denied := got.Tools[0].Status == runner.ToolDenied
	if q.Title == "" || q.Tool != got.Tools[0].Name || len(q.Options) < 2 || q.Answer.By != "user" || q.Answer.Allowed == denied || q.Answer.At.Before(q.At) {
		t.Errorf("question %+v, answer %+v", q, q.Answer)
	}
	if denied && q.Answer.Message != answer || !denied && q.Answer.Option != answer {
		t.Errorf("answer %+v", q.Answer)
	}
}
