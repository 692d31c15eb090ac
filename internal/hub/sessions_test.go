package hub_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
		if dir := hub.WorkDirOf(task); dir != (hub.WorkDir{Path: project, Policy: runner.WorkDirFixed}) {
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
