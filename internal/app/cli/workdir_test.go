//go:build unix

package cli_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/swarm"
)

// repository changes to the subdirectory of a new git repository with one commit, in a home of its own, and returns
// the repository.
func repository(t *testing.T) string {
	t.Helper()
	dir := project(t)
	for _, args := range [][]string{
		{"init", "-q"}, {"config", "user.name", "t"}, {"config", "user.email", "t@example.com"}, {"commit", "-q", "--allow-empty", "-m", "begin"},
	} {
		if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	sub := filepath.Join(dir, "part two")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(sub)
	return dir
}

// workDirOf returns where the agent of the task in an outcome worked.
func workDirOf(t *testing.T, o outcome) hub.WorkDir {
	t.Helper()
	return hub.WorkDirIn(decode[dialect.Task](t, o).Metadata)
}

func TestAgentsWorkInTheTrustedProject(t *testing.T) {
	p := newHub(t)
	repo := repository(t)
	o := p.run(t, "send", "words", "hi")
	if o.code != 1 || !strings.Contains(o.stderr, "parley trust "+repo) || !strings.Contains(o.stderr, "--scratch") {
		t.Errorf("not trusted: %+v", o)
	}
	want(t, p.run(t, "send", "echo", "hi"), 0, "hi") // it uses no files
	want(t, p.run(t, "swarm", "run", "--agents", "words", "hi"), 1, "")
	want(t, p.run(t, "send", "words", "hi", "--scratch"), 0, "hi")

	if got := decode[map[string]any](t, p.run(t, "trust", "--format", "json")); got["directory"] != repo || got["trusted"] != true || got["changed"] != true {
		t.Errorf("trust: %v", got)
	}
	if dir := workDirOf(t, p.run(t, "send", "words", "hi", "--context", "c", "--format", "json")); dir != (hub.WorkDir{Path: repo, Policy: runner.WorkDirFixed}) {
		t.Errorf("works in %+v", dir)
	}
	t.Chdir(t.TempDir()) // the conversation stays where it is
	if dir := workDirOf(t, p.run(t, "send", "words", "hi", "--context", "c", "--format", "json")); dir.Path != repo {
		t.Errorf("continued from elsewhere: %+v", dir)
	}
	want(t, p.run(t, "contexts"), 0, repo)
	o = p.run(t, "send", "words", "hi", "--dir", repo, "--format", "json")
	want(t, p.run(t, "task", "show", decode[dialect.Task](t, o).ID), 0, "works in "+repo)
	t.Chdir(repo)
	o = p.run(t, "swarm", "run", "--agents", "words", "hi", "--format", "json")
	if s := decode[swarm.Session](t, o); s.Directory == nil || s.Directory.Path != repo {
		t.Errorf("swarm: %+v", o)
	}
	if err := os.Mkdir(os.Getenv("HOME"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(os.Getenv("HOME")) // no project
	if dir := workDirOf(t, p.run(t, "send", "words", "hi", "--format", "json")); dir.Policy != runner.WorkDirContext {
		t.Errorf("without a project: %+v", dir)
	}
	want(t, p.run(t, "trust"), 2, "")
	want(t, p.run(t, "send", "words", "hi", "--worktree"), 2, "")
	want(t, p.run(t, "send", "words", "hi", "--dir", "no-such"), 2, "")
	want(t, p.run(t, "send", "words", "hi", "--dir", "."), 2, "")
}

func TestTrustIsListedAndRemoved(t *testing.T) {
	p := newSetup(t)
	repo := repository(t)
	above := filepath.Dir(repo) + "/src"
	inner := above + "/shop"
	if err := os.MkdirAll(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{repo, above, inner} {
		want(t, p.run(t, "trust", dir), 0, "Agents may work in "+dir)
	}
	want(t, p.run(t, "trust"), 0, "already")
	want(t, p.run(t, "trust", "--list"), 0, inner)
	want(t, p.run(t, "trust", "--list", "--format", "json"), 0, `"source":"workdirs.roots"`)
	if got := strings.Join(p.completions(t, "trust", "--remove", ""), " "); !strings.Contains(got, repo) {
		t.Errorf("completions: %s", got)
	}
	want(t, p.run(t, "trust", "--remove", inner), 0, "a directory above it is trusted")
	want(t, p.run(t, "trust", "--remove"), 0, "Agents may no longer work in "+repo)
	want(t, p.run(t, "trust", "--remove"), 0, "was not trusted")
	want(t, p.run(t, "trust", "/"), 2, "")
	want(t, p.run(t, "trust", "no-such"), 4, "")
	want(t, p.run(t, "trust", "a", "b"), 2, "")
}

func TestTheUserIsAskedOnceForAProject(t *testing.T) {
	p := newHub(t)
	repo := repository(t)
	question := "Let agents work in " + repo + "? [y/N]"
	for _, answer := range []struct {
		text string
		code int
		want string
	}{{"\n", 1, "parley --socket"}, {"y\n", 0, "hello"}} {
		s := newScreen(t)
		code := s.run(p, nil, nil, "send", "words", "hello")
		s.await(question)
		if _, err := s.master.WriteString(answer.text); err != nil {
			t.Fatal(err)
		}
		if text := s.await("<end>"); <-code != answer.code || !strings.Contains(text, answer.want) {
			t.Errorf("answer %q: %q", answer.text, text)
		}
	}
	s := newScreen(t)
	s.run(p, nil, nil, "send", "words", "hello")
	if text := s.await("<end>"); strings.Contains(text, question) || !strings.Contains(text, "in "+repo) {
		t.Errorf("the second time: %q", text)
	}
}

// What is piped does not keep the user from being asked: the answer comes from the terminal.
func TestTheQuestionIsAskedAlsoIfStandardInputIsAPipe(t *testing.T) {
	p := newHub(t)
	repo := repository(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := newScreen(t)
	cmd := p.command(t, "send", "words", "hello")
	cmd.Env = append(cmd.Env, "HOME="+os.Getenv("HOME"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, s.tty, s.tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString("piped\n"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	s.await("Let agents work in " + repo + "? [y/N]")
	if _, err := s.master.WriteString("y\n"); err != nil {
		t.Fatal(err)
	}
	s.await("hello piped")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// An unusable list is reported before a question whose answer could not be kept.
func TestADamagedListOfTrustIsReported(t *testing.T) {
	p := newHub(t)
	repository(t)
	want(t, p.run(t, "trust"), 0, "")
	c, err := client.Dial(t.Context(), p.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	check, err := c.CheckDir(t.Context(), dialect.DirCheckParams{AgentIDs: []string{"words"}, DirRequest: hub.DirRequest{Path: "/"}})
	if err != nil || !check.Needed || check.Allowed {
		t.Fatalf("%+v, %v", check, err)
	}
	if err := os.WriteFile(config.NewTrust(check.DataDir).File(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"send", "words", "hi"}, {"trust"}, {"trust", "--list"}, {"trust", "--remove"}} {
		if o := p.run(t, args...); o.code != 1 || !strings.Contains(o.stderr, "trusted.json cannot be used") {
			t.Errorf("%v: %+v", args, o)
		}
	}
}

func TestPathsWithControlCharactersAreEscaped(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/a\nb", "/it's \x1b[2J \\ x", "/\u202egpj", "/latin\xe9", "/\x7f"} {
		if shown := cli.Tilde(path); shown != cli.Plain(shown) || strings.Contains(shown, "\n") || shown == path {
			t.Errorf("%q is shown as %q", path, shown)
		}
		bash, err := exec.LookPath("bash")
		if err != nil {
			t.Skip(err)
		}
		out, err := exec.Command(bash, "-c", "printf %s "+cli.Path(path)).Output()
		if err != nil || string(out) != path {
			t.Errorf("%s is %q for the shell, want %q (%v)", cli.Path(path), out, path, err)
		}
	}
	if got := cli.Tilde("/über uns"); got != "/über uns" {
		t.Errorf("got %q", got)
	}
}

// The printed commands commit, merge and drop the work as they are.
func TestTheCommandsForAWorktreeWork(t *testing.T) {
	p := newHub(t)
	repo := repository(t)
	want(t, p.run(t, "trust"), 0, "")
	o := p.run(t, "send", "words", "hi", "--worktree", "--format", "json")
	tree := workDirOf(t, o)
	if tree.Repository != repo {
		t.Fatalf("works in %+v", tree)
	}
	if err := os.WriteFile(filepath.Join(tree.Path, "new.txt"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	context := decode[dialect.Task](t, o).ContextID
	o = p.run(t, "send", "words", "more", "--context", context)
	for _, label := range []string{"commit:", "merge:", "drop:"} {
		_, rest, found := strings.Cut(o.stderr, label)
		command, _, _ := strings.Cut(rest, "\n")
		if !found {
			t.Fatalf("no %s in %q", label, o.stderr)
		}
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(repo, "new.txt")); err != nil {
		t.Errorf("after the merge: %v", err)
	}
	if _, err := os.Stat(tree.Path); !os.IsNotExist(err) {
		t.Errorf("after the drop: %v", err)
	}
}

// The check runs where the agent works; the items of a list share one worktree.
func TestALoopWorksInTheProject(t *testing.T) {
	p := newHub(t)
	repo := repository(t)
	want(t, p.run(t, "trust"), 0, "")
	for list, flags := range map[string][]string{"a.json": nil, "b.json": {"--worktree"}} {
		if err := os.WriteFile(list, []byte(`[{"task":"one"},{"task":"two"}]`), 0o600); err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(filepath.Dir(repo), list+".out")
		args := append(append([]string{"loop", "run", list, "--agent", "words"}, flags...), "--", "sh", "-c", "pwd >> "+out)
		want(t, p.run(t, args...), 0, "2 completed")
		data, err := os.ReadFile(out)
		lines := strings.Fields(string(data))
		if err != nil || len(lines) != 2 || lines[0] != lines[1] || (lines[0] == repo) != (flags == nil) {
			t.Errorf("%v: the check ran in %q, %v", flags, lines, err)
		}
	}
}
