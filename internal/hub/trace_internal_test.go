package hub

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// words draws few choices for long texts, since rapid's own strings are slow and short.
func words() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		atom := rapid.SampledFrom([]string{"", "x", "é ", "\x00\"\\\n", "\xff", "hunter2hunter2", "a b"}).Draw(t, "text")
		return strings.Repeat(atom, rapid.SampledFrom([]int{1, 1, 10, 1000, 30_000}).Draw(t, "times"))
	})
}

// redacts knows one secret and no patterns, which cost most of the time of a redaction.
func redacts(secret string) func(string) string {
	return strings.NewReplacer(secret, "[redacted]").Replace
}

func TestATraceStaysWithinItsBoundsAndDecodesToItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int{minTraceBytes, minTraceBytes, 64 << 10}).Draw(t, "limit")
		text, id := words(), rapid.SampledFrom([]string{"", "", "a", "b", "c"})
		dir := &WorkDir{Path: text.Draw(t, "path"), Policy: "fixed"}
		r := newRecorder(Trace{Task: "t", Turn: 1, Agent: text.Draw(t, "agent"), WorkDir: dir, StartedAt: time.Now()}, text.Draw(t, "prompt"), limit,
			redacts("hunter2hunter2"))
		raw := rapid.Custom(func(t *rapid.T) json.RawMessage {
			b, _ := json.Marshal(map[string]any{text.Draw(t, "key"): []any{text.Draw(t, "value"), 1.5, nil}})
			return b[:rapid.SampledFrom([]int{len(b), len(b), len(b) / 2}).Draw(t, "cut")]
		})
		many := rapid.SampledFrom([]int{1, 1, 3, 300})
		steps := map[string]func(*rapid.T){
			"tool": func(t *rapid.T) {
				call := runner.ToolCall{ID: id.Draw(t, "id"), Name: text.Draw(t, "name"), Title: text.Draw(t, "title"),
					Status: runner.ToolStatus(rapid.SampledFrom([]string{"", "running", "completed", "denied", "wrong"}).Draw(t, "status")),
					Input:  raw.Draw(t, "input"), Output: text.Draw(t, "output")}
				for range many.Draw(t, "many") {
					r.event(call)
				}
			},
			"notice": func(t *rapid.T) {
				for range many.Draw(t, "many") {
					r.event(runner.Notice{Text: text.Draw(t, "notice")})
				}
			},
			"usage":   func(t *rapid.T) { r.event(runner.Usage{InputTokens: rapid.Int64().Draw(t, "tokens"), CostUSD: 0.1}) },
			"session": func(t *rapid.T) { r.event(runner.SessionStarted{ID: "s", Model: text.Draw(t, "model")}) },
			"ask": func(t *rapid.T) {
				req := runner.PermissionRequest{ID: text.Draw(t, "id"), Title: text.Draw(t, "title"), Tool: runner.ToolCall{Input: raw.Draw(t, "input")}}
				for range many.Draw(t, "options") {
					req.Options = append(req.Options, runner.PermissionOption{ID: text.Draw(t, "option"), Kind: runner.AllowOnce})
				}
				r.answered(r.asked(req), req, decision{answer: runner.PermissionAnswer{OptionID: req.Options[0].ID, Message: text.Draw(t, "message")}, by: byAgent, agent: text.Draw(t, "agent")})
			},
			"decided": func(t *rapid.T) {
				ev := runner.PermissionDecided{By: runner.ByPolicy, Answer: runner.PermissionAnswer{Message: text.Draw(t, "message")},
					Request: runner.PermissionRequest{ID: text.Draw(t, "id"), Title: text.Draw(t, "title")}}
				for range many.Draw(t, "many") {
					r.event(ev)
				}
			},
			"git": func(t *rapid.T) {
				g := &GitTrace{Before: text.Draw(t, "before"), Problem: text.Draw(t, "problem")}
				for range many.Draw(t, "files") {
					g.Files = append(g.Files, FileChange{Path: "dir/file", Added: 1000000})
				}
				r.setGit(g)
			},
			"end": func(t *rapid.T) {
				r.end("failed", &ErrorTrace{Code: "agent", Message: text.Draw(t, "error")}, runner.Usage{}, text.Draw(t, "model"))
			},
		}
		for _, step := range rapid.SliceOfN(rapid.SampledFrom(slices.Sorted(maps.Keys(steps))), 1, 8).Draw(t, "steps") {
			steps[step](t)
		}
		body, err := r.bytes()
		if err != nil {
			t.Fatal(err)
		}
		if len(body) > limit {
			t.Fatalf("%d bytes", len(body))
		}
		if strings.Contains(string(body), "hunter2hunter2") {
			t.Fatal("a secret is in the trace")
		}
		got, err := decodeTrace(body)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(r.trace, got) {
			t.Fatal(cmp.Diff(r.trace, got))
		}
	})
}

func TestATextTakesNoMoreThanItsRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.ToValidUTF8(words().Draw(t, "text"), "\uFFFD")
		limit, free := rapid.IntRange(0, 5000).Draw(t, "limit"), rapid.IntRange(0, 5000).Draw(t, "room")
		r := room(free)
		kept := r.text(text, len(text), limit)
		body, err := jsonv2.Marshal(kept)
		if err != nil || kept != "" && len(body) > min(limit, free) || int(r) > free || kept != "" && int(r) != free-len(body) {
			t.Fatalf("%d bytes of JSON, %d left, %v", len(body), r, err)
		}
	})
}

func FuzzDecodeTrace(f *testing.F) {
	f.Add([]byte(`{"taskId":"t","turn":1,"state":"running","tools":[{"id":"1","input":{"a":[1,"x"]}}],"questions":[{"answer":{"allowed":true}}]}`))
	f.Add([]byte(`{"git":{"files":[{"path":"a","added":1}]},"startedAt":"2026-11-22T22:00:00Z","workdir":{"path":"/"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		trace, err := decodeTrace(body)
		if err != nil {
			return
		}
		again, err := encodeTrace(&trace)
		if err != nil {
			t.Skip() // a time that JSON does not know
		}
		got, err := decodeTrace(again)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(trace, got); d != "" {
			t.Fatal(d)
		}
	})
}

func TestASecretAtACutIsNotInATrace(t *testing.T) {
	secret := "correct-horse-battery-staple"
	r := newRecorder(Trace{Task: "t"}, "", 256<<10, redacts(secret))
	for n := maxTraceOutput - 200; n < maxTraceOutput+100; n++ {
		r.event(runner.ToolCall{ID: "x", Output: strings.Repeat("x", n-1) + " " + secret + " " + strings.Repeat("y", 1<<16)})
		out := r.trace.Tools[0].Output
		if strings.Contains(out, "corr") || !strings.Contains(out, "… [cut: ") {
			t.Fatalf("%d: %s", n, out[len(out)-200:])
		}
	}
	quoted := "pass\"word<1>"
	r = newRecorder(Trace{Task: "t"}, "", 256<<10, process.NewRedactor(nil, quoted).Redact)
	for i, in := range []any{map[string]string{"a": quoted}, []string{quoted}} {
		raw, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		r.event(runner.ToolCall{ID: string(rune('a' + i)), Input: raw})
		if got := string(r.trace.Tools[i].Input); strings.Contains(got, "word") || !json.Valid([]byte(got)) {
			t.Error(got)
		}
	}
}

// tracked makes a git repository with one commit of a.txt, whose three lines are one, two and three.
func tracked(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	git(t, dir, "init", "-q", "-b", "main")
	write(t, filepath.Join(dir, "a.txt"), "one\ntwo\nthree\n")
	git(t, dir, "add", ".")
	commit(t, dir)
	return dir
}

func commit(t *testing.T, dir string) {
	t.Helper()
	git(t, dir, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qam", "change")
}

func TestTheChangesOfATurn(t *testing.T) {
	dir := tracked(t)
	write(t, filepath.Join(dir, "dirty.txt"), "the user's\n")
	write(t, filepath.Join(dir, "b.txt"), "1\n2\n")
	git(t, dir, "add", "b.txt")
	commit(t, dir)
	write(t, filepath.Join(dir, "b.txt"), "1\n2\n3 of the user\n")

	c := watchChanges(t.Context(), filepath.Join(dir), "")
	<-c.ready
	before := c.before.head
	write(t, filepath.Join(dir, "a.txt"), "one\n2\nthree\nfour\n")
	commit(t, dir) // b.txt, too
	write(t, filepath.Join(dir, "new.txt"), "x\ny")
	write(t, filepath.Join(dir, "bin"), "a\x00b")
	c.late = false // on a slow computer
	got := c.end(t.Context())
	if got.Before != before || got.After == before || len(got.After) != 40 {
		t.Errorf("from %s to %s", got.Before, got.After)
	}
	want := []FileChange{{Path: "a.txt", Added: 2, Deleted: 1}, {Path: "bin", Binary: true, New: true}, {Path: "new.txt", Added: 2, New: true}}
	if d := cmp.Diff(want, got.Files); d != "" || got.Added != 4 || got.Deleted != 1 || got.Branch != "main" || got.Problem != "" {
		t.Error(d, got)
	}
}

// What the user had changed already is compared by content: the same number of lines may be other lines.
func TestChangesOfFilesThatWereChangedAlready(t *testing.T) {
	dir := tracked(t)
	big := strings.Repeat("x\n", maxCounted)
	for name, text := range map[string]string{
		"a.txt": "one\n2\nthree\n", "new.txt": "mine\n", "same.txt": "same\n", "gone.txt": "1\n2\n", "big.txt": big, "bin": "\x00a", "n\xff.txt": "a\n",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	c := watchChanges(t.Context(), dir, "")
	<-c.ready
	for name, text := range map[string]string{
		"a.txt": "one\nZWEI\nthree\n", "new.txt": "its\n", "same.txt": "same\n", "big.txt": big[2:] + "y\n", "bin": "\x00b", "n\xff.txt": "b\n",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	if err := os.Remove(filepath.Join(dir, "gone.txt")); err != nil {
		t.Fatal(err)
	}
	c.late = false // on a slow computer
	got := c.end(t.Context())
	want := []FileChange{
		{Path: "a.txt", Added: 1, Deleted: 1}, {Path: "big.txt", New: true}, {Path: "bin", Binary: true, New: true},
		{Path: "gone.txt", Deleted: 2}, {Path: "new.txt", Added: 1, Deleted: 1, New: true}, {Path: "n\uFFFD.txt", Added: 1, Deleted: 1, New: true},
	}
	if d := cmp.Diff(want, got.Files); d != "" || got.Added != 3 || got.Deleted != 5 || got.Problem != "" {
		t.Error(d, got)
	}
}

// A turn's end does not wait for a look at the repository that has not ended.
func TestASlowLookAtTheBeginIsGivenUp(t *testing.T) {
	ready := make(chan struct{})
	c := &changes{top: tracked(t), ready: ready}
	canceled, cancel := context.WithCancel(t.Context())
	c.cancel = cancel
	go func() {
		<-canceled.Done()
		c.err = canceled.Err()
		close(ready)
	}()
	over, stop := context.WithCancel(t.Context())
	stop()
	if got := c.end(over); got.Problem != "git did not answer in time" {
		t.Errorf("%+v", got)
	}
}

func TestAPipeInARepositoryIsNotRead(t *testing.T) {
	dir := tracked(t)
	if err := exec.Command("mkfifo", filepath.Join(dir, "pipe")).Run(); err != nil {
		t.Skip(err)
	}
	c := watchChanges(t.Context(), dir, "")
	<-c.ready
	c.late = false
	if got := c.end(t.Context()); got.Problem != "" || len(got.Files) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestTheFirstCommitOfATurn(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	git(t, dir, "init", "-q", "-b", "main")
	c := watchChanges(t.Context(), dir, "")
	<-c.ready
	write(t, filepath.Join(dir, "a.txt"), "one\n")
	git(t, dir, "add", ".")
	commit(t, dir)
	c.late = false
	got := c.end(t.Context())
	if got.Before != "" || got.After == "" || got.Added != 1 || len(got.Files) != 1 || got.Problem != "" {
		t.Errorf("%+v", got)
	}
}

// A turn may work in a repository that is not the usual one: with a detached head, a linked worktree, a submodule, or
// a directory below the root.
func TestTheChangesInUnusualRepositories(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, dir string) (work string){
		"no branch": func(t *testing.T, dir string) string {
			git(t, dir, "checkout", "-q", "--detach")
			return dir
		},
		"a linked worktree": func(t *testing.T, dir string) string {
			work := filepath.Join(t.TempDir(), "linked")
			git(t, dir, "worktree", "add", "-q", "--detach", work)
			return work
		},
		"a submodule": func(t *testing.T, dir string) string {
			outer := tracked(t)
			git(t, outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", dir, "sub")
			git(t, filepath.Join(outer, "sub"), "checkout", "-q", "--detach")
			return filepath.Join(outer, "sub")
		},
	} {
		t.Run(name, func(t *testing.T) {
			work, err := filepath.EvalSymlinks(prepare(t, tracked(t)))
			if err != nil {
				t.Fatal(err)
			}
			below := filepath.Join(work, "below")
			if err := os.Mkdir(below, 0o700); err != nil {
				t.Fatal(err)
			}
			c := watchChanges(t.Context(), below, "")
			<-c.ready
			write(t, filepath.Join(work, "a.txt"), "one\n")
			commit(t, work)
			write(t, filepath.Join(below, "new.txt"), "x\n")
			c.late = false // on a slow computer
			got := c.end(t.Context())
			want := []FileChange{{Path: "a.txt", Deleted: 2}, {Path: "below/new.txt", Added: 1, New: true}}
			if d := cmp.Diff(want, got.Files); d != "" || got.Branch != "" || got.Before == got.After || len(got.Before) != 40 || len(got.After) != 40 || got.Problem != "" {
				t.Error(d, got)
			}
		})
	}
}

// The repository around a submodule, a nested one and a bare one have no changes of a turn in them.
func TestRepositoriesWithinARepositoryAreNotRead(t *testing.T) {
	inner, outer := tracked(t), tracked(t)
	git(t, outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", inner, "sub")
	commit(t, outer)
	git(t, outer, "init", "-q", "nested")
	c := watchChanges(t.Context(), outer, "")
	<-c.ready
	for _, name := range []string{"sub", "nested"} {
		write(t, filepath.Join(outer, name, "new.txt"), "x\n")
	}
	c.late = false
	if got := c.end(t.Context()); got.Problem != "" || len(got.Files) != 0 {
		t.Errorf("%+v", got)
	}
	if got := watchChanges(t.Context(), t.TempDir(), ""); got != nil || got.end(t.Context()) != nil {
		t.Errorf("outside a repository: %+v", got)
	}
}

func TestWithoutGitTheTraceSaysSo(t *testing.T) {
	dir := tracked(t)
	t.Setenv("PATH", t.TempDir())
	c := watchChanges(t.Context(), dir, "")
	<-c.ready
	if got := c.end(t.Context()); got.Problem != "git is not installed" || got.Files != nil {
		t.Errorf("%+v", got)
	}
}

// The repository's configuration is anybody's: looking at its changes runs none of its programs.
func TestAnUntrustedRepositoryRunsNothing(t *testing.T) {
	dir := tracked(t)
	ran := filepath.Join(t.TempDir(), "ran")
	script := filepath.Join(dir, ".git", "evil.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho \"$0 $@\" >> "+ran+"\ncat\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"filter.evil.clean", "filter.evil.process", "filter.evil.smudge", "core.fsmonitor", "diff.external", "diff.evil.textconv", "diff.evil.command",
		"core.pager", "core.editor", "core.askPass", "core.sshCommand", "alias.diff", "alias.rev-parse",
	} {
		git(t, dir, "config", key, script)
	}
	git(t, dir, "config", "filter.evil.required", "true")
	for _, hook := range []string{"post-index-change", "pre-commit", "fsmonitor-watchman", "post-checkout"} {
		if err := os.MkdirAll(filepath.Join(dir, ".git", "hooks"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(script, filepath.Join(dir, ".git", "hooks", hook)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, ".gitattributes"), "* filter=evil diff=evil\n")
	write(t, filepath.Join(dir, "a.txt"), "changed\n")

	c := watchChanges(t.Context(), dir, "")
	<-c.ready
	write(t, filepath.Join(dir, "a.txt"), "changed again\nand again\n")
	c.late = false
	if got := c.end(t.Context()); got.Problem != "" || len(got.Files) != 1 {
		t.Errorf("%+v", got)
	}
	if out, err := os.ReadFile(ran); err == nil {
		t.Errorf("it ran: %s", out)
	}
	// The test can fail: git itself runs the filter.
	_ = exec.Command("git", "-C", dir, "-c", "core.fsmonitor=false", "status").Run()
	if _, err := os.ReadFile(ran); err != nil {
		t.Skip("git ran no filter by itself: ", err)
	}
}

func TestARepositoryIsSearchedUpToTheDataDirectory(t *testing.T) {
	dir := tracked(t)
	data := filepath.Join(dir, "data")
	work := filepath.Join(data, "contexts", "x")
	if err := os.MkdirAll(work, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := repositoryOf(work, data); got != "" {
		t.Error(got)
	}
	if got := repositoryOf(work, ""); got != dir {
		t.Error(got)
	}
	// A repository whose configuration names another directory is not used.
	git(t, dir, "config", "core.worktree", "/")
	c := watchChanges(t.Context(), dir, "")
	<-c.ready
	if got := c.end(t.Context()); got.Problem == "" || len(got.Files) != 0 {
		t.Errorf("%+v", got)
	}
}
