//go:build unix

package cli_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
)

func TestTheGuardRefusesClaimedFiles(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	dir := filepath.Join(d.root, "a")
	git := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	if out := d.parley("guard", "install", "--format", "json"); !strings.Contains(out, `"code":"guard-no-repository"`) || !strings.Contains(out, `"remedy"`) {
		t.Errorf("outside a repository: %s", out)
	}
	git("init", "-q")
	for _, name := range []string{"main.go", "free.go"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("package main\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git("add", "free.go")
	if out := d.parley("guard", "check"); out != "" {
		t.Errorf("without a hub: %s", out)
	}
	for _, what := range []string{"done", "nothing to change"} {
		if out := d.parley("guard", "install"); !strings.Contains(out, "pre-commit: "+what) {
			t.Errorf("install: %s", out)
		}
	}
	s := d.openSession("refactorer")
	t.Cleanup(func() { s.end() })
	if said := s.say("claim_files", `{"paths":["main.go"],"why":"renaming"}`); !strings.HasPrefix(said, "You have") {
		t.Fatal(said)
	}
	if out := d.parley("guard", "check"); out != "" {
		t.Errorf("a file that is free: %s", out)
	}
	for i := range dialect.MaxFiles { // more files than one request names, and the claimed one is the last
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d.txt", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git("add", ".")
	out := d.parley("guard", "check")
	for _, want := range []string{`"main.go": the agent refactorer has claimed it until`, `"renaming"`, "send_direct_message", "git commit --no-verify"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("no %s in %s", want, out)
		}
	}
	if said := s.say("release_files", `{}`); !strings.HasPrefix(said, "Released") {
		t.Fatal(said)
	}
	if out := d.parley("guard", "check"); out != "" {
		t.Errorf("a file that was released: %s", out)
	}
	for _, what := range []string{"done", "nothing to change"} {
		if out := d.parley("guard", "uninstall"); !strings.Contains(out, "pre-commit: "+what) {
			t.Errorf("uninstall: %s", out)
		}
	}
}
