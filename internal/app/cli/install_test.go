//go:build unix

package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInstallShowsItsChangesAndUninstallTakesThemOut(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	run := func(args ...string) (string, error) {
		out, err := d.command("parley", "a", args...).CombinedOutput()
		return string(out), err
	}
	settings := filepath.Join(d.root, "home", ".claude", "settings.json")
	if out, err := run("install", "claude", "--dry-run"); err != nil || !strings.Contains(out, " hook claude FileChanged") || !strings.Contains(out, "nothing was changed") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("install", "claude"); err == nil || !strings.Contains(out, "--yes") {
		t.Errorf("without a terminal: %v: %s", err, out)
	}
	if _, err := os.Stat(settings); err == nil {
		t.Error("a file was written")
	}
	if out, err := run("install", "claude", "codex", "gemini", "--yes"); err != nil || strings.Count(out, ": done") != 3 || !strings.Contains(out, "whether you trust the hooks") ||
		strings.Count(out, "name: parley\n") != 1 || strings.Count(out, "  as in ") != 2 {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("install", "claude", "--yes", "--format", "json"); err != nil || !strings.Contains(out, `"changes": []`) && !strings.Contains(out, `"changes":[]`) {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("uninstall", "--yes"); err != nil || strings.Count(out, ": done") != 3 {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("uninstall", "--yes"); err != nil || strings.Count(out, "nothing to change") != 6 {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := os.Stat(settings); err == nil {
		t.Error("the file is there")
	}
	if out, err := run("install", "emacs"); err == nil || !strings.Contains(out, "known are agy, claude, codex, gemini, opencode, vibe") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("install", "codex", "--project", "--yes"); err == nil || !strings.Contains(out, "leave out --project") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("uninstall", "--project", "--yes"); err != nil || strings.Count(out, "nothing to change") != 5 || strings.Contains(out, "Codex") {
		t.Errorf("all programs but Codex, which has no configuration of a project: %v: %s", err, out)
	}
}
