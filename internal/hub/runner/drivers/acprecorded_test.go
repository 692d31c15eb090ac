package drivers_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
	test "github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

// acpRecorded replays the handshake and one turn of a recorded conversation.
func acpRecorded(t *testing.T, agent string, turn int) *duplex.Session {
	t.Helper()
	handshake, turns := test.Split(test.Load(t, "testdata/acp/"+agent+".jsonl"), "session/prompt")
	script := untilAnswered(handshake, 2)
	if turn >= 0 {
		script = append(handshake, untilAnswered(turns[turn], 1)...)
	}
	def := test.Definition(t, runner.DriverACP, nil)
	return test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		if err := a.Replay(script); err != nil {
			t.Error(err)
		}
		a.Wait()
	}, nil)
}

// untilAnswered removes the lines after the agent's n-th answer: the host may have ended
// the program before they are exchanged.
func untilAnswered(script []test.Line, n int) []test.Line {
	for i, l := range script {
		if !l.FromHost && l.JSON["method"] == nil {
			if n--; n == 0 {
				return script[:i+1]
			}
		}
	}
	return script
}

// Indices of the turns in the recordings.
const (
	acpHello = iota
	acpAllowed
	acpDenied
	acpWrite
	acpInterrupted
	acpCancelledWhileAsking
	acpRemember
	acpError
)

func TestACPRecordedTurns(t *testing.T) {
	const hello = "def hello():\n    print(\"Hello from the stub model\")\n"
	tests := map[string]struct {
		agent   string
		turn    int
		answer  runner.PermissionKind
		text    string // the answer; with … at its end, the beginning of the answer
		usage   runner.Usage
		asked   string
		denials int
	}{
		"gemini answers":          {agent: "gemini", turn: acpHello, text: hello, usage: runner.Usage{InputTokens: 10, OutputTokens: 5}},
		"gemini is allowed":       {agent: "gemini", turn: acpAllowed, answer: runner.AllowOnce, text: "tool said: …", usage: runner.Usage{InputTokens: 20, OutputTokens: 10}, asked: "Allow touch /home/user/project?"},
		"gemini is denied":        {agent: "gemini", turn: acpDenied, answer: runner.RejectOnce, text: "tool said: …", usage: runner.Usage{InputTokens: 20, OutputTokens: 10}, asked: "Allow touch /home/user/project?", denials: 1},
		"gemini writes":           {agent: "gemini", turn: acpWrite, answer: runner.AllowOnce, text: "tool said: …", usage: runner.Usage{InputTokens: 20, OutputTokens: 10}, asked: "Allow Writing to acp-gemini.py?"},
		"gemini remembers":        {agent: "gemini", turn: acpRemember, text: "user turns seen: 6", usage: runner.Usage{InputTokens: 10, OutputTokens: 5}},
		"claude answers":          {agent: "claude", turn: acpHello, text: hello, usage: runner.Usage{InputTokens: 10, OutputTokens: 12, CostUSD: 0.0005600000000000001}},
		"claude is allowed":       {agent: "claude", turn: acpAllowed, answer: runner.AllowOnce, text: "tool said: …", usage: runner.Usage{InputTokens: 20, OutputTokens: 24, CostUSD: 0.0014000000000000002}, asked: "Allow touch /home/user/project?"},
		"claude is denied":        {agent: "claude", turn: acpDenied, answer: runner.RejectOnce, text: "tool said: …", usage: runner.Usage{InputTokens: 20, OutputTokens: 24, CostUSD: 0.00252}, asked: "Allow touch /home/user/project?", denials: 1},
		"codex answers":           {agent: "codex", turn: acpHello, text: hello, usage: runner.Usage{InputTokens: 10, OutputTokens: 5}},
		"codex runs its tool":     {agent: "codex", turn: acpAllowed, text: "tool said: …", usage: runner.Usage{InputTokens: 20, OutputTokens: 10}},
		"codex remembers":         {agent: "codex", turn: acpRemember, text: "user turns seen: 8", usage: runner.Usage{InputTokens: 10, OutputTokens: 5}},
		"codex reviews by itself": {agent: "codex-esc", turn: acpAllowed, text: "tool said: …", usage: runner.Usage{InputTokens: 20, OutputTokens: 10}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := &test.Handler{Answer: test.Choose(tt.answer, "")}
			out, err := acpRecorded(t, tt.agent, tt.turn).Turn(t.Context(), test.Prompt("x"), h)
			if err != nil || out.Status != runner.OutcomeCompleted {
				t.Fatalf("outcome %+v, %v", out, err)
			}
			if beginning, cut := strings.CutSuffix(tt.text, "…"); out.Text != tt.text && (!cut || !strings.HasPrefix(out.Text, beginning)) {
				t.Errorf("text %q", out.Text)
			}
			if h.Text() != out.Text {
				t.Errorf("streamed %q, outcome has %q", h.Text(), out.Text)
			}
			if out.Usage != tt.usage {
				t.Errorf("usage %+v", out.Usage)
			}
			if len(out.Denials) != tt.denials {
				t.Errorf("denials %+v", out.Denials)
			}
			asked := ""
			for _, req := range h.Asked() {
				asked += req.Title
			}
			if asked != tt.asked {
				t.Errorf("asked %q", asked)
			}
		})
	}
}

func TestACPRecordedCancel(t *testing.T) {
	for _, agent := range []string{"gemini", "claude", "codex"} {
		t.Run(agent, func(t *testing.T) {
			h := &test.Handler{}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				h.AwaitText("tick 8")
				cancel()
			}()
			out, err := acpRecorded(t, agent, acpInterrupted).Turn(ctx, test.Prompt("SLOW"), h)
			if err != nil || out.Status != runner.OutcomeCanceled {
				t.Fatalf("outcome %+v, %v", out, err)
			}
		})
	}
}

// gemini ends a cancelled turn only after its open permission request was answered as
// cancelled; without that answer the replay blocks.
func TestACPRecordedCancelAnswersAnOpenPermissionRequest(t *testing.T) {
	for _, agent := range []string{"gemini", "claude"} {
		t.Run(agent, func(t *testing.T) {
			h := &test.Handler{}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				h.Await(func(_ []runner.Event, asked []runner.PermissionRequest) bool { return len(asked) > 0 })
				cancel()
			}()
			out, err := acpRecorded(t, agent, acpCancelledWhileAsking).Turn(ctx, test.Prompt("x"), h)
			if err != nil || out.Status != runner.OutcomeCanceled {
				t.Fatalf("outcome %+v, %v", out, err)
			}
			if len(out.Denials) != 0 {
				t.Errorf("denials %+v, want none", out.Denials)
			}
		})
	}
}

func TestACPRecordedErrors(t *testing.T) {
	tests := map[string]struct {
		agent string
		turn  int
		want  runner.Code
		text  string
	}{
		"gemini: an RPC error":        {"gemini", acpError, runner.CodeAgent, "Test Agent reported an error: stub says 400"},
		"claude: an RPC error":        {"claude", acpError, runner.CodeAgent, "Test Agent reported an error: Internal error: API Error: 400 stub says 400"},
		"codex: text before end_turn": {"codex", acpError, runner.CodeAgent, "Test Agent reported an error: stub says 400"},
		"claude without credentials":  {"nocred-claude", acpHello, runner.CodeAuth, "Test Agent is not logged in: Authentication required; log in with: test-agent login"},
		"codex without credentials":   {"nocred-codex", -1, runner.CodeAuth, "Test Agent is not logged in: Authentication required; log in with: test-agent login"},
		"gemini without credentials":  {"nocred-gemini", -1, runner.CodeAuth, "Test Agent is not logged in: Gemini API key is missing or not configured.; log in with: test-agent login"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := acpRecorded(t, tt.agent, tt.turn).Turn(t.Context(), test.Prompt("x"), &test.Handler{})
			var e *runner.Error
			if !errors.As(err, &e) || e.Code != tt.want || e.Error() != tt.text {
				t.Fatalf("outcome %+v, error %v", out, err)
			}
			want := runner.OutcomeFailed
			if tt.want == runner.CodeAuth {
				want = runner.OutcomeAuthRequired
			}
			if out.Status != want {
				t.Errorf("status %s", out.Status)
			}
		})
	}
}

// codex-acp sends its warnings as text of the answer.
func TestACPRecordedWarningsOfCodexAreNotices(t *testing.T) {
	h := &test.Handler{}
	if _, err := acpRecorded(t, "codex", acpHello).Turn(t.Context(), test.Prompt("x"), h); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(h.Notices(), "Model metadata for `stub-model` not found") {
		t.Errorf("notices %q", h.Notices())
	}
}
