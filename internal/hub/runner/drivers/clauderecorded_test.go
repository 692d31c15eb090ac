package drivers_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
	test "github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

// Indices of the turns in the recording.
const (
	claudeAllowed = iota
	claudeDenied
	claudeInterrupted
	claudeRemember
)

// claudeRecorded replays the handshake and one turn of a conversation recorded with
// claude 2.1.329.
func claudeRecorded(t *testing.T, turn int) *duplex.Session {
	t.Helper()
	handshake, turns := test.Split(test.Load(t, "testdata/claude-bidir.jsonl"), "user")
	def := test.Definition(t, runner.DriverClaudeStdio, nil)
	return test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		if err := a.Replay(append(handshake, turns[turn]...)); err != nil {
			t.Error(err)
		}
		a.Wait()
	}, nil)
}

func TestClaudeRecordedPermissionAllowed(t *testing.T) {
	s := claudeRecorded(t, claudeAllowed)
	h := &test.Handler{Answer: test.Choose(runner.AllowOnce, "")}
	out, err := s.Turn(t.Context(), test.Prompt("x"), h)
	if err != nil || out.Status != runner.OutcomeCompleted {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	const want = "tool said: \"(Bash completed with no output)\""
	if out.Text != want || h.Text() != want {
		t.Errorf("text %q, streamed %q", out.Text, h.Text())
	}
	if len(out.Denials) != 0 {
		t.Errorf("denials %v", out.Denials)
	}
	wantUsage := runner.Usage{InputTokens: 20, OutputTokens: 24, CostUSD: 0.0005600000000000001}
	if diff := cmp.Diff(wantUsage, out.Usage); diff != "" {
		t.Error(diff)
	}
	if got := h.Events()[0]; got != (runner.SessionStarted{ID: "3565fbd0-a576-4e96-af3b-e358cbfc7d2c", Model: "claude-opus-5-5"}) {
		t.Errorf("first event %v", got)
	}
	tool := h.Tool("toolu_stub000120")
	if tool.Name != "Bash" || tool.Status != runner.ToolCompleted || tool.Output != "(Bash completed with no output)" {
		t.Errorf("tool %+v", tool)
	}
	asked := h.Asked()
	if len(asked) != 1 {
		t.Fatalf("asked %v", asked)
	}
	wantOptions := []runner.PermissionOption{
		{ID: "allow", Name: "Allow", Kind: runner.AllowOnce},
		{ID: "allow-session", Name: "Allow for this session", Kind: runner.AllowAlways},
		{ID: "deny", Name: "Deny", Kind: runner.RejectOnce},
	}
	if diff := cmp.Diff(wantOptions, asked[0].Options); diff != "" {
		t.Error(diff)
	}
}

func TestClaudeRecordedPermissionDeniedIsListed(t *testing.T) {
	s := claudeRecorded(t, claudeDenied)
	h := &test.Handler{Answer: test.Choose(runner.RejectOnce, "user said no")}
	out, err := s.Turn(t.Context(), test.Prompt("x"), h)
	if err != nil || out.Status != runner.OutcomeCompleted {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if len(out.Denials) != 1 || out.Denials[0].Name != "Bash" || out.Denials[0].Status != runner.ToolDenied {
		t.Errorf("denials %+v", out.Denials)
	}
	// The agent reports the denied tool call as failed; its status stays denied.
	if got := h.Tool("toolu_stub000123").Status; got != runner.ToolDenied {
		t.Errorf("status %q", got)
	}
}

func TestClaudeRecordedInterruptEndsTheTurn(t *testing.T) {
	s := claudeRecorded(t, claudeInterrupted)
	h := &test.Handler{}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		h.AwaitText("tick 9")
		cancel()
	}()
	out, err := s.Turn(ctx, test.Prompt("SLOW"), h)
	if err != nil || out.Status != runner.OutcomeCanceled {
		t.Fatalf("outcome %+v, %v", out, err)
	}
}

func TestClaudeRecordedSecondTurn(t *testing.T) {
	s := claudeRecorded(t, claudeRemember)
	out, err := s.Turn(t.Context(), test.Prompt("REMEMBER"), &test.Handler{})
	if err != nil || out.Text != "user turns seen: 4" {
		t.Fatalf("outcome %+v, %v", out, err)
	}
}
