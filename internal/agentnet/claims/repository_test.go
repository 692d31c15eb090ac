package claims_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/claims"
)

// makeRepository makes what counts as a git repository.
func makeRepository(t testing.TB, dir string) string {
	t.Helper()
	write(t, filepath.Join(dir, ".git", "HEAD"), "ref: refs/heads/main\n")
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return real
}

// makeTree makes another work tree of a repository.
func makeTree(t testing.TB, repository, dir string) string {
	t.Helper()
	private := filepath.Join(repository, ".git", "worktrees", filepath.Base(dir))
	write(t, filepath.Join(private, "commondir"), "../..\n")
	write(t, filepath.Join(private, "HEAD"), "ref: refs/heads/other\n")
	write(t, filepath.Join(dir, ".git"), "gitdir: "+private+"\n")
	return dir
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func link(t testing.TB, target, path string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("symbolic links need privileges on Windows")
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func locate(t testing.TB, path string) claims.Target {
	t.Helper()
	all, err := claims.Locate("here", path)
	if err != nil || len(all) == 0 {
		t.Fatalf("%s: %v, %v", path, all, err)
	}
	return all[0]
}

func TestAFileIsKnownByItsRealPath(t *testing.T) {
	t.Parallel()
	top := makeRepository(t, filepath.Join(t.TempDir(), "shop"))
	write(t, filepath.Join(top, "src", "a.go"), "package a\n")
	want := locate(t, filepath.Join(top, "src", "a.go"))
	if want.Path != "src/a.go" {
		t.Errorf("%+v", want)
	}
	beside := t.TempDir()
	link(t, filepath.Join(top, "src"), filepath.Join(beside, "linked"))
	link(t, filepath.Join(top, "src", "a.go"), filepath.Join(beside, "file"))
	link(t, filepath.Join(top, "src", "new.go"), filepath.Join(beside, "dangling"))
	link(t, filepath.Join("..", "shop2"), filepath.Join(beside, "loop2"))
	link(t, "loop", filepath.Join(beside, "loop"))
	for _, path := range []string{"linked/a.go", "file", "linked/../src/a.go"} {
		if got := locate(t, beside+"/"+path); got != want {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := locate(t, filepath.Join(beside, "dangling")); got.Path != "src/new.go" || got.Repository != want.Repository {
		t.Errorf("%+v", got)
	}
	if got := locate(t, filepath.Join(top, "no", "such", "dir", "x")); got.Path != "no/such/dir/x" {
		t.Errorf("%+v", got)
	}
	if got, err := claims.Locate("there", filepath.Join(top, "src", "a.go")); err != nil || got[0].Repository == want.Repository {
		t.Errorf("another host has the same repository: %v, %v", got, err)
	}
	for name, path := range map[string]string{"relative": "src/a.go", "empty": "", "NUL": top + "/a\x00b", "long": top + "/" + strings.Repeat("x/", 1<<19),
		"loop": filepath.Join(beside, "loop"), "not UTF-8": top + "/\xff", "line": top + "/a\nb", "up from nothing": top + "/none/../../x"} {
		if got, err := claims.Locate("here", path); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWorkTreesShareTheirRepository(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	top := makeRepository(t, filepath.Join(dir, "shop"))
	tree := makeTree(t, top, filepath.Join(dir, "fix"))
	a, b := locate(t, filepath.Join(top, "a.go")), locate(t, filepath.Join(tree, "a.go"))
	if a.Repository != b.Repository || a.Tree == b.Tree || a.Path != b.Path {
		t.Errorf("%+v, %+v", a, b)
	}
	r, err := claims.Find("here", tree)
	if err != nil || r.Name != "shop" || r.Key != a.Repository || strings.Contains(r.Key+r.Tree, "/") {
		t.Errorf("%+v, %v", r, err)
	}
	// What is no repository is skipped.
	write(t, filepath.Join(top, "sub", ".git"), "gitdir: nowhere\n")
	if got := locate(t, filepath.Join(top, "sub", "x")); got.Path != "sub/x" {
		t.Errorf("%+v", got)
	}
}

func TestWorkTreesOfGit(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("no git")
	}
	dir := t.TempDir()
	top := filepath.Join(dir, "shop")
	for _, args := range [][]string{{"init", "-q", top}, {"-C", top, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"},
		{"-C", top, "worktree", "add", "-q", filepath.Join(dir, "fix")}} {
		if out, err := exec.CommandContext(t.Context(), git, args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	a, b := locate(t, filepath.Join(top, "a.go")), locate(t, filepath.Join(dir, "fix", "a.go"))
	if a.Repository != b.Repository || a.Tree == b.Tree {
		t.Errorf("%+v, %+v", a, b)
	}
}

func TestAFileOutsideOfGitBelongsToEachDirectoryAbove(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r, err := claims.Find("here", dir)
	if err != nil {
		t.Fatal(err)
	}
	all, err := claims.Locate("here", filepath.Join(dir, "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range all {
		if target.Repository == r.Key {
			if target.Path != "a/b" || target.Tree != r.Tree {
				t.Errorf("%+v", target)
			}
			return
		}
	}
	t.Errorf("%v has not %v", all, r)
}

func TestAllFilesOfACallAreLocated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one := claims.LocateAll(t.Context(), []string{filepath.Join(dir, "a")})
	if len(one) == 0 {
		t.Fatal("nothing is located")
	}
	if both := claims.LocateAll(t.Context(), []string{filepath.Join(dir, "a"), "relative", filepath.Join(dir, "b")}); len(both) != 2*len(one) {
		t.Errorf("%d targets, want %d", len(both), 2*len(one))
	}
	many := make([]string, claims.MaxTargets+1)
	for i := range many {
		many[i] = filepath.Join(dir, fmt.Sprint(i))
	}
	if got := claims.LocateAll(t.Context(), many); len(got) != len(many)*len(one) {
		t.Errorf("%d targets", len(got))
	}
}
