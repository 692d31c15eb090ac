package stubmodel_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/stubmodel"
)

func TestSettingsNameTheModelAndKeepToTheHome(t *testing.T) {
	const url = "http://127.0.0.1:1"
	for agent, file := range map[string]string{"claude-code": "", "claude-agent-acp": "", "gemini": ".gemini/settings.json", "codex": ".codex/config.toml", "codex-acp": ".codex/config.toml"} {
		home := t.TempDir()
		env, err := stubmodel.Settings(agent, url, home)
		if err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		for _, v := range env {
			said.WriteString(v + "\n")
		}
		if file != "" {
			text, err := os.ReadFile(filepath.Join(home, filepath.FromSlash(file)))
			if err != nil {
				t.Fatal(err)
			}
			said.Write(text)
		}
		if env["HOME"] != home || !strings.Contains(said.String(), url) {
			t.Errorf("%s: %v\n%s", agent, env, said.String())
		}
	}
}
