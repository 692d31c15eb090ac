package guard_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/app/guard"
)

// repository is a git repository, and a program in the place of Parley that refuses if a file "held" is there.
type repository struct {
	t            *testing.T
	dir, program string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	for name, value := range map[string]string{"GIT_CONFIG_GLOBAL": os.DevNull, "GIT_CONFIG_SYSTEM": os.DevNull, "GIT_AUTHOR_NAME": "ann",
		"GIT_AUTHOR_EMAIL": "ann@example.com", "GIT_COMMITTER_NAME": "ann", "GIT_COMMITTER_EMAIL": "ann@example.com"} {
		t.Setenv(name, value)
	}
	root := t.TempDir()
	r := &repository{t, filepath.Join(root, "a shop"), filepath.Join(root, "it's parley")}
	r.write(r.program, "#!/bin/sh\ntest \"$1 $2\" = 'guard check' || exit 9\ntest ! -e held\n", 0o755)
	r.git(root, "init", "-q", r.dir)
	return r
}

func (r *repository) write(path, data string, mode fs.FileMode) {
	r.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(data), mode), os.Chmod(path, mode)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *repository) git(dir string, args ...string) {
	r.t.Helper()
	if out, err := r.run(dir, args...); err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

func (r *repository) run(dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(r.t.Context(), "git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// commits reports whether git makes a commit in a work tree.
func (r *repository) commits(dir string) bool {
	_, err := r.run(dir, "commit", "-q", "--allow-empty", "-m", "x")
	return err == nil
}

func (r *repository) install() guard.Change {
	r.t.Helper()
	c, err := guard.Install(r.t.Context(), r.dir, r.program)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// hooks returns the hooks' contents and modes.
func (r *repository) hooks(dir string) map[string]string {
	r.t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		info, infoErr := e.Info()
		if err = errors.Join(err, infoErr); err != nil {
			r.t.Fatal(err)
		}
		all[e.Name()] = info.Mode().String() + string(data)
	}
	return all
}

func TestTheGuardRefusesAndKeepsAHook(t *testing.T) {
	r := newRepository(t)
	hooks := filepath.Join(r.dir, ".git", "hooks")
	r.write(filepath.Join(hooks, "pre-commit"), "#!/bin/sh\n\necho x >> called # no line break at the end", 0o711)
	before := r.hooks(hooks)
	c := r.install()
	if !c.Changed || c.Kept == "" || c.Path != filepath.Join(hooks, "pre-commit") {
		t.Errorf("%+v", c)
	}
	if again := r.install(); again.Changed {
		t.Error("a repetition changes something")
	}
	if !r.commits(r.dir) {
		t.Error("nothing is held, and nothing is committed")
	}
	r.write(filepath.Join(r.dir, "held"), "", 0o600)
	if r.commits(r.dir) {
		t.Error("a file that is held is committed")
	}
	if _, err := r.run(r.dir, "commit", "-q", "--allow-empty", "--no-verify", "-m", "x"); err != nil {
		t.Error("a person cannot pass")
	}
	if called, err := os.ReadFile(filepath.Join(r.dir, "called")); err != nil || string(called) != "x\nx\n" {
		t.Errorf("the earlier hook was called %q, %v", called, err)
	}
	r.write(filepath.Join(hooks, "pre-commit.parley-kept"), "#!/bin/sh\nexit 1\n", 0o755)
	if err := os.Remove(filepath.Join(r.dir, "held")); err != nil || r.commits(r.dir) {
		t.Error("the earlier hook cannot refuse", err)
	}
	r.write(filepath.Join(hooks, "pre-commit.parley-kept"), before["pre-commit"][len("-rwx--x--x"):], 0o711)
	if c, err := guard.Uninstall(t.Context(), r.dir); err != nil || !c.Changed || !maps.Equal(r.hooks(hooks), before) {
		t.Errorf("afterwards %+v, %v: %v", c, err, r.hooks(hooks))
	}
	if c, err := guard.Uninstall(t.Context(), r.dir); err != nil || c.Changed {
		t.Errorf("a repetition: %+v, %v", c, err)
	}
}

func TestHooksPathWorkTreesAndAMissingProgram(t *testing.T) {
	r := newRepository(t)
	r.git(r.dir, "commit", "-q", "--allow-empty", "-m", "x")
	tree := filepath.Join(filepath.Dir(r.dir), "tree")
	r.git(r.dir, "worktree", "add", "-q", tree)
	c, err := guard.Install(t.Context(), tree, r.program)
	if err != nil || c.Path != filepath.Join(r.dir, ".git", "hooks", "pre-commit") {
		t.Fatalf("%+v, %v", c, err)
	}
	r.write(filepath.Join(tree, "held"), "", 0o600)
	if r.commits(tree) {
		t.Error("a file that is held is committed in a work tree")
	}
	if c, err := guard.Install(t.Context(), r.dir, filepath.Join(r.dir, "gone")); err != nil || !c.Changed {
		t.Errorf("another program: %+v, %v", c, err)
	}
	if !r.commits(tree) {
		t.Error("nothing is committed without the program")
	}
	if _, err := guard.Uninstall(t.Context(), tree); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(r.dir, "my hooks")
	r.git(r.dir, "config", "core.hooksPath", own)
	if c := r.install(); c.Path != filepath.Join(own, "pre-commit") || len(r.hooks(own)) != 1 {
		t.Errorf("with core.hooksPath %+v", c)
	}
	r.write(filepath.Join(r.dir, "held"), "", 0o600)
	if r.commits(r.dir) {
		t.Error("a file that is held is committed with core.hooksPath")
	}
	if _, err := guard.Uninstall(t.Context(), r.dir); err != nil || len(r.hooks(own)) != 0 {
		t.Error("it is not taken out", err)
	}
}

// Another program may replace the hook in between: its hook stays, and so does the one that was kept.
func TestAHookThatWasReplacedStays(t *testing.T) {
	r := newRepository(t)
	hook := filepath.Join(r.dir, ".git", "hooks", "pre-commit")
	r.write(hook, "first", 0o755)
	r.install()
	r.write(hook, "second", 0o755)
	if _, err := guard.Uninstall(t.Context(), r.dir); err == nil || !strings.Contains(err.Error(), "was replaced") {
		t.Error("uninstall:", err)
	}
	if _, err := guard.Install(t.Context(), r.dir, r.program); err == nil || !strings.Contains(err.Error(), "was replaced") {
		t.Error("install:", err)
	}
	if data, err := os.ReadFile(hook); err != nil || string(data) != "second" {
		t.Errorf("the hook is %q, %v", data, err)
	}
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}
	if c, err := guard.Uninstall(t.Context(), r.dir); err != nil || !c.Changed {
		t.Errorf("%+v, %v", c, err)
	}
	if data, err := os.ReadFile(hook); err != nil || string(data) != "first" {
		t.Errorf("the first hook is %q, %v", data, err)
	}
	if err := errors.Join(os.Remove(hook), os.Mkdir(hook, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := guard.Install(t.Context(), r.dir, r.program); err == nil {
		t.Error("a directory is replaced")
	}
	if _, err := guard.Install(t.Context(), t.TempDir(), r.program); err == nil || errors.Unwrap(err) == nil || !strings.Contains(err.Error(), "no git repository") {
		t.Error("without a repository:", err)
	}
}

func TestTheFilesOfACommit(t *testing.T) {
	r := newRepository(t)
	t.Chdir(r.dir)
	r.write(filepath.Join(r.dir, "src", "a b.go"), "x", 0o600)
	r.git(r.dir, "add", ".")
	top, err := filepath.EvalSymlinks(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	files, err := guard.Staged(t.Context())
	if err != nil || len(files) != 1 || files[0] != filepath.Join(top, "src", "a b.go") {
		t.Errorf("the files are %q, %v", files, err)
	}
	t.Chdir(t.TempDir())
	if _, err := guard.Staged(t.Context()); err == nil {
		t.Error("there are files without a repository")
	}
}
