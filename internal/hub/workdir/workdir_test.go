package workdir_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/hub/workdir"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func realDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func repository(t *testing.T) string {
	t.Helper()
	repo := realDir(t)
	git(t, repo, "init", "-q", "-b", "main")
	write(t, filepath.Join(repo, "part", "file.txt"), "one\n")
	git(t, repo, "add", ".")
	git(t, repo, "commit", "-q", "-m", "begin")
	return repo
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func prepare(t *testing.T, d *workdir.Dirs, agent, context string, spec workdir.Spec) string {
	t.Helper()
	dir, err := d.Prepare(t.Context(), agent, context, spec)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() || !filepath.IsAbs(dir) {
		t.Fatalf("%s: %v", dir, err)
	}
	return dir
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestAContextHasItsOwnDirectoryWhateverItsID(t *testing.T) {
	data := realDir(t)
	d := workdir.New(data, nil)
	seen := make(map[string]bool)
	for _, id := range []string{"a", "../../etc", "", "a/b", strings.Repeat("x", 5000), "\x00"} {
		dir := prepare(t, d, "agent", id, workdir.Spec{})
		if filepath.Dir(dir) != filepath.Join(data, "contexts") || seen[dir] {
			t.Errorf("context %q works in %s", id, dir)
		}
		seen[dir] = true
		if other := prepare(t, d, "another", id, workdir.Spec{Policy: workdir.Context}); other != dir {
			t.Errorf("two agents of a context work in %s and %s", dir, other)
		}
	}
	if info, _ := os.Stat(filepath.Join(data, "contexts")); info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", info.Mode())
	}
}

func TestAContextsDirectoryIsRemovedWithAllThatIsInIt(t *testing.T) {
	d := workdir.New(realDir(t), nil)
	dir := prepare(t, d, "a", "c", workdir.Spec{})
	kept := prepare(t, d, "a", "other", workdir.Spec{})
	outside := filepath.Join(realDir(t), "file")
	write(t, outside, "x")
	write(t, filepath.Join(dir, "deep", "file"), "x")
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing
		if err := d.Remove(t.Context(), "a", "c", workdir.Spec{}); err != nil {
			t.Error(err)
		}
	}
	if exists(dir) || !exists(kept) || !exists(outside) {
		t.Error("too little or too much was removed")
	}
}

func TestALinkInPlaceOfAContextsDirectoryIsRefused(t *testing.T) {
	data, elsewhere := realDir(t), realDir(t)
	d := workdir.New(data, nil)
	dir := prepare(t, d, "a", "c", workdir.Spec{})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, dir); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Prepare(t.Context(), "a", "c", workdir.Spec{}); err == nil {
		t.Errorf("got %s", got)
	}
	inside := prepare(t, d, "a", "other", workdir.Spec{})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Base(inside), dir); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Prepare(t.Context(), "a", "c", workdir.Spec{}); !errors.Is(err, workdir.ErrOutside) {
		t.Errorf("another context's directory: %s, %v", got, err)
	}
}

func TestAFixedDirectoryMustLieBelowARoot(t *testing.T) {
	data, root, outside := realDir(t), realDir(t), realDir(t)
	d := workdir.New(data, []string{"/no/such/root", root})
	inside := filepath.Join(root, "project")
	write(t, filepath.Join(inside, "file"), "x")
	for name, target := range map[string]string{"good": inside, "bad": outside} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]error{
		inside:                          nil,
		root:                            nil,
		filepath.Join(root, "good"):     nil,
		data:                            nil,
		filepath.Join(root, "bad"):      workdir.ErrOutside,
		outside:                         workdir.ErrOutside,
		root + "/../":                   workdir.ErrOutside,
		root + "x":                      workdir.ErrConfig,
		"relative":                      workdir.ErrConfig,
		"":                              workdir.ErrConfig,
		filepath.Join(inside, "file"):   workdir.ErrConfig,
		filepath.Join(inside, "absent"): workdir.ErrConfig,
	} {
		dir, err := d.Prepare(t.Context(), "a", "c", workdir.Spec{Policy: workdir.Fixed, Path: path})
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%s: %s, %v, want %v", path, dir, err, want)
		}
		if resolved, _ := filepath.EvalSymlinks(path); want == nil && dir != resolved {
			t.Errorf("%s: %s", path, dir)
		}
	}
	// A link that is changed after the configuration was read.
	link := filepath.Join(root, "good")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Prepare(t.Context(), "a", "c", workdir.Spec{Policy: workdir.Fixed, Path: link}); !errors.Is(err, workdir.ErrOutside) {
		t.Errorf("a changed link: %v", err)
	}
	if err := d.Remove(t.Context(), "a", "c", workdir.Spec{Policy: workdir.Fixed, Path: inside}); err != nil || !exists(inside) {
		t.Errorf("a fixed directory was removed, %v", err)
	}
}

func TestEachAgentAndContextHasAWorktree(t *testing.T) {
	repo := repository(t)
	data := realDir(t)
	d := workdir.New(data, []string{repo})
	spec := workdir.Spec{Policy: workdir.Worktree, Path: filepath.Join(repo, "part")}
	var wg sync.WaitGroup
	dirs := make([]string, 6)
	for i := range dirs {
		wg.Go(func() {
			agent := []string{"a", "b"}[i%2]
			context := []string{"c1", "c2", "c3"}[i/2]
			dir, err := d.Prepare(t.Context(), agent, context, spec)
			if err != nil {
				t.Error(err)
			}
			dirs[i] = dir
		})
	}
	wg.Wait()
	seen := make(map[string]bool)
	for _, dir := range dirs {
		if seen[dir] || filepath.Base(dir) != "part" || !strings.HasPrefix(dir, filepath.Join(data, "worktrees")) {
			t.Errorf("directory %s", dir)
		}
		seen[dir] = true
		if !exists(filepath.Join(dir, "file.txt")) {
			t.Errorf("%s is not checked out", dir)
		}
	}
	if again := prepare(t, d, "a", "c1", spec); again != dirs[0] {
		t.Errorf("the second time %s, the first %s", again, dirs[0])
	}
}

func TestRemovingAWorktreeLosesNoWork(t *testing.T) {
	repo := repository(t)
	d := workdir.New(realDir(t), []string{repo})
	spec := workdir.Spec{Policy: workdir.Worktree, Path: repo}
	remove := func(context string) error { return d.Remove(t.Context(), "agent.x", context, spec) }

	clean := prepare(t, d, "agent.x", "clean", spec)
	write(t, filepath.Join(clean, ".parley", ".gitignore"), "*\n")
	write(t, filepath.Join(clean, ".parley", "inbox", "t", "01-a.png"), "x")
	if err := remove("clean"); err != nil || exists(clean) {
		t.Errorf("a clean worktree: %v", err)
	}

	dirty := prepare(t, d, "agent.x", "dirty", spec)
	write(t, filepath.Join(dirty, "new.txt"), "x")
	if err := remove("dirty"); !errors.Is(err, workdir.ErrKept) || !exists(filepath.Join(dirty, "new.txt")) {
		t.Errorf("a worktree with changes: %v", err)
	}

	committed := prepare(t, d, "agent.x", "committed", spec)
	write(t, filepath.Join(committed, "new.txt"), "x")
	git(t, committed, "add", ".")
	git(t, committed, "commit", "-q", "-m", "work")
	branch := git(t, committed, "branch", "--show-current")
	if err := remove("committed"); err != nil || exists(committed) {
		t.Errorf("a worktree with commits: %v", err)
	}
	if git(t, repo, "show", branch+":new.txt") != "x" {
		t.Error("the commit is lost")
	}
	// Coming back finds the work.
	if again := prepare(t, d, "agent.x", "committed", spec); !exists(filepath.Join(again, "new.txt")) {
		t.Error("the branch was not taken up again")
	}
	// One branch for what was committed, one for what is dirty, and main.
	if n := len(strings.Split(git(t, repo, "branch", "--list"), "\n")); n != 3 {
		t.Errorf("%d branches:\n%s", n, git(t, repo, "branch", "--list"))
	}
}

func TestAWorktreeWhoseDirectoryIsGoneIsMadeAnew(t *testing.T) {
	repo := repository(t)
	d := workdir.New(realDir(t), []string{repo})
	spec := workdir.Spec{Policy: workdir.Worktree, Path: repo}
	dir := prepare(t, d, "a", "c", spec)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(t.Context(), "a", "c", spec); err != nil {
		t.Error(err)
	}
	prepare(t, d, "a", "c", spec)
}

func TestWorktreesThatCannotBe(t *testing.T) {
	empty := realDir(t)
	git(t, empty, "init", "-q")
	plain := realDir(t)
	repo := repository(t)
	write(t, filepath.Join(repo, "untracked", "x"), "x")
	d := workdir.New(realDir(t), []string{empty, plain, repo})
	for name, path := range map[string]string{
		"no repository": plain, "no commit": empty, "not in the commit": filepath.Join(repo, "untracked"), "relative": "x",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := d.Prepare(t.Context(), "a", "c-"+name, workdir.Spec{Policy: workdir.Worktree, Path: path})
			if !errors.Is(err, workdir.ErrConfig) {
				t.Errorf("%v", err)
			}
		})
	}
	outside := workdir.New(realDir(t), nil)
	if _, err := outside.Prepare(t.Context(), "a", "c", workdir.Spec{Policy: workdir.Worktree, Path: repo}); !errors.Is(err, workdir.ErrOutside) {
		t.Errorf("outside: %v", err)
	}
	if _, err := d.Prepare(t.Context(), "a", "c", workdir.Spec{Policy: "odd"}); !errors.Is(err, workdir.ErrConfig) {
		t.Errorf("odd policy: %v", err)
	}
	if _, err := workdir.New("", nil).Prepare(t.Context(), "a", "c", workdir.Spec{}); !errors.Is(err, workdir.ErrConfig) {
		t.Errorf("no data directory: %v", err)
	}
}

func TestTheHubsOwnGitVariablesDoNotLeadElsewhere(t *testing.T) {
	repo := repository(t)
	t.Setenv("GIT_DIR", filepath.Join(realDir(t), "nowhere"))
	d := workdir.New(realDir(t), []string{repo})
	if _, err := d.Prepare(t.Context(), "a", "c", workdir.Spec{Policy: workdir.Worktree, Path: repo}); err != nil {
		t.Error(err)
	}
}
