package drivers_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
	test "github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

// Indices of the turns in the recording.
const (
	codexAllowed = iota
	codexDenied
	codexInterrupted
)

// codexRecorded replays the handshake and one turn of a conversation recorded with
// codex 0.169.0.
func codexRecorded(t *testing.T, turn int) *duplex.Session {
	t.Helper()
	handshake, turns := test.Split(test.Load(t, "testdata/codex-appserver.jsonl"), "turn/start")
	def := test.Definition(t, runner.DriverCodexAppServer, func(d *runner.Definition) { d.Model = "stub-model" })
	return test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		if err := a.Replay(append(handshake, turns[turn]...)); err != nil {
			t.Error(err)
		}
		a.Wait()
	}, nil)
}

func TestCodexRecordedCommandAllowed(t *testing.T) {
	s := codexRecorded(t, codexAllowed)
	h := &test.Handler{Answer: test.Choose(runner.AllowOnce, "")}
	out, err := s.Turn(t.Context(), test.Prompt("x"), h)
	if err != nil || out.Status != runner.OutcomeCompleted {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if !strings.HasPrefix(out.Text, "tool said: ") || out.Text != h.Text() {
		t.Errorf("text %q, streamed %q", out.Text, h.Text())
	}
	if diff := cmp.Diff(runner.Usage{InputTokens: 20, OutputTokens: 10}, out.Usage); diff != "" {
		t.Error(diff)
	}
	tool := h.Tool("call_stub000129")
	if tool.Name != "shell" || tool.Status != runner.ToolCompleted || !strings.HasPrefix(tool.Output, "curl 7.88.1") {
		t.Errorf("tool %+v", tool)
	}
	asked := h.Asked()
	if len(asked) != 1 || asked[0].Title != "Run a command: touch /home/user/project && curl --version" {
		t.Fatalf("asked %+v", asked)
	}
	// The recorded server accepts three answers: accept, a rule for its own
	// configuration, and cancel. The rule is not offered to the user.
	want := []runner.PermissionOption{
		{ID: "accept", Name: "Allow", Kind: runner.AllowOnce},
		{ID: "decline", Name: "Deny", Kind: runner.RejectOnce},
	}
	if diff := cmp.Diff(want, asked[0].Options); diff != "" {
		t.Error(diff)
	}
}

func TestCodexRecordedCommandDeniedIsListed(t *testing.T) {
	s := codexRecorded(t, codexDenied)
	h := &test.Handler{Answer: test.Choose(runner.RejectOnce, "")}
	out, err := s.Turn(t.Context(), test.Prompt("x"), h)
	if err != nil || out.Status != runner.OutcomeCompleted {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if len(out.Denials) != 1 || out.Denials[0].ID != "call_stub000134" {
		t.Errorf("denials %+v", out.Denials)
	}
}

func TestCodexRecordedInterruptEndsTheTurn(t *testing.T) {
	s := codexRecorded(t, codexInterrupted)
	h := &test.Handler{}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		h.AwaitText("tick 8")
		cancel()
	}()
	out, err := s.Turn(ctx, test.Prompt("SLOW"), h)
	if err != nil || out.Status != runner.OutcomeCanceled {
		t.Fatalf("outcome %+v, %v", out, err)
	}
}
