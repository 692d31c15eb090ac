package hub

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func words() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		s := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
			rapid.Just("token=hunter2hunter2"), rapid.Just("\x00\"\\\n")).Draw(t, "text")
		return strings.Repeat(s, rapid.SampledFrom([]int{1, 1, 1, 1, 20, 500}).Draw(t, "times"))
	})
}

func TestATraceStaysWithinItsBoundsAndDecodesToItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int{minTraceBytes, 64 << 10, 256 << 10}).Draw(t, "limit")
		text, id := words(), rapid.SampledFrom([]string{"", "a", "b", "c"})
		dir := &WorkDir{Path: text.Draw(t, "path"), Policy: "fixed"}
		r := newRecorder(Trace{Task: "t", Turn: 1, Agent: text.Draw(t, "agent"), WorkDir: dir, StartedAt: time.Now()}, text.Draw(t, "prompt"), limit,
			process.NewRedactor([]string{"A_TOKEN=hunter2hunter2"}).Redact)
		raw := rapid.Custom(func(t *rapid.T) json.RawMessage {
			b, _ := json.Marshal(map[string]any{text.Draw(t, "key"): []any{text.Draw(t, "value"), 1.5, nil}})
			return b[:rapid.SampledFrom([]int{len(b), len(b), len(b) / 2}).Draw(t, "cut")]
		})
		many := rapid.SampledFrom([]int{1, 1, 1, 20})
		t.Repeat(map[string]func(*rapid.T){
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
				r.answered(r.asked(req), req, decision{answer: runner.PermissionAnswer{OptionID: req.Options[0].ID, Message: text.Draw(t, "message")}}, "user")
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
			"": func(t *rapid.T) {
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
				if d := cmp.Diff(r.trace, got); d != "" {
					t.Fatal(d)
				}
			},
		})
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
	r := newRecorder(Trace{Task: "t"}, "", 256<<10, process.NewRedactor(nil, secret).Redact)
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
	got := c.end(t.Context())
	if got.Before != before || got.After == before || len(got.After) != 40 {
		t.Errorf("from %s to %s", got.Before, got.After)
	}
	want := []FileChange{{Path: "a.txt", Added: 2, Deleted: 1}, {Path: "bin", Binary: true, New: true}, {Path: "new.txt", Added: 2, New: true}}
	if d := cmp.Diff(want, got.Files); d != "" || got.Added != 4 || got.Deleted != 1 || got.Branch != "main" || got.Problem != "" {
		t.Error(d, got)
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
	got := c.end(t.Context())
	if got.Before != "" || got.After == "" || got.Added != 1 || len(got.Files) != 1 || got.Problem != "" {
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
