package hub

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/parleyhub/parley/internal/hub/runner"
)

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

func prepare(t *testing.T, d *workDirs, agent, context string, spec runner.WorkDirSpec) string {
	t.Helper()
	work, _, err := d.prepare(t.Context(), agent, context, spec)
	dir := work.Path
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

func TestEveryContextHasItsOwnDirectory(t *testing.T) {
	data := realDir(t)
	d := newWorkDirs(data, nil, nil)
	seen := make(map[string]bool)
	for _, id := range []string{"a", "../../etc", "", "a/b", strings.Repeat("x", 5000), "\x00"} {
		dir := prepare(t, d, "agent", id, runner.WorkDirSpec{})
		if filepath.Dir(dir) != filepath.Join(data, "contexts") || seen[dir] {
			t.Errorf("context %q works in %s", id, dir)
		}
		seen[dir] = true
		if other := prepare(t, d, "another", id, runner.WorkDirSpec{Policy: runner.WorkDirContext}); other != dir {
			t.Errorf("two agents of a context work in %s and %s", dir, other)
		}
	}
	if info, _ := os.Stat(filepath.Join(data, "contexts")); info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", info.Mode())
	}
}

func TestAContextsDirectoryIsRemovedWithItsContents(t *testing.T) {
	d := newWorkDirs(realDir(t), nil, nil)
	dir := prepare(t, d, "a", "c", runner.WorkDirSpec{})
	kept := prepare(t, d, "a", "other", runner.WorkDirSpec{})
	outside := filepath.Join(realDir(t), "file")
	write(t, outside, "x")
	write(t, filepath.Join(dir, "deep", "file"), "x")
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second removal finds nothing
		if err := d.remove(t.Context(), "a", "c", runner.WorkDirSpec{}); err != nil {
			t.Error(err)
		}
	}
	if exists(dir) || !exists(kept) || !exists(outside) {
		t.Error("not exactly the context's directory was removed")
	}
}

func TestASymlinkInPlaceOfAContextsDirectoryIsRefused(t *testing.T) {
	data, elsewhere := realDir(t), realDir(t)
	d := newWorkDirs(data, nil, nil)
	dir := prepare(t, d, "a", "c", runner.WorkDirSpec{})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, dir); err != nil {
		t.Fatal(err)
	}
	if got, _, err := d.prepare(t.Context(), "a", "c", runner.WorkDirSpec{}); err == nil {
		t.Errorf("got %v", got)
	}
	inside := prepare(t, d, "a", "other", runner.WorkDirSpec{})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Base(inside), dir); err != nil {
		t.Fatal(err)
	}
	if got, _, err := d.prepare(t.Context(), "a", "c", runner.WorkDirSpec{}); !errors.Is(err, errDirOutside) {
		t.Errorf("another context's directory: %v, %v", got, err)
	}
}

// The data directory holds the list of trusted directories, the hub's keys and its store.
func TestTrustInADirectoryIsNoTrustInTheDataDirectoryBelowIt(t *testing.T) {
	above := realDir(t)
	data := filepath.Join(above, "hub")
	for _, dir := range []string{"project", "hub/bus", "hub/worktrees/a/b", "hub/contexts/b", "hub/worktrees/a/" + dirName("c") + "/deep", "hub/made"} {
		if err := os.MkdirAll(filepath.Join(above, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	trusted := func() ([]string, error) { return []string{above}, nil }
	for name, d := range map[string]*workDirs{
		"trusted":      newWorkDirs(data, nil, trusted),
		"root":         newWorkDirs(data, []string{above}, nil),
		"root in data": newWorkDirs(data, []string{above, filepath.Join(data, "made")}, nil),
	} {
		for dir, want := range map[string]error{
			"project": nil, "hub": errDirInData, "hub/bus": errDirInData, "hub/worktrees": errDirInData, "hub/worktrees/a": errDirInData, "hub/made": errDirInData,
			"hub/worktrees/a/b": errDirInData, "hub/contexts/b": errDirInData, "hub/worktrees/a/" + dirName("c"): nil, "hub/worktrees/a/" + dirName("c") + "/deep": nil,
		} {
			if _, err := d.allowed("c", filepath.Join(above, dir)); !errors.Is(err, want) {
				t.Errorf("%s, %s: %v, want %v", name, dir, err, want)
			}
		}
	}
}

// Conversations of a loop or swarm share a worktree; others have their own only.
func TestOnlyASharedWorktreeIsForOtherConversations(t *testing.T) {
	repo := repository(t)
	d := newWorkDirs(realDir(t), []string{repo}, nil)
	shared, _, err := d.makeShared(t.Context(), "loop", "n", repo)
	if err != nil {
		t.Fatal(err)
	}
	own, _, err := d.prepare(t.Context(), "a", "c", runner.WorkDirSpec{Policy: runner.WorkDirWorktree, Path: repo})
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]error{shared.Path: nil, own.Path: errDirInData, filepath.Dir(shared.Path): errDirInData, shared.Path + sharedMark: errDirConfig} {
		if _, err := d.allowed("other", dir); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", dir, err, want)
		}
	}
	if _, err := d.allowed("c", own.Path); err != nil {
		t.Error(err)
	}
}

func TestAFixedDirectoryMustLieBelowARoot(t *testing.T) {
	data, root, outside := realDir(t), realDir(t), realDir(t)
	d := newWorkDirs(data, []string{"/no/such/root", root}, nil)
	inside := filepath.Join(root, "project")
	write(t, filepath.Join(inside, "file"), "x")
	for _, own := range []string{"contexts/c/deep", "contexts/" + dirName("c"), "bus"} {
		if err := os.MkdirAll(filepath.Join(data, own), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"good": inside, "bad": outside} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]error{
		inside:                      nil,
		root:                        nil,
		filepath.Join(root, "good"): nil,
		filepath.Join(data, "contexts", dirName("c")): nil,
		filepath.Join(data, "contexts", "c"):          errDirOutside, // another conversation's
		filepath.Join(data, "contexts", "c", "deep"):  errDirOutside,
		filepath.Join(data, "contexts"):               errDirOutside,
		filepath.Join(data, "bus"):                    errDirOutside,
		data:                                          errDirOutside,
		filepath.Join(root, "bad"):                    errDirOutside,
		outside:                                       errDirOutside,
		root + "/../":                                 errDirOutside,
		root + "x":                                    errDirMissing,
		"relative":                                    errDirConfig,
		"":                                            errDirConfig,
		filepath.Join(inside, "file"):                 errDirConfig,
		filepath.Join(inside, "absent"):               errDirMissing,
	} {
		dir, _, err := d.prepare(t.Context(), "a", "c", runner.WorkDirSpec{Policy: runner.WorkDirFixed, Path: path})
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%s: %v, %v, want %v", path, dir, err, want)
		}
		if resolved, _ := filepath.EvalSymlinks(path); want == nil && dir.Path != resolved {
			t.Errorf("%s: %s", path, dir.Path)
		}
	}
	// A symlink may change after the configuration was read.
	link := filepath.Join(root, "good")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.prepare(t.Context(), "a", "c", runner.WorkDirSpec{Policy: runner.WorkDirFixed, Path: link}); !errors.Is(err, errDirOutside) {
		t.Errorf("changed symlink: %v", err)
	}
	if err := d.remove(t.Context(), "a", "c", runner.WorkDirSpec{Policy: runner.WorkDirFixed, Path: inside}); err != nil || !exists(inside) {
		t.Errorf("the fixed directory was removed: %v", err)
	}
}

// The system reports a program in such a directory as missing.
func TestADirectoryThatCannotBeEnteredIsReported(t *testing.T) {
	links := filepath.Join(t.TempDir(), "links")
	if err := os.Symlink(links, links); err != nil {
		t.Fatal(err)
	}
	closed := t.TempDir()
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(closed, 0o700) }) //nolint:errcheck // the test's end removes it or fails
	dirs := map[string]string{links: "too many"}
	if _, err := os.Stat(closed + "/."); errors.Is(err, fs.ErrPermission) { // not so for the user root
		dirs[closed] = "permission denied"
	}
	for dir, cause := range dirs {
		d := newWorkDirs(t.TempDir(), []string{dir}, nil)
		if _, err := d.allowed("c", dir); !errors.Is(err, errDirConfig) || !strings.Contains(err.Error(), cause) {
			t.Errorf("%s: got %v, want the cause %q", dir, err, cause)
		}
	}
}

func TestEachAgentAndContextHasAWorktree(t *testing.T) {
	repo := repository(t)
	data := realDir(t)
	d := newWorkDirs(data, []string{repo}, nil)
	spec := runner.WorkDirSpec{Policy: runner.WorkDirWorktree, Path: filepath.Join(repo, "part")}
	var wg sync.WaitGroup
	dirs := make([]string, 6)
	for i := range dirs {
		wg.Go(func() {
			agent := []string{"a", "b"}[i%2]
			context := []string{"c1", "c2", "c3"}[i/2]
			dir, _, err := d.prepare(t.Context(), agent, context, spec)
			if err != nil {
				t.Error(err)
			}
			dirs[i] = dir.Path
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
		t.Errorf("second call %s, first call %s", again, dirs[0])
	}
}

func TestRemovingAWorktreeLosesNoWork(t *testing.T) {
	repo := repository(t)
	d := newWorkDirs(realDir(t), []string{repo}, nil)
	spec := runner.WorkDirSpec{Policy: runner.WorkDirWorktree, Path: repo}
	remove := func(context string) error { return d.remove(t.Context(), "agent.x", context, spec) }

	clean := prepare(t, d, "agent.x", "clean", spec)
	write(t, filepath.Join(clean, ".parley", ".gitignore"), "*\n")
	write(t, filepath.Join(clean, ".parley", "inbox", "t", "01-a.png"), "x")
	if err := remove("clean"); err != nil || exists(clean) {
		t.Errorf("clean worktree: %v", err)
	}

	dirty := prepare(t, d, "agent.x", "dirty", spec)
	write(t, filepath.Join(dirty, "new.txt"), "x")
	if err := remove("dirty"); !errors.Is(err, errDirKept) || !exists(filepath.Join(dirty, "new.txt")) {
		t.Errorf("worktree with changes: %v", err)
	}

	committed := prepare(t, d, "agent.x", "committed", spec)
	write(t, filepath.Join(committed, "new.txt"), "x")
	git(t, committed, "add", ".")
	git(t, committed, "commit", "-q", "-m", "work")
	branch := git(t, committed, "branch", "--show-current")
	if err := remove("committed"); err != nil || exists(committed) {
		t.Errorf("worktree with commits: %v", err)
	}
	if git(t, repo, "show", branch+":new.txt") != "x" {
		t.Error("the commit is lost")
	}
	// The worktree is created again from its branch.
	if again := prepare(t, d, "agent.x", "committed", spec); !exists(filepath.Join(again, "new.txt")) {
		t.Error("the recreated worktree does not use the branch")
	}
	// One branch with the commit, one of the worktree with changes, and main.
	if n := len(strings.Split(git(t, repo, "branch", "--list"), "\n")); n != 3 {
		t.Errorf("%d branches:\n%s", n, git(t, repo, "branch", "--list"))
	}
}

func TestAMissingWorktreeIsRecreated(t *testing.T) {
	repo := repository(t)
	d := newWorkDirs(realDir(t), []string{repo}, nil)
	spec := runner.WorkDirSpec{Policy: runner.WorkDirWorktree, Path: repo}
	dir := prepare(t, d, "a", "c", spec)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := d.remove(t.Context(), "a", "c", spec); err != nil {
		t.Error(err)
	}
	prepare(t, d, "a", "c", spec)
}

func TestInvalidWorktreesAreRefused(t *testing.T) {
	empty := realDir(t)
	git(t, empty, "init", "-q")
	plain := realDir(t)
	repo := repository(t)
	write(t, filepath.Join(repo, "untracked", "x"), "x")
	d := newWorkDirs(realDir(t), []string{empty, plain, repo}, nil)
	for name, path := range map[string]string{
		"not a repository": plain, "no commit": empty, "not in the commit": filepath.Join(repo, "untracked"), "relative": "x",
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := d.prepare(t.Context(), "a", "c-"+name, runner.WorkDirSpec{Policy: runner.WorkDirWorktree, Path: path})
			if !errors.Is(err, errDirConfig) {
				t.Errorf("%v", err)
			}
		})
	}
	outside := newWorkDirs(realDir(t), nil, nil)
	if _, _, err := outside.prepare(t.Context(), "a", "c", runner.WorkDirSpec{Policy: runner.WorkDirWorktree, Path: repo}); !errors.Is(err, errDirOutside) {
		t.Errorf("outside the roots: %v", err)
	}
	if _, _, err := d.prepare(t.Context(), "a", "c", runner.WorkDirSpec{Policy: "odd"}); !errors.Is(err, errDirConfig) {
		t.Errorf("unknown policy: %v", err)
	}
	if _, _, err := newWorkDirs("", nil, nil).prepare(t.Context(), "a", "c", runner.WorkDirSpec{}); !errors.Is(err, errDirConfig) {
		t.Errorf("no data directory: %v", err)
	}
}

func TestGitVariablesOfTheHubAreIgnored(t *testing.T) {
	repo := repository(t)
	t.Setenv("GIT_DIR", filepath.Join(realDir(t), "nowhere"))
	d := newWorkDirs(realDir(t), []string{repo}, nil)
	if _, _, err := d.prepare(t.Context(), "a", "c", runner.WorkDirSpec{Policy: runner.WorkDirWorktree, Path: repo}); err != nil {
		t.Error(err)
	}
}
