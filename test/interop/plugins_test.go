//go:build interop

package interop_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/test/interop/rig"
)

// pluginTime bounds a call of a CLI, which may start slowly on a busy machine.
const pluginTime = 4 * time.Minute

// The CLIs' own plugin managers take the plugins of the tree, from a local path and without a network, and list them.
func TestThePluginManagersInstallThePlugins(t *testing.T) {
	modules := rig.Modules(t, "@anthropic-ai/claude-code", "@openai/codex", "@google/gemini-cli")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, cli := range []struct {
		name string
		call [][]string
		want string // in the answer of the last call
	}{
		{"claude", [][]string{
			{"plugin", "validate", filepath.Join(root, "plugins/claude")}, {"plugin", "marketplace", "add", root}, {"plugin", "install", "parley@parleyhub"}, {"plugin", "list"},
		}, "parley@parleyhub"},
		{"codex", [][]string{{"plugin", "marketplace", "add", root}, {"plugin", "add", "parley@parleyhub"}, {"mcp", "list"}}, "@parleyhub/parley mcp"},
		{"gemini", [][]string{
			{"extensions", "install", filepath.Join(root, "plugins/gemini"), "--consent"}, {"extensions", "list"},
		}, "parley (1.0.0)"},
	} {
		t.Run(cli.name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			if err := os.Mkdir(filepath.Join(home, ".codex"), 0o700); err != nil {
				t.Fatal(err)
			}
			var out []byte
			for _, args := range cli.call {
				ctx, cancel := context.WithTimeout(t.Context(), pluginTime)
				cmd := exec.CommandContext(ctx, filepath.Join(modules, ".bin", cli.name), args...)
				cmd.Dir = home
				cmd.Stdin = strings.NewReader("y\n") // Gemini CLI asks whether the directory is trusted
				cmd.Env = append(os.Environ(), "HOME="+home, "CODEX_HOME="+filepath.Join(home, ".codex"), "CLAUDE_CONFIG_DIR="+filepath.Join(home, ".claude"), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1")
				var err error
				out, err = cmd.CombinedOutput()
				cancel()
				if err != nil {
					t.Fatalf("%q: %v\n%s", args, err, out)
				}
			}
			if !strings.Contains(string(out), cli.want) {
				t.Errorf("no %q in\n%s", cli.want, out)
			}
		})
	}
}
