package presence_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/parleyhub/parley/internal/sessions/presence"
)

// env returns the environment of a hook.
func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestTheProcessOfAHook(t *testing.T) {
	own := env(map[string]string{"CLAUDE_PID": strconv.Itoa(os.Getpid())})
	if p := presence.ProcessOf(presence.Claude, own); p != presence.Running(os.Getpid()) {
		t.Errorf("Claude Code names %+v", p)
	}
	if p := presence.ProcessOf(presence.Codex, own); p != (presence.Process{}) {
		t.Errorf("Codex has %+v", p)
	}
	for _, pid := range []string{"", "0", "x", "99999999"} {
		if p := presence.ProcessOf(presence.Claude, env(map[string]string{"CLAUDE_PID": pid})); p != presence.SessionOf(os.Getpid()) {
			t.Errorf("with the process %q it is %+v", pid, p)
		}
	}
}

func TestASessionWithoutATerminal(t *testing.T) {
	for entry, want := range map[string]bool{"": false, "cli": false, "sdk-cli": true} {
		if presence.Headless(presence.Claude, env(map[string]string{"CLAUDE_CODE_ENTRYPOINT": entry})) != want {
			t.Errorf("%q: %v", entry, !want)
		}
	}
	if presence.Headless(presence.Gemini, env(map[string]string{"CLAUDE_CODE_ENTRYPOINT": "sdk-cli"})) {
		t.Error("the variable of another program counts")
	}
}
