package install_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/app/install"
)

// overruled returns what keeps a program's hooks from running.
func (d home) overruled(t *testing.T, name string) string {
	t.Helper()
	p, err := install.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, o := range p.Overruled(d.Place) {
		if o.Remedy == "" {
			t.Errorf("%s has no remedy", o.Message)
		}
		all = append(all, o.Message)
	}
	return strings.Join(all, "\n")
}

func TestSettingsThatSwitchHooksOffAreFound(t *testing.T) {
	d := newHome(t)
	t.Chdir(d.Home)
	for _, name := range []string{"claude", "gemini"} {
		if got := d.overruled(t, name); got != "" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := d.overruled(t, "codex"); !strings.Contains(got, "has not trusted the hooks") {
		t.Errorf("codex: %s", got)
	}
	d.write(t, ".claude/settings.json", `{"disableAllHooks": true, /* mine */}`)
	d.write(t, ".claude/settings.local.json", `{"disableAllHooks": true}`)
	d.write(t, ".gemini/settings.json", `{"hooksConfig": {"enabled": false}}`)
	d.write(t, ".codex/config.toml", "[hooks.state.\""+filepath.ToSlash(filepath.Join(d.Home, ".codex", "hooks.json"))+":stop:0:0\"]\ntrusted_hash = \"x\"\n")
	if got := d.overruled(t, "claude"); !strings.Contains(got, "settings.json") || !strings.Contains(got, "settings.local.json") {
		t.Errorf("claude: %s", got)
	}
	if got := d.overruled(t, "gemini"); !strings.Contains(got, "switches all hooks off") {
		t.Errorf("gemini: %s", got)
	}
	if got := d.overruled(t, "codex"); got != "" {
		t.Errorf("codex: %s", got)
	}
}
