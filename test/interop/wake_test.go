//go:build interop && linux

package interop_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/stubmodel"
	"github.com/parleyhub/parley/test/interop/rig"
)

// taskID is the id of a task in a message of the hub.
var taskID = regexp.MustCompile(`"?taskId\\*"?:\s*\\*"([^"\\]+)`)

// answersTasks is a model that reads what Parley says is waiting, and answers the task in it with the session's verdict.
func answersTasks(said, result string, used int) string {
	if !strings.Contains(said, "Parley: ") || strings.HasPrefix(said, "Generate") { // a title

		return ""
	}
	m := taskID.FindStringSubmatch(result)
	switch {
	case used == 0:
		return "USE:read_direct_messages {}"
	case used == 1 && m != nil:
		return fmt.Sprintf(`USE:answer_task {"taskId":%q,"text":"VERDICT-%[1]s"}`, m[1])
	}
	return "nothing more to do"
}

// Nobody touches the keyboard: a session that waits for its user is woken by a task, reads it and answers it.
func TestIdleSessionsAreWoken(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"claude", "codex", "tmux"} {
		need(t, command)
	}
	programs := rig.Programs(t.TempDir())
	if err := programs.Build(rig.Parley[0]); err != nil {
		t.Fatal(err)
	}
	o := newOffice(t, programs, "")
	o.start(t)
	d := newDesktopWith(t, o, &stubmodel.Handler{Script: answersTasks})
	d.hookClaude(t)
	d.open(t, "claude-shop", d.shop, "claude", "--allowedTools", "mcp__parley")
	d.open(t, "codex-blog", d.blog, "codex")

	for range 2 {
		toClaude := o.ask(t, "send", "claude-shop", "is this safe?")
		toCodex := o.ask(t, "send", "codex-blog", "is this safe?")
		toClaude(t, "VERDICT-")
		toCodex(t, "VERDICT-")
	}
}

// hookClaude enters Parley's hooks into the settings of Claude Code.
func (d *desktop) hookClaude(t *testing.T) {
	t.Helper()
	hooks := map[string]any{}
	for _, event := range []string{"SessionStart", "SessionEnd", "UserPromptSubmit", "Stop", "FileChanged"} {
		hook := map[string]any{"type": "command", "command": fmt.Sprintf("%q hook claude %s", d.parley, event), "timeout": 10}
		if event == "FileChanged" {
			hook["asyncRewake"], hook["rewakeMessage"], hook["rewakeSummary"] = true, "Parley:", "Parley: something is waiting"
		}
		hooks[event] = []any{map[string]any{"hooks": []any{hook}}}
	}
	settings, err := json.Marshal(map[string]any{"hooks": hooks})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(d.Dir, ".claude", "settings.json"), string(settings))
}
