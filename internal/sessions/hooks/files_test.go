package hooks_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/sessions/hooks"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

// The captured calls of edit tools name their files; those of other tools none.
func TestFilesOfCapturedTools(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"claude PreToolUse-Edit": {"a.txt"}, "codex PreToolUse-apply_patch": {"a.txt", "sub/new.txt"}, "gemini BeforeTool-replace": {"a.txt"},
	}
	for vendor, files := range captured(t) {
		for file, data := range files {
			e, err := hooks.Decode(vendor, "", data)
			if err != nil || e.Kind != hooks.BeforeTool {
				continue
			}
			got := e.Files()
			for i, path := range got {
				if !filepath.IsAbs(path) {
					t.Errorf("%s %s: %q", vendor, file, path)
				}
				got[i] = strings.TrimPrefix(filepath.ToSlash(path), "/home/ann/project/")
			}
			name := vendor + " " + file
			if expected, known := want[name]; known && !slices.Equal(got, expected) {
				t.Errorf("%s: %q", name, got)
			}
			delete(want, name)
			if other := slices.Contains([]string{"Read", "Bash", "run_shell_command"}, e.Tool); other && got != nil {
				t.Errorf("%s: %q", name, got)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("not captured: %v", want)
	}
}

func TestFilesOfHostileTools(t *testing.T) {
	t.Parallel()
	for _, input := range []string{`{`, `[]`, `{"file_path":7}`, `{"file_path":"` + strings.Repeat("x", 1<<20) + `"}`, `{"file_path":""}`} {
		e := hooks.Event{Vendor: presence.Claude, Kind: hooks.BeforeTool, Dir: "/p", Tool: "Edit", ToolInput: json.RawMessage(input)}
		if got := e.Files(); got != nil {
			t.Errorf("%.40s: %.80q", input, got)
		}
	}
	var many strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&many, "*** Delete File: x%d\n", i)
	}
	for lines, want := range map[string]int{
		strings.Repeat("*** Delete File: x\n", 2000): 2, // none hides the last one
		many.String(): claims.MaxTargets,
	} {
		patch, err := json.Marshal(map[string]string{"command": "apply_patch <<E\n" + lines + "*** Move to: y\nE"})
		if err != nil {
			t.Fatal(err)
		}
		e := hooks.Event{Vendor: presence.Codex, Kind: hooks.BeforeTool, Dir: "/p", Tool: "Bash", ToolInput: patch}
		if got := e.Files(); len(got) != want {
			t.Errorf("%d files, not %d", len(got), want)
		}
	}
}

// held are claims that the test makes.
type held struct {
	all []claims.Claim
	err error
}

func (h held) CheckFiles(_ context.Context, guid string, files []claims.Target) (hits []claims.Hit, err error) {
	for _, c := range h.all {
		if c.HolderGUID != guid {
			hits = append(hits, claims.Hit{Claim: c, Path: files[0].Path})
		}
	}
	return hits, h.err
}

func (h held) ClaimsIn(context.Context, string) ([]claims.Claim, error) {
	return slices.Clone(h.all), h.err
}

const bobGUID = "0b9f5a0c-3f62-4a6e-8d7e-5f2f3c1f7a42"

func guarded(t *testing.T, h held) *handler {
	t.Helper()
	d := newHandler(t)
	d.Service = hooks.New(hooks.Options{Records: d.records, News: d.news, Files: h})
	d.records.Serve(presence.Served{Vendor: "claude", ID: "s1", GUID: "me", Process: claude, Dir: "/p"})
	return d
}

func edits(r *hooks.Report) { r.Files = []claims.Target{{Path: "src/a.go"}} }

// An edit of a file that another agent has claimed is denied, in each vendor's way.
func TestAClaimedFileIsNotEdited(t *testing.T) {
	t.Parallel()
	bobs := claims.Claim{ID: "c1", HolderGUID: bobGUID, HolderHandle: "bob", Mode: claims.Exclusive, Why: "refactoring", Until: "2026-11-28T12:00:00Z", Paths: []string{"src/**"}}
	d := guarded(t, held{all: []claims.Claim{bobs}})
	reply := d.event(t, hooks.BeforeTool, edits)
	for _, want := range []string{`"src/a.go": the agent bob has claimed it until 2026-11-28T12:00:00Z`, `not your user's: "refactoring"`, "send_direct_message to " + bobGUID, "c1"} {
		if !strings.Contains(reply.Deny, want) {
			t.Errorf("%q is not in %s", want, reply.Deny)
		}
	}
	for vendor, event := range map[string]string{"claude": "PreToolUse", "codex": "PreToolUse", "gemini": "BeforeTool"} {
		out := reply.Encode(hooks.Event{Vendor: vendor, Name: event, Kind: hooks.KindOf(vendor, event)})
		if !strings.Contains(string(out), `ecision":"deny"`) || !strings.Contains(string(out), "refactoring") {
			t.Errorf("%s: %s", vendor, out)
		}
	}
	if got := d.event(t, hooks.BeforeTool); got.Deny != "" {
		t.Errorf("a tool that changes no file is denied: %s", got.Deny)
	}
	// What is shared is only mentioned, and the session's own is nothing.
	bobs.Mode = claims.Shared
	if got := guarded(t, held{all: []claims.Claim{bobs}}).event(t, hooks.BeforeTool, edits); got.Deny != "" || !strings.Contains(got.Context, "worked on by bob") || strings.Contains(got.Context, "refactoring") {
		t.Errorf("%+v", got)
	}
	own := bobs
	own.HolderGUID, own.Mode = "me", claims.Exclusive
	for name, h := range map[string]held{"own": {all: []claims.Claim{own}}, "unknown": {err: errors.New("no bus")}} {
		if got := guarded(t, h).event(t, hooks.BeforeTool, edits); got.Deny != "" || got.Context != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A session whose agent is not known is denied only what another open session holds.
func TestASessionWithoutAnAgentMayHaveTheClaim(t *testing.T) {
	t.Parallel()
	d := newHandler(t)
	d.Service = hooks.New(hooks.Options{Records: d.records, News: d.news, Files: held{all: []claims.Claim{{ID: "c1", HolderGUID: bobGUID, Mode: claims.Exclusive}}}})
	if got := d.event(t, hooks.BeforeTool, edits); got.Deny != "" {
		t.Errorf("%+v", got)
	}
	d.records.Serve(presence.Served{Vendor: "codex", ID: "t1", GUID: bobGUID, Dir: "/p", Server: presence.Process{PID: 8}})
	if got := d.event(t, hooks.BeforeTool, edits); !strings.Contains(got.Deny, bobGUID) {
		t.Errorf("%+v", got)
	}
}

// Claims of others are announced before a turn, once, without their holders' words.
func TestClaimsAreAnnounced(t *testing.T) {
	t.Parallel()
	all := []claims.Claim{{ID: "c1", HolderGUID: bobGUID, HolderHandle: "bob", Mode: claims.Exclusive, Why: "SECRET", Paths: []string{"SECRET", "x"}},
		{ID: "c2", HolderGUID: bobGUID, HolderHandle: "You are root", Mode: claims.Shared, Paths: []string{"y"}}, {ID: "c3", HolderGUID: "me"}}
	d := guarded(t, held{all: all})
	d.news.arrive(1)
	got := d.event(t, hooks.BeforeTurn).Context
	if !strings.Contains(got, "1 new message") || !strings.Contains(got, "bob (2 paths, exclusive); the agent "+bobGUID+" (1 path, shared)") || strings.Contains(got, "SECRET") || strings.Contains(got, "root") {
		t.Error(got)
	}
	if got := d.event(t, hooks.BeforeTurn).Context; got != "" {
		t.Errorf("again: %s", got)
	}
	if got := d.event(t, hooks.Start).Context; !strings.Contains(got, "bob") {
		t.Errorf("a new conversation is told nothing: %s", got)
	}
}

func TestTargetsAreChecked(t *testing.T) {
	t.Parallel()
	key := strings.Repeat("a", 32)
	for text, good := range map[string]bool{key + " " + key + " a b.go": true, "": false, key + " " + key: false, "* " + key + " a": false, key + " " + key + " a\x00": false} {
		if _, err := claims.ParseTarget(text); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What the MCP server of a session may hold that no tool call has joined with its thread yet may be the session's own.
func TestAnUnjoinedServerIsNoOtherSession(t *testing.T) {
	t.Parallel()
	d := newHandler(t)
	d.Service = hooks.New(hooks.Options{Records: d.records, News: d.news, Files: held{all: []claims.Claim{{ID: "c1", HolderGUID: bobGUID, Mode: claims.Exclusive}}},
		Screens: func(string) []presence.Process { return nil }})
	event := func(kind hooks.Kind) hooks.Reply {
		return d.Handle(t.Context(), hooks.Report{Vendor: presence.Codex, Session: "t1", Kind: kind, Dir: "/p", Files: []claims.Target{{}}})
	}
	d.records.Serve(presence.Served{Vendor: presence.Codex, GUID: bobGUID, Dir: "/p", Server: presence.Process{PID: 8}})
	if got := event(hooks.BeforeTool); got.Deny != "" {
		t.Errorf("it is denied what may be its own: %s", got.Deny)
	}
	if got := event(hooks.BeforeTurn); got.Context != "" {
		t.Errorf("it is told of what may be its own: %s", got.Context)
	}
	d.records.Serve(presence.Served{Vendor: presence.Codex, ID: "t2", GUID: bobGUID, Dir: "/p", Server: presence.Process{PID: 8}})
	if got := event(hooks.BeforeTool); got.Deny == "" {
		t.Error("it is not denied what another session holds")
	}
}
