package hub_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func in(context, agent, text string) hub.SendRequest {
	m := message(text)
	m.ContextID = context
	return hub.SendRequest{AgentID: agent, Message: m}
}

func TestSessionsAreResumedAfterARestart(t *testing.T) {
	b := openBus(t, t.TempDir(), bus.DurabilityFast)
	a := actor()
	h, err := hub.New(t.Context(), hub.Config{Bus: b, Agents: []hub.Agent{{Definition: definition("a"), Runner: a}}})
	if err != nil {
		t.Fatal(err)
	}
	send(t, h, in("c1", "a", "session:s1 say:x"))
	send(t, h, in("c1", "a", "say:y"))
	send(t, h, in("c2", "a", "say:z"))
	if specs := a.specs(); len(specs) != 2 || specs[0].Resume != "" || specs[0].ContextID != "c1" {
		t.Errorf("opened %+v", specs)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	a = actor()
	h = newHub(t, hub.Config{Bus: b}, map[string]*fakeAgent{"a": a})
	send(t, h, in("c1", "a", "say:y"))
	send(t, h, in("c2", "a", "say:z"))
	if specs := a.specs(); len(specs) != 2 || specs[0].Resume != "s1" || specs[1].Resume != "" {
		t.Errorf("opened %+v", specs)
	}
}

func TestABrokenSessionIsReopened(t *testing.T) {
	a := actor()
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": a})
	for _, p := range []string{"session:s1 say:x", "fail", "say:x", "panic", "limit", "say:x"} {
		send(t, h, in("c", "a", p))
	}
	if specs := a.specs(); len(specs) != 3 || specs[1].Resume != "s1" || specs[2].Resume != "s1" {
		t.Errorf("opened %+v", specs)
	}
}

func TestIdleSessionsAreBoundedAndClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := actor()
		def := definition("a")
		def.Limits.SessionIdle = 10 * time.Minute
		h, err := hub.New(t.Context(), hub.Config{MaxIdleSessions: 3, Agents: []hub.Agent{{Definition: def, Runner: a}}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			send(t, h, in(fmt.Sprint(i), "a", "say:x"))
		}
		synctest.Wait()
		if n := a.left(); n != 3 {
			t.Errorf("%d sessions are open", n)
		}
		time.Sleep(9 * time.Minute)
		send(t, h, in("4", "a", "say:x"))
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if n := a.left(); n != 1 {
			t.Errorf("%d sessions are open after the idle time", n)
		}
		if n := len(a.specs()); n != 5 {
			t.Errorf("%d sessions opened in total", n)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := a.left(); n != 0 {
			t.Errorf("%d sessions are open after Close", n)
		}
	})
}

func TestWorkingDirectories(t *testing.T) {
	repo := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", repo, "-c", "user.name=t", "-c", "user.email=t@t"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "begin")
	data, fixed := t.TempDir(), t.TempDir()
	agents := map[string]*fakeAgent{}
	var cfg hub.Config
	for id, w := range map[string]runner.WorkDirSpec{
		"own": {}, "own2": {Policy: "context"}, "fixed": {Policy: "fixed", Path: fixed}, "tree": {Policy: "worktree", Path: repo},
		"gone": {Policy: "fixed", Path: filepath.Join(fixed, "gone")}, "relative": {Policy: "fixed", Path: "x"}, "odd": {Policy: "odd"},
		"notree": {Policy: "worktree", Path: fixed}, "reltree": {Policy: "worktree", Path: "x"},
		"outside": {Policy: "fixed", Path: t.TempDir()},
	} {
		def := definition(id)
		def.Driver, def.WorkDir = runner.DriverExec, w
		agents[id] = actor()
		cfg.Agents = append(cfg.Agents, hub.Agent{Definition: def, Runner: agents[id]})
	}
	agents["none"] = actor()
	cfg.Agents = append(cfg.Agents, hub.Agent{Definition: definition("none"), Runner: agents["none"]})
	cfg.DataDir, cfg.WorkRoots = data, []string{repo, fixed}
	h := newHub(t, cfg, nil)
	hostile := "../../etc/passwd"
	dir := func(id, context string) string {
		t.Helper()
		send(t, h, in(context, id, "say:x"))
		specs := agents[id].specs()
		return specs[len(specs)-1].WorkDir
	}
	own := dir("own", hostile)
	if filepath.Dir(own) != filepath.Join(data, "contexts") {
		t.Errorf("directory of the context: %s", own)
	}
	if fi, err := os.Stat(own); err != nil || !fi.IsDir() || fi.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", fi, err)
	}
	if d := dir("own2", hostile); d != own {
		t.Errorf("two agents in a context work in %s and %s", own, d)
	}
	if d := dir("own", "another"); d == own {
		t.Error("two contexts share a directory")
	}
	if d := dir("fixed", "c"); d != fixed {
		t.Errorf("fixed policy: %s", d)
	}
	if d := dir("none", "c"); d != "" {
		t.Errorf("policy none: %s", d)
	}
	tree := dir("tree", "c")
	if _, err := os.Stat(filepath.Join(tree, ".git")); err != nil || !strings.HasPrefix(tree, data) {
		t.Errorf("worktree %s: %v", tree, err)
	}
	kept := dir("tree", "dirty")
	if err := os.WriteFile(filepath.Join(kept, "work.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"gone", "relative", "odd", "notree", "reltree", "outside"} {
		if task := send(t, h, in("c", id, "say:x")); task.Status.State != a2a.TaskStateFailed || errorCode(t, task) != "config" {
			t.Errorf("%s: %+v", id, task.Status)
		}
	}
	_ = hub.ExpireNow(h, "c") // fails for the agents whose directories cannot be removed
	if _, err := os.Stat(tree); !os.IsNotExist(err) {
		t.Errorf("the worktree of the expired context still exists: %v", err)
	}
	_ = hub.ExpireNow(h, "dirty")
	if _, err := os.Stat(filepath.Join(kept, "work.txt")); err != nil {
		t.Errorf("uncommitted work was removed: %v", err)
	}
}

// A message may choose the directory of its context, below the permitted roots.
func TestAMessageChoosesTheWorkingDirectory(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	project := filepath.Join(root, "project")
	if err := os.Mkdir(project, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	def := definition("a")
	def.Driver = runner.DriverExec
	a := actor()
	cfg := hub.Config{DataDir: t.TempDir(), WorkRoots: []string{root}, Agents: []hub.Agent{{Definition: def, Runner: a}}}
	h := newHub(t, cfg, nil)
	ask := func(context string, dir any) hub.SendRequest {
		req := in(context, "a", "say:x")
		if dir != nil {
			req.Message.Metadata = map[string]any{hub.MetaWorkDir: dir}
		}
		return req
	}
	for _, req := range []hub.SendRequest{ask("c", project), ask("c", nil), ask("c", project)} {
		task := send(t, h, req)
		if task.Status.State != a2a.TaskStateCompleted {
			t.Fatalf("got %+v", task.Status)
		}
		if dir := hub.WorkDirIn(task.Metadata); dir != (hub.WorkDir{Path: project, Policy: runner.WorkDirFixed}) {
			t.Errorf("the task says that its agent works in %+v", dir)
		}
	}
	for _, spec := range a.specs() {
		if spec.WorkDir != project {
			t.Errorf("working directory %s", spec.WorkDir)
		}
	}
	for name, req := range map[string]hub.SendRequest{
		"outside": ask("o", outside), "through a link": ask("l", filepath.Join(root, "link")),
		"with dots": ask("d", root+"/project/../../etc"), "missing": ask("n", filepath.Join(root, "gone")),
		"change within a context": ask("c", root),
	} {
		if task := send(t, h, req); task.Status.State != a2a.TaskStateFailed || errorCode(t, task) != "config" {
			t.Errorf("%s: %+v", name, task.Status)
		}
	}
	// Refused directories do not count against the agent's health.
	for range 10 {
		send(t, h, ask("", outside))
	}
	if task := send(t, h, ask("", project)); task.Status.State != a2a.TaskStateCompleted {
		t.Errorf("after refused directories: %+v", task.Status)
	}
	for _, dir := range []any{"relative", "", 7, "/a\x00b"} {
		_, err := h.Send(t.Context(), ask("bad", dir))
		if e, ok := errors.AsType[*hub.Error](err); !ok || e.Code != hub.CodeInvalid || e.Subject != "message.metadata.workingDirectory" {
			t.Errorf("%q: %v", dir, err)
		}
	}
}

// withDir returns a message with metadata about its directory.
func withDir(context string, meta map[string]any) hub.SendRequest {
	req := in(context, "a", "say:x")
	req.Message.Metadata = meta
	return req
}

// dirHub runs a hub whose agent a uses files, and returns the function that sets the trusted directories.
func dirHub(t *testing.T, workDir runner.WorkDirSpec) (h *hub.Hub, a *fakeAgent, trust func(...string)) {
	t.Helper()
	var trusted atomic.Pointer[[]string]
	trust = func(dirs ...string) { trusted.Store(&dirs) }
	trust()
	def := definition("a")
	def.Driver, def.WorkDir = runner.DriverExec, workDir
	a = actor()
	return newHub(t, hub.Config{
		DataDir: realTemp(t), Agents: []hub.Agent{{Definition: def, Runner: a}},
		Trusted: func() ([]string, error) { return *trusted.Load(), nil },
	}, nil), a, trust
}

// gitRepository returns a repository with one commit.
func gitRepository(t *testing.T) string {
	t.Helper()
	dir := realTemp(t)
	for _, args := range [][]string{{"init", "-q"}, {"-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "--allow-empty", "-m", "begin"}} {
		if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	return dir
}

func realTemp(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTrustCountsAtEveryUse(t *testing.T) {
	h, _, trust := dirHub(t, runner.WorkDirSpec{})
	project := realTemp(t)
	strict := func() *a2a.Task { return send(t, h, withDir("c", map[string]any{hub.MetaWorkDir: project})) }
	if task := strict(); errorCode(t, task) != "config" || !strings.Contains(task.Status.Message.Parts[0].Text(), "parley trust "+project) {
		t.Errorf("not trusted: %+v", task.Status)
	}
	trust(project)
	if dir := hub.WorkDirIn(strict().Metadata); dir.Path != project {
		t.Errorf("trusted: %+v", dir)
	}
	trust() // also for the open session, and without a directory in the message
	for _, task := range []*a2a.Task{strict(), send(t, h, in("c", "a", "say:x"))} {
		if errorCode(t, task) != "config" {
			t.Errorf("no longer trusted: %+v", task.Status)
		}
	}
	trust(project)
	elsewhere := realTemp(t)
	if err := errors.Join(os.Remove(project), os.Symlink(elsewhere, project)); err != nil {
		t.Fatal(err)
	}
	if task := send(t, h, withDir("new", map[string]any{hub.MetaWorkDir: project})); errorCode(t, task) != "config" {
		t.Errorf("a trusted directory that became a link: %+v", task.Status)
	}
}

func TestTheProjectYieldsToOtherDirectories(t *testing.T) {
	own, project, other := realTemp(t), realTemp(t), realTemp(t)
	for name, workDir := range map[string]runner.WorkDirSpec{"none": {}, "fixed": {Policy: runner.WorkDirFixed, Path: own}} {
		h, _, trust := dirHub(t, workDir)
		trust(own, project, other)
		want := project
		if name == "fixed" {
			want = own
		}
		for _, dir := range []string{project, other} { // the second message comes from another project
			if got := hub.WorkDirIn(send(t, h, withDir("c", map[string]any{hub.MetaProject: dir})).Metadata); got.Path != want {
				t.Errorf("%s: works in %+v, want %s", name, got, want)
			}
		}
		infos, err := h.Contexts(t.Context(), 1)
		if err != nil || infos[0].WorkDirs["a"].Path != want {
			t.Errorf("%s: contexts %+v, %v", name, infos, err)
		}
		for id, want := range map[string]bool{"c": false, "": name == "none"} {
			check := h.CheckDir([]string{"a"}, id, hub.DirRequest{Path: project, Project: true})
			if check.Needed != want || !check.Allowed {
				t.Errorf("%s, context %q: %+v", name, id, check)
			}
		}
	}
}

func TestAReplacedDirectoryEndsItsSession(t *testing.T) {
	h, a, trust := dirHub(t, runner.WorkDirSpec{})
	parent := realTemp(t)
	project := filepath.Join(parent, "shop")
	trust(parent)
	if err := os.Mkdir(project, 0o700); err != nil {
		t.Fatal(err)
	}
	ask := func() *a2a.Task { return send(t, h, withDir("c", map[string]any{hub.MetaProject: project})) }
	ask()
	if err := os.Rename(project, project+"-old"); err != nil {
		t.Fatal(err)
	}
	if task := ask(); errorCode(t, task) != "config" || !strings.Contains(task.Status.Message.Parts[0].Text(), "does not exist: "+project) {
		t.Errorf("deleted: %+v", task.Status)
	}
	if err := os.Mkdir(project, 0o700); err != nil {
		t.Fatal(err)
	}
	if task := ask(); task.Status.State != a2a.TaskStateCompleted || len(a.specs()) != 2 {
		t.Errorf("made again: %+v, %d sessions", task.Status, len(a.specs()))
	}
}

func TestAMessageRequestsAWorktree(t *testing.T) {
	h, a, trust := dirHub(t, runner.WorkDirSpec{})
	repo, plainDir := gitRepository(t), realTemp(t)
	trust(repo, plainDir)
	if err := os.WriteFile(filepath.Join(repo, "draft.txt"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	tree := map[string]any{hub.MetaProject: repo, hub.MetaWorktree: true}
	first := send(t, h, withDir("c", tree))
	dir := hub.WorkDirIn(first.Metadata)
	if dir.Policy != runner.WorkDirWorktree || dir.Repository != repo || dir.Branch == "" || a.specs()[0].WorkDir != dir.Path {
		t.Fatalf("works in %+v: %+v", dir, first.Status)
	}
	if notices := fmt.Sprint(first.Metadata[hub.MetaNotices]); !strings.Contains(notices, "uncommitted changes") {
		t.Errorf("notices: %s", notices)
	}
	for name, req := range map[string]hub.SendRequest{
		"the same": withDir("c", tree), "the project": withDir("c", map[string]any{hub.MetaProject: repo}), "nothing": in("c", "a", "say:x"),
	} {
		if again := hub.WorkDirIn(send(t, h, req).Metadata); again != dir {
			t.Errorf("%s: works in %+v", name, again)
		}
	}
	for name, req := range map[string]hub.SendRequest{
		"the repository itself": withDir("c", map[string]any{hub.MetaWorkDir: repo}),
		"no repository":         withDir("n", map[string]any{hub.MetaProject: plainDir, hub.MetaWorktree: true}),
	} {
		if task := send(t, h, req); errorCode(t, task) != "config" {
			t.Errorf("%s: %+v", name, task.Status)
		}
	}
	if err := hub.ExpireNow(h, "c"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir.Path); !os.IsNotExist(err) {
		t.Errorf("the worktree of an expired conversation: %v", err)
	}
	shared, _, err := h.Worktree(t.Context(), "loop", "n", repo)
	again, _, err2 := h.Worktree(t.Context(), "loop", "n", repo)
	if errors.Join(err, err2) != nil || shared != again || shared.Branch == dir.Branch {
		t.Errorf("a worktree without a conversation: %+v, %+v, %v", shared, again, errors.Join(err, err2))
	}
	if _, _, err := h.Worktree(t.Context(), "loop", "n2", realTemp(t)); hub.CodeOf(err) != hub.CodeInvalid {
		t.Errorf("a worktree of what is not trusted: %v", err)
	}
}

func TestInvalidRequestsForADirectoryAreRefused(t *testing.T) {
	h, _, _ := dirHub(t, runner.WorkDirSpec{})
	for field, meta := range map[string]map[string]any{
		hub.MetaProject:  {hub.MetaProject: "relative"},
		hub.MetaWorktree: {hub.MetaWorktree: true},
	} {
		_, err := h.Send(t.Context(), withDir("", meta))
		if e, ok := errors.AsType[*hub.Error](err); !ok || e.Subject != "message.metadata."+field {
			t.Errorf("%v: %v", meta, err)
		}
	}
	for _, meta := range []map[string]any{{hub.MetaProject: "/a", hub.MetaWorkDir: "/a"}, {hub.MetaWorkDir: "/a", hub.MetaWorktree: "yes"}} {
		if _, err := h.Send(t.Context(), withDir("", meta)); hub.CodeOf(err) != hub.CodeInvalid {
			t.Errorf("%v: %v", meta, err)
		}
	}
}
