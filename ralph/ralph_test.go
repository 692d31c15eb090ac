package ralph_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/telemetry/audit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const markdown = "# Plan\r\n\r\n- [ ] first\r\n  with more\r\n- [x] done before\r\n```\n- [ ] code\n```\n* [ ] second\n1. [ ] third\n- [] no box\n- [ ] first\n"

func file(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func open(t testing.TB, path string) (*ralph.File, []ralph.Item) {
	t.Helper()
	f, err := ralph.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	items, err := f.Items(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return f, items
}

func TestMarkdownItems(t *testing.T) {
	_, items := open(t, file(t, "list.md", markdown))
	var got []string
	ids := make(map[string]bool)
	for _, i := range items {
		got = append(got, fmt.Sprint(i.Done, " ", i.Text))
		ids[i.ID] = true
	}
	want := []string{"false first\nwith more", "true done before", "false second", "false third", "false first"}
	if diff := cmp.Diff(want, got); diff != "" || len(ids) != 5 {
		t.Fatalf("%d ids (-want +got):\n%s", len(ids), diff)
	}
}

func TestCompletingAnItemChangesOnlyItsMark(t *testing.T) {
	path := file(t, "list.md", markdown)
	f, items := open(t, path)
	for _, i := range []int{4, 0, 0} { // of two equal items the second first; one item twice
		if err := f.Complete(t.Context(), items[i].ID, ralph.Outcome{}); err != nil {
			t.Fatal(err)
		}
	}
	want := strings.ReplaceAll(markdown, "[ ] first", "[x] first")
	if diff := cmp.Diff(want, read(t, path)); diff != "" {
		t.Fatal(diff)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}
	if err := f.Complete(t.Context(), "nothing", ralph.Outcome{}); ralph.CodeOf(err) != ralph.CodeLost {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Dir(path) + "/.parley-*"); err != nil || len(left) > 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
}

func TestASymbolicLinkToAListIsKept(t *testing.T) {
	path := file(t, "real.md", "- [ ] a\n")
	link := filepath.Join(t.TempDir(), "link.md")
	if err := os.Symlink(path, link); err != nil {
		t.Skip("the system has no symbolic links:", err)
	}
	f, items := open(t, link)
	if err := f.Complete(t.Context(), items[0].ID, ralph.Outcome{}); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(link); err != nil || target != path || read(t, path) != "- [x] a\n" {
		t.Errorf("%q, %v, %q", target, err, read(t, path))
	}
}

func TestJSONItems(t *testing.T) {
	for name, tt := range map[string]struct{ text, ticked string }{
		"array":   {`[ {"task":"a","note":{"done":1}},{"id":"b", "task":"b","done" : false,"capabilities":["go"]} ]`, `[ {"done": true, "task":"a","note":{"done":1}},{"id":"b", "task":"b","done" : true,"capabilities":["go"]} ]`},
		"object":  {"{\"name\":[1,{\"tasks\":2}],\r\n \"tasks\":[{\"done\":false,\"task\":\"a\"},{\"task\":\"b\"}],\"z\":1}\n", "{\"name\":[1,{\"tasks\":2}],\r\n \"tasks\":[{\"done\":true,\"task\":\"a\"},{\"done\": true, \"task\":\"b\"}],\"z\":1}\n"},
		"unicode": {`[{"task":"ä\u00e4","done":false}]`, `[{"task":"ä\u00e4","done":true}]`},
	} {
		path := file(t, "list.json", tt.text)
		f, items := open(t, path)
		for _, i := range items {
			if err := f.Complete(t.Context(), i.ID, ralph.Outcome{}); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(tt.ticked, read(t, path)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for _, text := range []string{``, `3`, `{}`, `{"tasks":{}}`, `[3]`, `[{}]`, `[{"task":""}]`, `[{"task":"a","done":"no"}]`, `[{"task":"a","done":null}]`,
		`[{"task":"a","id":"1"},{"task":"b","id":"1"}]`, `[{"task":"a","done":false,"done":true}]`, `[{"task":"a"}`, "[{\"task\":\"\xff\"}]"} {
		if _, err := ralph.Open(file(t, "list.json", text)); ralph.CodeOf(err) != ralph.CodeList {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := ralph.Open(filepath.Join(t.TempDir(), "none.md")); ralph.CodeOf(err) != ralph.CodeList {
		t.Error(err)
	}
}

// Completing an item changes the mark of that item and no other byte, in any list.
func TestCompletingItemsKeepsTheRestOfAnyList(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.OneOf(
			rapid.Custom(func(t *rapid.T) string {
				return rapid.StringMatching(`[ \t]{0,4}([-*+]|[0-9]{1,2}[.)]) \[[ xX]\] [a-c ]{0,4}[a-z].{0,6}`).Draw(t, "item")
			}),
			rapid.StringMatching("(```|~~~~)?.{0,12}"), rapid.Just("```"),
		)
		text := strings.Join(rapid.SliceOf(line).Draw(t, "lines"), rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(t, "end"))
		path := filepath.Join(dir, "list.md")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := ralph.Open(path)
		if err != nil {
			t.Skip("no list") // not UTF-8, say
		}
		items, err := f.Items(t.Context())
		if err != nil || len(items) == 0 {
			t.Skip("no items")
		}
		i := rapid.IntRange(0, len(items)-1).Draw(t, "which")
		if err := f.Complete(t.Context(), items[i].ID, ralph.Outcome{}); err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		differ := 0
		for at := range now {
			if now[at] != text[at] {
				differ++
				if text[at] != ' ' || now[at] != 'x' {
					t.Fatalf("byte %d: %q became %q", at, text[at], now[at])
				}
			}
		}
		want := 1
		if items[i].Done {
			want = 0
		}
		if len(now) != len(text) || differ != want {
			t.Fatalf("%d bytes differ in\n%q\n%q", differ, text, now)
		}
		after, err := f.Items(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		items[i].Done = true
		if diff := cmp.Diff(items, after); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzLists(f *testing.F) {
	f.Add("list.md", markdown)
	f.Add("list.json", `{"tasks":[{"task":"a","done":false},{"task":"b"}]}`)
	f.Fuzz(func(t *testing.T, name, text string) {
		kind := "x.md"
		if strings.HasSuffix(name, "json") {
			kind = "x.json"
		}
		list, err := ralph.Open(file(t, kind, text))
		if err != nil {
			return
		}
		items, err := list.Items(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range items {
			if err := list.Complete(t.Context(), items[i].ID, ralph.Outcome{}); err != nil {
				t.Fatal(err)
			}
			items[i].Done = true
		}
		after, err := list.Items(t.Context())
		if diff := cmp.Diff(items, after); err != nil || diff != "" {
			t.Fatalf("%v\n%s", err, diff)
		}
	})
}

// crew is a dispatcher whose behaviour is given by functions.
type crew struct {
	do     func(ctx context.Context, j ralph.Job) (string, error)
	resume func(ref string) (string, error)
	jobs   []ralph.Job
}

func (c *crew) Dispatch(ctx context.Context, j ralph.Job, begins func(string) error) (ralph.Outcome, error) {
	c.jobs = append(c.jobs, j)
	if err := begins(fmt.Sprintf("ref-%s-%d", j.Item.Text, j.Attempt)); err != nil {
		return ralph.Outcome{}, err
	}
	text, err := c.do(ctx, j)
	return ralph.Outcome{Text: text}, err
}

func (c *crew) Resume(_ context.Context, _ ralph.Job, ref string) (ralph.Outcome, error) {
	text, err := c.resume(ref)
	return ralph.Outcome{Text: text}, err
}

type check func(j ralph.Job, o ralph.Outcome) (ralph.Verdict, error)

func (c check) Validate(_ context.Context, j ralph.Job, o ralph.Outcome) (ralph.Verdict, error) {
	return c(j, o)
}

type steps struct{ all []ralph.Step }

func (s *steps) record(st ralph.Step) error {
	s.all = append(s.all, st)
	return nil
}

func (s *steps) kinds() string {
	var k []string
	for _, st := range s.all {
		k = append(k, string(st.Kind))
	}
	return strings.Join(k, " ")
}

func newLoop(t *testing.T, o ralph.Options) *ralph.Loop {
	t.Helper()
	l, err := ralph.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func said(context.Context, ralph.Job) (string, error) { return "done", nil }

func TestALoopWorksThroughItsList(t *testing.T) {
	path := file(t, "list.md", "- [ ] a\n- [x] b\n- [ ] c\n")
	list, _ := open(t, path)
	log := filepath.Join(t.TempDir(), "audit")
	a, err := audit.Open(log, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, c := new(steps), &crew{do: said}
	record := func(st ralph.Step) error { return errors.Join(s.record(st), a.Append(st.Event(), nil)) }
	sum, err := newLoop(t, ralph.Options{List: list, Dispatcher: c, StateFile: path + ".state", Record: record}).Run(t.Context())
	if err != nil || sum.Completed != 2 || sum.Open != 0 {
		t.Fatalf("%+v, %v", sum, err)
	}
	if got := read(t, path); got != "- [x] a\n- [x] b\n- [x] c\n" {
		t.Error(got)
	}
	want := "began dispatched answered completed dispatched answered completed finished"
	if got := s.kinds(); got != want {
		t.Errorf("steps %s\nwant  %s", got, want)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for rec, err := range audit.Read(log) {
		if err != nil || rec.Event.Type != ralph.StepEvent {
			t.Fatalf("%v: %+v", err, rec)
		}
		n++
	}
	if n != len(s.all) {
		t.Errorf("%d records of %d steps", n, len(s.all))
	}
}

func TestAFailureIsInTheNextPromptUntilTheItemFails(t *testing.T) {
	path := file(t, "list.md", "- [ ] hard\n- [ ] stubborn\n")
	list, items := open(t, path)
	c := &crew{do: said}
	validator := check(func(j ralph.Job, _ ralph.Outcome) (ralph.Verdict, error) {
		return ralph.Verdict{OK: j.Item.Text == "hard" && j.Attempt == 2, Report: strings.Repeat("x", 20<<10) + "test 7 is red"}, nil
	})
	o := ralph.Options{List: list, Dispatcher: c, Validator: validator, StateFile: path + ".state", MaxAttempts: 2}
	sum, err := newLoop(t, o).Run(t.Context())
	if err != nil || sum.Completed != 1 || !slices.Equal(sum.GivenUp, []string{items[1].ID}) {
		t.Fatalf("%+v, %v", sum, err)
	}
	if got := read(t, path); got != "- [x] hard\n- [ ] stubborn\n" {
		t.Error(got)
	}
	if p := c.jobs[1].Prompt(); len(c.jobs) != 4 || !strings.Contains(p, "test 7 is red") || !strings.HasPrefix(p, "hard\n") || len(p) > 10<<10 {
		t.Errorf("%d jobs, prompt of %d bytes", len(c.jobs), len(p))
	}
	if p := c.jobs[0].Prompt(); p != "hard" {
		t.Errorf("%q", p)
	}
	// Another run skips the item that failed.
	if sum, err := newLoop(t, o).Run(t.Context()); err != nil || len(sum.GivenUp) != 1 || len(c.jobs) != 4 {
		t.Errorf("%+v, %v, %d jobs", sum, err, len(c.jobs))
	}
}

func TestAnAgentErrorIsAFailedAttemptUnlikeAMissingAgent(t *testing.T) {
	path := file(t, "list.md", "- [ ] a\n")
	list, _ := open(t, path)
	c := &crew{do: func(_ context.Context, j ralph.Job) (string, error) {
		if j.Attempt == 1 {
			return "", errors.New("the model is on strike")
		}
		return "", &ralph.Error{Code: ralph.CodeUnavailable, Message: "nobody is there"}
	}}
	o := ralph.Options{List: list, Dispatcher: c, StateFile: path + ".state"}
	if _, err := newLoop(t, o).Run(t.Context()); ralph.CodeOf(err) != ralph.CodeUnavailable {
		t.Fatal(err)
	}
	state, err := ralph.ReadState(o.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	p := state.Items[state.Current]
	if p == nil || p.Attempt != 2 || p.Failure != "the model is on strike" {
		t.Fatalf("%+v", p)
	}
}

// errCrash simulates a kill: the loop ends without further steps.
var errCrash = errors.New("killed")

// guild is a dispatcher that does the work of each reference once, however often it is requested.
type guild struct {
	refs int
	did  map[string]ralph.Job
	job  func(at string) error // called before and after the work; an error simulates a kill
}

func (g *guild) Dispatch(ctx context.Context, j ralph.Job, begins func(string) error) (ralph.Outcome, error) {
	g.refs++
	ref := fmt.Sprint("ref-", g.refs)
	if err := begins(ref); err != nil {
		return ralph.Outcome{}, err
	}
	return g.Resume(ctx, j, ref)
}

func (g *guild) Resume(_ context.Context, j ralph.Job, ref string) (ralph.Outcome, error) {
	if err := g.job("before"); err != nil {
		return ralph.Outcome{}, err
	}
	g.did[ref] = j
	return ralph.Outcome{Text: "done"}, g.job("after")
}

// A loop killed at any step, or between the dispatch of work and its outcome, continues after a restart and does
// no work twice.
func TestAKilledLoopContinues(t *testing.T) {
	for at := 1; ; at++ {
		path := file(t, "list.md", "- [ ] a\n- [ ] b\n")
		list, _ := open(t, path)
		n := 0
		kill := func(string) error {
			if n++; n == at {
				return &ralph.Error{Code: ralph.CodeUnavailable, Message: "killed", Err: errCrash}
			}
			return nil
		}
		g := &guild{did: make(map[string]ralph.Job), job: kill}
		o := ralph.Options{List: list, Dispatcher: g, StateFile: path + ".state", Validator: check(func(j ralph.Job, _ ralph.Outcome) (ralph.Verdict, error) {
			return ralph.Verdict{OK: j.Attempt == 2, Report: "again"}, nil
		}), Record: func(ralph.Step) error { return kill("") }}
		_, err := newLoop(t, o).Run(t.Context())
		killed := n >= at
		if killed != errors.Is(err, errCrash) {
			t.Fatalf("killed at %d: %v", at, err)
		}
		n = at // after the last kill
		if _, err := newLoop(t, o).Run(t.Context()); err != nil {
			t.Fatalf("killed at %d: %v", at, err)
		}
		if got := read(t, path); got != "- [x] a\n- [x] b\n" {
			t.Fatalf("killed at %d: %q", at, got)
		}
		attempts := make(map[string]int)
		for _, j := range g.did {
			attempts[fmt.Sprint(j.Item.Text, j.Attempt)]++
		}
		if want := map[string]int{"a1": 1, "a2": 1, "b1": 1, "b2": 1}; !maps.Equal(attempts, want) {
			t.Fatalf("killed at %d: worked on %v", at, attempts)
		}
		if !killed {
			return // the run had fewer steps
		}
	}
}

func TestALoopStopsAndContinues(t *testing.T) {
	path := file(t, "list.md", "- [ ] a\n- [ ] b\n")
	list, _ := open(t, path)
	o := ralph.Options{List: list, StateFile: path + ".state"}
	o.Dispatcher = &crew{do: func(ctx context.Context, _ ralph.Job) (string, error) {
		if err := ralph.Stop(o.StateFile); err != nil {
			return "", err
		}
		if running, err := ralph.Running(o.StateFile); err != nil || !running {
			t.Errorf("running %v, %v", running, err)
		}
		if _, err := newLoop(t, ralph.Options{List: list, Dispatcher: &crew{}, StateFile: o.StateFile}).Run(ctx); ralph.CodeOf(err) != ralph.CodeRunning {
			t.Errorf("a second loop: %v", err)
		}
		<-ctx.Done()
		return "", ctx.Err()
	}}
	if _, err := newLoop(t, o).Run(t.Context()); ralph.CodeOf(err) != ralph.CodeStopped {
		t.Fatal(err)
	}
	if running, err := ralph.Running(o.StateFile); err != nil || running {
		t.Errorf("running %v, %v", running, err)
	}
	var resumed []string
	c := &crew{do: said, resume: func(ref string) (string, error) {
		resumed = append(resumed, ref)
		return "", &ralph.Error{Code: ralph.CodeLost}
	}}
	o.Dispatcher = c
	sum, err := newLoop(t, o).Run(t.Context())
	if err != nil || sum.Completed != 2 || !slices.Equal(resumed, []string{"ref-a-1"}) || c.jobs[0].Attempt != 1 {
		t.Fatalf("%+v, %v, resumed %q, %+v", sum, err, resumed, c.jobs)
	}
	if err := ralph.Stop(o.StateFile); err != nil { // no loop is running
		t.Error(err)
	}
}

func TestDamagedStatesAreRefused(t *testing.T) {
	for _, text := range []string{"", "{", `{"version":9}`, `[]`} {
		if _, err := ralph.ReadState(file(t, "state", text)); ralph.CodeOf(err) != ralph.CodeState {
			t.Errorf("%q: %v", text, err)
		}
	}
	if s, err := ralph.ReadState(file(t, "state", `{"version":1,"items":{"a":null}}`)); err != nil || len(s.Items) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := ralph.New(ralph.Options{}); ralph.CodeOf(err) != ralph.CodeInvalid {
		t.Error(err)
	}
}

// A loop dispatches its items to swarms, which escalate to it and report to it (Req 8.1, Req 8.5, Req 8.6).
func TestALoopDispatchesToSwarms(t *testing.T) {
	reg := registry.New(registry.Options{})
	r, err := router.New(reg, router.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(r.Close(context.Background()), reg.Close()); err != nil {
			t.Error(err)
		}
	}()
	join := func(id string, tier agent.Tier) *negotiation.Negotiator {
		if _, err := reg.Register(agent.Card{ID: id, Name: id, Version: "1", Tier: tier, Capabilities: []agent.Capability{{ID: "work"}}}); err != nil {
			t.Fatal(err)
		}
		n, err := negotiation.New(r, id, negotiation.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	sun, mars := join("sun", agent.L0), join("mars", agent.L2)
	defer func() {
		if err := errors.Join(sun.Close(), mars.Close()); err != nil {
			t.Error(err)
		}
	}()
	tries := 0
	p := swarm.NewParticipant(r, mars, func(_ context.Context, j swarm.Job) (json.RawMessage, error) {
		if tries++; tries < 5 {
			return nil, errors.New("not yet")
		}
		return json.Marshal("did " + j.Description)
	}, swarm.ParticipantOptions{})
	defer p.Close()
	s := new(steps)
	swarms := ralph.NewSwarms(nil, 1, s.record)
	c := swarm.NewCoordinator(r, sun, swarm.CoordinatorOptions{Reporter: swarms})
	defer c.Close()

	path := file(t, "list.json", `[{"task":"dig","capabilities":["work"]}]`)
	list, _ := open(t, path)
	o := ralph.Options{List: list, Dispatcher: swarms, StateFile: path + ".state"}
	if _, err := newLoop(t, o).Run(t.Context()); ralph.CodeOf(err) != ralph.CodeUnavailable {
		t.Fatal(err) // the coordinator does not exist yet
	}
	swarms.Use(c)
	var answer string
	o.Validator = check(func(_ ralph.Job, out ralph.Outcome) (ralph.Verdict, error) {
		answer = out.Text
		return ralph.Verdict{OK: true}, nil
	})
	sum, err := newLoop(t, o).Run(t.Context())
	if err != nil || sum.Completed != 1 || !strings.Contains(answer, "did dig") || s.kinds() != "escalated" {
		t.Fatalf("%+v, %v, %q, steps %s", sum, err, answer, s.kinds())
	}
	// A resumed item that has not started is started once, however often Resume is called.
	fill := ralph.Job{Item: ralph.Item{Text: "fill", Capabilities: []string{"work"}}, Attempt: 1}
	for range 2 {
		if out, err := swarms.Resume(t.Context(), fill, "not-begun"); err != nil || !strings.Contains(out.Text, "did fill") || tries != 6 {
			t.Errorf("%+v, %v, %d tries", out, err, tries)
		}
	}
}

// An item that failed is open again once its text changed, even below its first line, and a completed one is open
// again once its mark was removed. Both get all their attempts.
func TestAChangedOrReopenedItemGetsAllAttempts(t *testing.T) {
	path := file(t, "list.md", "- [ ] a\n  like this\n")
	list, _ := open(t, path)
	pass := false
	c := &crew{do: said}
	o := ralph.Options{List: list, Dispatcher: c, StateFile: path + ".state", MaxAttempts: 2, Validator: check(func(j ralph.Job, _ ralph.Outcome) (ralph.Verdict, error) {
		return ralph.Verdict{OK: pass && j.Attempt == 2, Report: "no"}, nil
	})}
	for _, tt := range []struct {
		name, list string
		pass       bool
		jobs       int
	}{
		{"given up", "- [ ] a\n  like this\n", false, 2},
		{"as it was", "- [ ] a\n  like this\n", true, 0},
		{"changed", "- [ ] a\n  like that\n", true, 2},
		{"opened again", "- [ ] a\n  like that\n", true, 2},
	} {
		if err := os.WriteFile(path, []byte(tt.list), 0o600); err != nil {
			t.Fatal(err)
		}
		pass, c.jobs = tt.pass, nil
		sum, err := newLoop(t, o).Run(t.Context())
		if err != nil || len(c.jobs) != tt.jobs || (sum.Completed == 1) != (tt.pass && tt.jobs > 0) {
			t.Fatalf("%s: %+v, %v, %d jobs", tt.name, sum, err, len(c.jobs))
		}
		if tt.jobs > 0 && c.jobs[0].Failure != "" {
			t.Errorf("%s: the first prompt has the failure %q", tt.name, c.jobs[0].Failure)
		}
	}
}

func TestAnItemRemovedDuringWorkIsSkipped(t *testing.T) {
	path := file(t, "list.md", "- [ ] a\n- [ ] b\n")
	list, _ := open(t, path)
	c := &crew{do: func(_ context.Context, j ralph.Job) (string, error) {
		if j.Item.Text != "a" {
			return "done", nil
		}
		return "done", os.WriteFile(path, []byte("- [ ] b\n"), 0o600)
	}}
	s := new(steps)
	sum, err := newLoop(t, ralph.Options{List: list, Dispatcher: c, StateFile: path + ".state", Record: s.record}).Run(t.Context())
	if err != nil || sum.Completed != 1 || read(t, path) != "- [x] b\n" {
		t.Fatalf("%+v, %v, %q", sum, err, read(t, path))
	}
	if want := "began dispatched answered left dispatched answered completed finished"; s.kinds() != want {
		t.Errorf("steps %s\nwant  %s", s.kinds(), want)
	}
}

// Work that the hub has lost is repeated within the same attempt.
func TestLostWorkRepeatsTheSameAttempt(t *testing.T) {
	path := file(t, "list.md", "- [ ] a\n")
	list, _ := open(t, path)
	away := &ralph.Error{Code: ralph.CodeUnavailable, Message: "the hub is away"}
	c := &crew{
		do: func(_ context.Context, j ralph.Job) (string, error) {
			if j.Attempt == 2 {
				return "", away
			}
			return "", errors.New("it failed")
		},
		resume: func(string) (string, error) { return "", &ralph.Error{Code: ralph.CodeLost} },
	}
	o := ralph.Options{List: list, Dispatcher: c, StateFile: path + ".state"}
	if _, err := newLoop(t, o).Run(t.Context()); ralph.CodeOf(err) != ralph.CodeUnavailable {
		t.Fatal(err)
	}
	c.do = said
	if sum, err := newLoop(t, o).Run(t.Context()); err != nil || sum.Completed != 1 {
		t.Fatalf("%+v, %v", sum, err)
	}
	if last := c.jobs[len(c.jobs)-1]; last.Attempt != 2 || last.Failure != "it failed" {
		t.Errorf("the last job is %+v", last)
	}
}

// A panic of the list, the validator or the recorder ends the loop, one of the dispatcher fails the attempt; none ends
// the process.
func TestPanicsOfTheApplicationAreErrors(t *testing.T) {
	path := file(t, "list.md", "- [ ] a\n")
	list, _ := open(t, path)
	crash := func(context.Context, ralph.Job) (string, error) { panic("too hot") }
	for name, tc := range map[string]struct {
		o    ralph.Options
		want ralph.Code
	}{
		"list":      {ralph.Options{List: wildList{list}, Dispatcher: &crew{do: said}}, ralph.CodeList},
		"validator": {ralph.Options{List: list, Dispatcher: &crew{do: said}, Validator: check(func(ralph.Job, ralph.Outcome) (ralph.Verdict, error) { panic("too hot") })}, ralph.CodeValidator},
		"record":    {ralph.Options{List: list, Dispatcher: &crew{do: said}, Record: func(ralph.Step) error { panic("too hot") }}, ralph.CodeRecord},
	} {
		tc.o.StateFile = filepath.Join(t.TempDir(), "state")
		if _, err := newLoop(t, tc.o).Run(t.Context()); ralph.CodeOf(err) != tc.want || !strings.Contains(err.Error(), "too hot") {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := new(steps)
	o := ralph.Options{List: list, Dispatcher: &crew{do: crash}, StateFile: path + ".state", MaxAttempts: 2, Record: s.record}
	sum, err := newLoop(t, o).Run(t.Context())
	if err != nil || len(sum.GivenUp) != 1 || s.kinds() != "began dispatched failed dispatched failed given-up finished" || !strings.Contains(s.all[2].Detail, "too hot") {
		t.Errorf("%+v, %v: %s", sum, err, s.kinds())
	}
}

func TestTheLastStepSaysHowTheLoopEnded(t *testing.T) {
	stopped, stop := context.WithCancel(t.Context())
	for name, tc := range map[string]struct {
		ctx  context.Context
		do   func(context.Context, ralph.Job) (string, error)
		want ralph.Step
	}{
		"done":     {t.Context(), said, ralph.Step{Kind: ralph.Finished}},
		"given up": {t.Context(), func(context.Context, ralph.Job) (string, error) { return "", errors.New("red") }, ralph.Step{Kind: ralph.Finished, GivenUp: 2}},
		"no agent": {t.Context(), func(context.Context, ralph.Job) (string, error) {
			return "", &ralph.Error{Code: ralph.CodeUnavailable, Message: "away"}
		}, ralph.Step{Kind: ralph.Halted, Code: ralph.CodeUnavailable}},
		"stopped": {stopped, func(ctx context.Context, _ ralph.Job) (string, error) { stop(); return "", ctx.Err() }, ralph.Step{Kind: ralph.Halted, Code: ralph.CodeStopped}},
	} {
		path, s := file(t, "list.md", "- [ ] a\n- [ ] b\n"), new(steps)
		list, _ := open(t, path)
		_, _ = newLoop(t, ralph.Options{List: list, Dispatcher: &crew{do: tc.do}, StateFile: path + ".state", MaxAttempts: 1, Record: s.record}).Run(tc.ctx)
		if got := s.all[len(s.all)-1]; got.Kind != tc.want.Kind || got.Code != tc.want.Code || got.GivenUp != tc.want.GivenUp {
			t.Errorf("%s: the last step is %+v", name, got)
		}
	}
}

// wildList is a list that panics.
type wildList struct{ ralph.List }

func (wildList) Items(context.Context) ([]ralph.Item, error) { panic("too hot") }

// A flipped bit of the state changes nothing for who looks at it, and is mended by the next run.
func TestEveryFlippedBitOfAStateIsCorrected(t *testing.T) {
	list, _ := open(t, file(t, "list.md", "- [ ] a\n"))
	o := ralph.Options{List: list, Dispatcher: &crew{do: func(context.Context, ralph.Job) (string, error) { return "", nil }}, StateFile: filepath.Join(t.TempDir(), "state.json")}
	if _, err := newLoop(t, o).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(o.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	want, err := ralph.ReadState(o.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range len(raw) * 8 {
		flipped := bytes.Clone(raw)
		flipped[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(o.StateFile, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ralph.ReadState(o.StateFile); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("bit %d: %+v, %v", bit, got, err)
		}
	}
	if _, err := newLoop(t, o).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if kept, err := filepath.Glob(o.StateFile + ".damaged-*"); err != nil || len(kept) != 1 {
		t.Errorf("kept is %v, %v", kept, err)
	}
}
