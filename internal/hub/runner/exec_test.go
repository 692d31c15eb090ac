package runner_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/hub/runner"
)

func capture(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", "captures", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

const hello = "def hello():\n    print(\"Hello from the stub model\")\n"

// The outputs and exit codes were recorded from the real programs.
// HUB-AGENT-CLAUDE, HUB-AGENT-GEMINI, HUB-AGENT-CODEX, HUB-AGENT-VIBE.
func TestRecordedOutputsGiveOutcomes(t *testing.T) {
	const (
		completed = runner.OutcomeCompleted
		failed    = runner.OutcomeFailed
		auth      = runner.OutcomeAuthRequired
	)
	for _, tc := range []struct {
		capture, parser, exit string
		status                runner.OutcomeStatus
		code                  runner.Code
		text                  string // the answer; not checked if ""
		message               string // a part of the error's text
		denials               int
	}{
		{"claude-stream", "claude-stream", "0", completed, "", hello, "", 0},
		{"claude-stream-partial", "claude-stream", "0", completed, "", hello, "", 0},
		{"claude-text", "text", "0", completed, "", hello, "", 0},
		{"pt-claude-default", "claude-stream", "0", completed, "", "", "", 1},
		{"pt-claude-allow", "claude-stream", "0", completed, "", "", "", 0},
		{"nocred-claude-stream", "claude-stream", "1", auth, runner.CodeAuth, "", "Not logged in", 0},
		{"nocred-claude-text", "text", "1", auth, runner.CodeAuth, "", "Not logged in", 0},
		{"er-claude-401", "claude-stream", "143", auth, runner.CodeAuth, "", "authentication_failed", 0},
		{"er-claude-429", "claude-stream", "143", failed, runner.CodeAgent, "", "exit code 143", 0},
		{"sg-claude-int", "claude-stream", "0", failed, runner.CodeAgent, "", "error_during_execution", 0},
		{"sg-claude-term", "claude-stream", "143", failed, runner.CodeAgent, "", "exit code 143", 0},
		{"gemini-stream", "gemini-stream", "0", completed, "", hello, "", 0},
		{"gemini-text", "text", "0", completed, "", hello, "", 0},
		{"pt-gemini-yolo", "gemini-stream", "0", completed, "", "", "", 0},
		{"pt-gemini-default", "gemini-stream", "0", completed, "", "", "", 1},
		{"er-gemini-401", "gemini-stream", "145", auth, runner.CodeAuth, "", "stub says 401", 0},
		{"er-gemini-429", "gemini-stream", "173", failed, runner.CodeAgent, "", "429", 0},
		{"nocred-gemini-p-stream", "gemini-stream", "41", auth, runner.CodeAuth, "", "Auth method", 0},
		{"sg-gemini-int", "gemini-stream", "0", failed, runner.CodeProtocol, "", "without saying", 0},
		{"codex-json", "codex-jsonl", "0", completed, "", hello, "", 0},
		{"codex-text", "text", "0", completed, "", hello, "", 0},
		{"pt-codex-default", "codex-jsonl", "0", completed, "", `tool said: "unsupported call: shell"`, "", 0},
		{"er-codex-401", "codex-jsonl", "1", auth, runner.CodeAuth, "", "401 Unauthorized", 0},
		{"er2-codex-401", "codex-jsonl", "1", auth, runner.CodeAuth, "", "401 Unauthorized", 0},
		{"er-codex-429", "codex-jsonl", "1", failed, runner.CodeAgent, "", "429", 0},
		{"sg-codex-int", "codex-jsonl", "130", failed, runner.CodeAgent, "", "exit code 130", 0},
		{"ng-codex", "codex-jsonl", "1", failed, runner.CodeConfig, "", "git repository", 0},
	} {
		t.Run(tc.capture, func(t *testing.T) {
			def := fakeAgent("replay", map[string]string{"FAKE_CAPTURE": capture(t, tc.capture), "FAKE_EXIT": tc.exit})
			def.Parser = tc.parser
			var h record
			out, err := openSession(t, def, "").Turn(t.Context(), prompt("write hello"), &h)
			if out.Status != tc.status {
				t.Errorf("status %s (%v), want %s", out.Status, err, tc.status)
			}
			checkError(t, err, tc.code, tc.message)
			if tc.text != "" && strings.TrimSpace(out.Text) != strings.TrimSpace(tc.text) {
				t.Errorf("text %q", out.Text)
			}
			if got := h.text(); got != out.Text {
				t.Errorf("the deltas give %q, the outcome has %q", got, out.Text)
			}
			if len(out.Denials) != tc.denials {
				t.Errorf("denials %+v", out.Denials)
			}
			if tc.parser != "text" && tc.capture != "ng-codex" && !strings.HasPrefix(tc.capture, "nocred-gemini") && len(eventsOf[runner.SessionStarted](&h)) != 1 {
				t.Error("no session id")
			}
			if tc.status == completed && tc.parser != "text" && out.Usage.OutputTokens == 0 {
				t.Errorf("usage %+v", out.Usage)
			}
		})
	}
}

func checkError(t *testing.T, err error, code runner.Code, message string) {
	t.Helper()
	if code == "" {
		if err != nil {
			t.Errorf("error %v", err)
		}
		return
	}
	var re *runner.Error
	if !errors.As(err, &re) {
		t.Fatalf("error %v, want %s", err, code)
	}
	if re.Code != code || !strings.Contains(re.Message, message) {
		t.Errorf("%s: %s, want %s with %q", re.Code, re.Message, code, message)
	}
	if code == runner.CodeAuth && re.Remedy != "log in to the fake" {
		t.Errorf("remedy %q", re.Remedy)
	}
}

func TestToolCallsAreReportedWithTheirEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		parser, tool string
		status       runner.ToolStatus
	}{
		"pt-claude-allow":   {"claude-stream", "Bash", runner.ToolCompleted},
		"pt-claude-default": {"claude-stream", "Bash", runner.ToolDenied},
		"pt-gemini-yolo":    {"gemini-stream", "run_shell_command", runner.ToolCompleted},
		"pt-gemini-default": {"gemini-stream", "run_shell_command", runner.ToolDenied},
	} {
		t.Run(name, func(t *testing.T) {
			def := fakeAgent("replay", map[string]string{"FAKE_CAPTURE": capture(t, name)})
			def.Parser = tc.parser
			var h record
			out, err := openSession(t, def, "").Turn(t.Context(), prompt("x"), &h)
			if err != nil {
				t.Fatal(err)
			}
			tools := h.tools()
			if len(tools) != 1 {
				t.Fatalf("tools %+v", tools)
			}
			for _, call := range tools {
				if call.Name != tc.tool || call.Status != tc.status || !strings.HasPrefix(call.Title, tc.tool+": touch") {
					t.Errorf("%+v", call)
				}
			}
			for _, d := range out.Denials {
				if d.Name != tc.tool || len(d.Input) == 0 && tc.parser == "claude-stream" {
					t.Errorf("denial %+v", d)
				}
			}
		})
	}
}

// HUB-AGENT-STDIN.
func TestAPromptOnStandardInputIsNeverAFlag(t *testing.T) {
	def := fakeAgent("say", nil)
	def.Args = []string{"run"}
	out, err := openSession(t, def, "").Turn(t.Context(), prompt("--help\n$(id)"), &record{})
	if want := `args=["run"] stdin="--help\n$(id)"`; out.Text != want || err != nil {
		t.Errorf("got %s, %v", out.Text, err)
	}
}

func TestAPromptAsAnArgumentIsNeverAFlag(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--|{prompt}", `args=["run" "--" "--help"] stdin=""`},
		{"-p={prompt}", `args=["run" "-p=--help"] stdin=""`},
	} {
		def := fakeAgent("say", nil)
		def.Args, def.Prompt, def.PromptArgs = []string{"run"}, "arg", strings.Split(tc.args, "|")
		out, err := openSession(t, def, "").Turn(t.Context(), prompt("--help"), &record{})
		if out.Text != tc.want || err != nil {
			t.Errorf("got %s, %v", out.Text, err)
		}
	}
}

func TestPromptsThatCannotBePassedAreRefused(t *testing.T) {
	arg := fakeAgent("say", nil)
	arg.Prompt, arg.PromptArgs = "arg", []string{"-p={prompt}"}
	small := fakeAgent("say", nil)
	small.Limits.MaxPrompt = 10
	for name, tc := range map[string]struct {
		def  runner.Definition
		text string
	}{
		"NUL in an argument":  {arg, "a\x00b"},
		"argument too long":   {arg, strings.Repeat("a", 131072)},
		"longer than a limit": {small, "twelve bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := openSession(t, tc.def, "").Turn(t.Context(), prompt(tc.text), &record{})
			checkError(t, err, runner.CodeLimit, "")
			if out.Status != runner.OutcomeFailed {
				t.Errorf("status %s", out.Status)
			}
		})
	}
}

func TestAProgramThatDoesNotReadItsPromptMayStillAnswer(t *testing.T) {
	out, err := openSession(t, fakeAgent("deaf", nil), "").Turn(t.Context(), prompt(strings.Repeat("x", 1<<20)), &record{})
	if out.Text != "did not listen" || err != nil {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestAMissingProgramIsNotInstalled(t *testing.T) {
	def := fakeAgent("say", nil)
	def.Command = "no-such-agent-here"
	_, err := openSession(t, def, "").Turn(t.Context(), prompt("x"), &record{})
	checkError(t, err, runner.CodeNotInstalled, "no-such-agent-here")
	if p := open(t, def).Probe(t.Context()); p.Stage != runner.StageMissing || p.Err.Remedy != "install the fake" {
		t.Errorf("probe %+v", p)
	}
}

func claudeSessions(t *testing.T) runner.Definition {
	def := fakeAgent("sessions", map[string]string{"FAKE_CAPTURE": t.TempDir()})
	def.Parser = runner.ParserClaudeStream
	def.Session = runner.SessionFlags{New: []string{"--session-id", "{session}"}, Resume: []string{"--resume", "{session}"}}
	def.SystemPrompt = "role"
	return def
}

func TestASecondTurnContinuesTheConversation(t *testing.T) {
	def := claudeSessions(t)
	s := openSession(t, def, "")
	var h record
	for _, want := range []string{"role\n\none|", "role\n\none|two|"} {
		out, err := s.Turn(t.Context(), prompt(want[strings.LastIndexAny(want[:len(want)-1], "\n|")+1:len(want)-1]), &h)
		if out.Text != want || err != nil {
			t.Errorf("got %q, %v, want %q", out.Text, err, want)
		}
	}
	id := eventsOf[runner.SessionStarted](&h)[0].ID

	// A new session continues the conversation, too.
	out, err := openSession(t, def, id).Turn(t.Context(), prompt("three"), &record{})
	if out.Text != "role\n\none|two|three|" || err != nil {
		t.Errorf("got %q, %v", out.Text, err)
	}
}

func TestALostConversationRestartsWithANotice(t *testing.T) {
	var h record
	s := openSession(t, claudeSessions(t), "5669d031-1378-4b72-901e-f93ec44dde03")
	out, err := s.Turn(t.Context(), prompt("one"), &h)
	if out.Text != "role\n\none|" || err != nil {
		t.Errorf("got %q, %v", out.Text, err)
	}
	notices := eventsOf[runner.Notice](&h)
	if len(notices) != 1 || !strings.Contains(notices[0].Text, "5669d031") {
		t.Errorf("notices %q", notices)
	}
	if out, err = s.Turn(t.Context(), prompt("two"), &h); out.Text != "role\n\none|two|" || err != nil {
		t.Errorf("got %q, %v", out.Text, err)
	}
}

func TestAHostileSessionIDIsNeverAnArgument(t *testing.T) {
	out, err := openSession(t, claudeSessions(t), "--dangerously-skip").Turn(t.Context(), prompt("one"), &record{})
	if out.Text != "role\n\none|" || err != nil {
		t.Errorf("got %q, %v", out.Text, err)
	}
}

func TestCancellingEndsTheProgram(t *testing.T) {
	for _, name := range []string{"hang", "polite"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			def := fakeAgent(name, map[string]string{"FAKE_FIRST": "begun"})
			out, err := openSession(t, def, "").Turn(ctx, prompt("x"), &record{seen: func(runner.Event) { cancel() }})
			if out.Status != runner.OutcomeCanceled || err != nil || out.Text != "begun\n" {
				t.Errorf("%+v, %v", out, err)
			}
		})
	}
}

func TestACancelledContextStartsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out, err := openSession(t, fakeAgent("hang", nil), "").Turn(ctx, prompt("x"), &record{})
	if out.Status != runner.OutcomeCanceled || err != nil || out.ExitCode != -1 {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestCloseEndsARunningTurnAndRefusesLaterOnes(t *testing.T) {
	s := openSession(t, fakeAgent("hang", map[string]string{"FAKE_FIRST": "begun"}), "")
	begun, ended := make(chan struct{}), make(chan runner.Outcome)
	go func() {
		out, _ := s.Turn(context.Background(), prompt("x"), &record{seen: func(runner.Event) { close(begun) }})
		ended <- out
	}()
	<-begun
	if _, err := s.Turn(t.Context(), prompt("y"), &record{}); err == nil {
		t.Error("a second turn started during the first")
	} else {
		checkError(t, err, runner.CodeBusy, "")
	}
	closed := make(chan error)
	go func() { closed <- s.Close(context.Background()) }()
	if out := <-ended; out.Status != runner.OutcomeCanceled {
		t.Errorf("%+v", out)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	_, err := s.Turn(t.Context(), prompt("z"), &record{})
	checkError(t, err, runner.CodeBusy, "")
}

// An ended context shortens only the wait for a running turn.
func TestCloseWithoutATurnSucceedsAlsoWithAnEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := openSession(t, fakeAgent("hang", nil), "")
	for range 100 {
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLimitsOnTimeEndTheTurn(t *testing.T) {
	idle := fakeAgent("hang", nil)
	idle.Limits.Idle = 50 * time.Millisecond
	run := fakeAgent("retry", map[string]string{"FAKE_FIRST": "text N"})
	run.Limits.Run = 200 * time.Millisecond
	stalled := fakeAgent("retry", map[string]string{"FAKE_FIRST": `{"type":"error","message":"Reconnecting... N"}`})
	stalled.Parser, stalled.Limits.Idle, stalled.Limits.Retries = runner.ParserCodexJSONL, 200*time.Millisecond, 1<<30
	for name, tc := range map[string]struct {
		def  runner.Definition
		want string
	}{
		"idle":                     {idle, "limits.idle"},
		"run":                      {run, "limits.run"},
		"retries are not activity": {stalled, "limits.idle"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := openSession(t, tc.def, "").Turn(t.Context(), prompt("x"), &record{})
			checkError(t, err, runner.CodeTimeout, tc.want)
			if out.Status != runner.OutcomeFailed {
				t.Errorf("%+v", out)
			}
		})
	}
}

func TestAnAgentThatRetriesRefusedCredentialsForEverIsStopped(t *testing.T) {
	for parser, line := range map[string]string{
		runner.ParserCodexJSONL:   `{"type":"error","message":"Reconnecting... N/5 (unexpected status 401 Unauthorized: no)"}`,
		runner.ParserClaudeStream: `{"type":"system","subtype":"api_retry","attempt":1,"max_retries":10,"error_status":401,"error":"authentication_failed"}`,
	} {
		t.Run(parser, func(t *testing.T) {
			def := fakeAgent("retry", map[string]string{"FAKE_FIRST": line})
			def.Parser = parser
			out, err := openSession(t, def, "").Turn(t.Context(), prompt("x"), &record{})
			checkError(t, err, runner.CodeAuth, "")
			if out.Status != runner.OutcomeAuthRequired {
				t.Errorf("%+v", out)
			}
		})
	}
}

func TestALineThatIsTooLongIsSkippedWithANotice(t *testing.T) {
	def := fakeAgent("long", nil)
	def.Parser, def.Limits.MaxLine = runner.ParserJSONL, 1000
	def.JSONL = &runner.JSONLFields{Type: "type", Text: "text", DoneTypes: []string{"done"}}
	_, err := openSession(t, def, "").Turn(t.Context(), prompt("x"), &record{})
	checkError(t, err, runner.CodeLimit, "line too long")

	def.Args = []string{"done"}
	var h record
	out, err := openSession(t, def, "").Turn(t.Context(), prompt("x"), &h)
	if out.Text != "short" || err != nil || len(eventsOf[runner.Notice](&h)) != 1 {
		t.Errorf("%+v, %v, %v", out, err, h.events)
	}
}

func TestAnAnswerIsCutAtItsLimit(t *testing.T) {
	def := fakeAgent("say", nil)
	def.Limits.MaxOutput = 9
	var h record
	out, err := openSession(t, def, "").Turn(t.Context(), prompt("ü"), &h)
	if out.Text != "args=[] s" || !out.Truncated || err != nil || out.Text != h.text() {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestTextIsNeverCutWithinACharacter(t *testing.T) {
	var h record
	out, err := openSession(t, fakeAgent("utf8", nil), "").Turn(t.Context(), prompt("x"), &h)
	if out.Text != "zwölf€" || err != nil || strings.Contains(h.text(), "\uFFFD") {
		t.Errorf("%q, %v", out.Text, err)
	}
}

func TestNoSecretIsInAnError(t *testing.T) {
	t.Setenv("FAKE_API_KEY", "hunter2hunter2")
	dir := t.TempDir()
	file := filepath.Join(dir, "c")
	if err := os.WriteFile(file+".err", []byte("refused key hunter2hunter2 for https://me:pw@example.org\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	def := fakeAgent("replay", map[string]string{"FAKE_CAPTURE": file, "FAKE_EXIT": "1"})
	def.Env.Allow = append(def.Env.Allow, "FAKE_API_*")
	_, err := openSession(t, def, "").Turn(t.Context(), prompt("x"), &record{})
	if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "me:pw") || !strings.Contains(err.Error(), "refused key") {
		t.Errorf("%v", err)
	}
}

// HUB-AGENT-PROBE.
func TestAProbeHasThreeStages(t *testing.T) {
	base := fakeAgent("probe", nil)
	for name, tc := range map[string]struct {
		change func(*runner.Definition)
		stage  runner.Stage
		known  bool
		code   runner.Code
	}{
		"version only":    {func(*runner.Definition) {}, runner.StageInstalled, false, ""},
		"logged in":       {func(d *runner.Definition) { d.Probe.Auth = []string{"auth", "ok"} }, runner.StageAuthenticated, true, ""},
		"not logged in":   {func(d *runner.Definition) { d.Probe.Auth = []string{"auth", "no"} }, runner.StageInstalled, true, runner.CodeAuth},
		"key in variable": {func(d *runner.Definition) { d.Probe.AuthEnv = []string{fakeEnv} }, runner.StageAuthenticated, true, ""},
		"key in file": {func(d *runner.Definition) { d.Probe.AuthFiles = []string{"/nope", d.Command} },
			runner.StageAuthenticated, true, ""},
		"no key": {func(d *runner.Definition) { d.Probe.AuthEnv = []string{"NOPE"}; d.Probe.AuthFiles = []string{"~/nope"} },
			runner.StageInstalled, true, runner.CodeAuth},
		"too old":      {func(d *runner.Definition) { d.Probe.MinVersion = "2.4" }, runner.StageInstalled, false, runner.CodeConfig},
		"new enough":   {func(d *runner.Definition) { d.Probe.MinVersion = "2.3.4" }, runner.StageInstalled, false, ""},
		"does not run": {func(d *runner.Definition) { d.Probe.Version = []string{"bad"} }, runner.StageMissing, false, runner.CodeAgent},
	} {
		t.Run(name, func(t *testing.T) {
			def := base
			tc.change(&def)
			p := open(t, def).Probe(t.Context())
			if p.Stage != tc.stage || p.AuthKnown != tc.known || p.Latency <= 0 {
				t.Errorf("%+v", p)
			}
			if tc.stage != runner.StageMissing && p.Version != "2.3.4-beta" {
				t.Errorf("version %q", p.Version)
			}
			var err error
			if p.Err != nil {
				err = p.Err
				if strings.Contains(p.Err.Message, "verysecret") {
					t.Error("a secret is in the error")
				}
			}
			checkError(t, err, tc.code, "")
		})
	}
}

func TestAProbeEndsWithItsContext(t *testing.T) {
	def := fakeAgent("probe", nil)
	def.Probe.Version = []string{"hang"}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	p := open(t, def).Probe(ctx)
	if p.Stage != runner.StageUnknown {
		t.Errorf("%+v", p)
	}
	checkError(t, p.Err, runner.CodeTimeout, "")
}
