//go:build unix

package cli_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub/events"
)

// sharedEncoding leaves out that readers of an event in the hub's process share its encoding.
var sharedEncoding = cmpopts.IgnoreUnexported(events.Event{})

// eventsOf decodes the lines of events with JSON output, without those that are no changes.
func eventsOf(t *testing.T, lines string) (all []events.Event) {
	t.Helper()
	for line := range strings.Lines(lines) {
		if !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		var e events.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if e.Kind != events.Here {
			all = append(all, e)
		}
	}
	return all
}

// events returns the hub's events of the last hour that the flags select.
func (p setup) events(t *testing.T, flags ...string) []events.Event {
	t.Helper()
	o := p.run(t, append([]string{"--format", "json", "events"}, flags...)...)
	if o.code != 0 {
		t.Fatalf("%+v", o)
	}
	return eventsOf(t, o.stdout)
}

// states returns the states of a task in its events.
func states(all []events.Event, task string) (list []string) {
	for _, e := range all {
		if e.Kind == events.TaskState && e.Task == task {
			list = append(list, e.Data["state"].(string))
		}
	}
	return list
}

func TestEventsOfTheLastHourArePrinted(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	task := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "echo", "a prompt of mine"))
	failed := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "fails", "x"))
	wait.Eventually(t, "both ends are events", func() bool {
		all := p.events(t)
		return slices.Contains(states(all, task.ID), "completed") && slices.Contains(states(all, failed.ID), "failed")
	})
	all := p.events(t)
	if got := states(all, task.ID); !slices.Equal(got, []string{"submitted", "working", "completed"}) {
		t.Errorf("the states are %q", got)
	}
	for i, e := range all[1:] {
		if e.Position.Sequence <= all[i].Position.Sequence || e.Time.IsZero() {
			t.Errorf("after %+v follows %+v", all[i], e)
		}
	}
	for _, part := range []string{task.ID, task.ID[len(task.ID)-8:], task.ID[:len(task.ID)-1]} {
		if got := states(p.events(t, "--task", part), task.ID); len(got) != 3 {
			t.Errorf("of the task %s the states are %q", part, got)
		}
	}
	if got := states(p.events(t, "--task", "latest"), failed.ID); len(got) < 2 || got[0] != "submitted" || got[len(got)-1] != "failed" { // a program that fails at once has not worked
		t.Errorf("of the latest task the states are %q", got)
	}
	o := p.run(t, "events")
	want(t, o, 0, "task.state")
	if strings.Contains(o.stdout, "prompt of mine") || strings.Contains(o.stdout, "position") {
		t.Errorf("it prints %s", o.stdout)
	}
	for _, line := range strings.Split(strings.TrimSpace(o.stdout), "\n") {
		if kind := strings.Fields(line)[1]; !slices.Contains(events.Kinds(), events.Kind(kind)) {
			t.Errorf("%q has no kind", line)
		}
	}
	for _, tt := range []struct {
		flags []string
		ok    func(events.Event) bool
	}{
		{[]string{"--kind", "task.state,turn"}, func(e events.Event) bool {
			return e.Kind == events.TaskState || strings.HasPrefix(string(e.Kind), "turn.")
		}},
		{[]string{"--agent", "fails"}, func(e events.Event) bool { return e.Agent == "fails" }},
		{[]string{"--task", task.ID}, func(e events.Event) bool { return e.Task == task.ID }},
		{[]string{"--since", all[2].Position.String()}, func(e events.Event) bool { return e.Position.Sequence > all[2].Position.Sequence }},
	} {
		var selected []events.Event
		for _, e := range all {
			if tt.ok(e) {
				selected = append(selected, e)
			}
		}
		if diff := cmp.Diff(selected, p.events(t, tt.flags...), sharedEncoding); diff != "" || len(selected) == 0 {
			t.Errorf("events %q (-want, +got):\n%s", tt.flags, diff)
		}
	}
	for _, since := range []string{"yesterday", "-1h", "7-xyz"} {
		if o := p.run(t, "events", "--since", since); o.code != 2 || !strings.Contains(o.stderr, "nor the position of an event") {
			t.Errorf("--since %s: %+v", since, o)
		}
	}
	want(t, p.run(t, "events", "--since", "0s"), 0, "")
}

func TestAQuestionAndItsAnswerAreEvents(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	task := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "asks", "hi"))
	want(t, p.run(t, "send", "--task", task.ID, "no-once"), 0, "you said no-once")
	var all []events.Event
	wait.Eventually(t, "the answer is an event", func() bool {
		all = p.events(t, "--kind", "permission", "--task", task.ID)
		return len(all) == 2
	})
	asked, answered := all[0], all[1]
	if asked.Kind != events.PermissionAsked || answered.Kind != events.PermissionAnswered || asked.Agent != "asks" ||
		asked.Data["request"] != answered.Data["request"] || answered.Data["option"] != "no-once" {
		t.Errorf("%+v", all)
	}
	for _, e := range all {
		for _, v := range e.Data {
			if text, ok := v.(string); ok && strings.Contains(text, "rm -rf") {
				t.Errorf("the command is in %+v", e)
			}
		}
	}
}

// A client that follows goes on after the hub was killed and started again: it gets what is stored, each event once, and a gap where the latest ones may be missing.
func TestEventsGoOnAfterTheHubWasKilled(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.stopAtEnd(t)
	want(t, p.process(t, "start"), 0, "The hub is running (process ")
	out, signals, done := p.background(t, `"kind":"position"`, "--format", "json", "events", "-f", "--since", "1h")
	<-out.seen
	last := ""
	for round := range 3 {
		for range 4 {
			last = decode[dialect.Task](t, p.run(t, "--format", "json", "send", "echo", "hello")).ID
		}
		if round == 2 {
			break
		}
		running := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "--detach", "hangs", "x"))
		wait.Eventually(t, "the turn's begin is seen", func() bool {
			return slices.Contains(states(eventsOf(t, out.String()), running.ID), "working")
		})
		if err := syscall.Kill(p.pid(t), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		want(t, p.process(t, "start"), 0, "The hub is running (process ")
		wait.Eventually(t, "the end of the interrupted turn is seen", func() bool {
			return slices.Contains(states(eventsOf(t, out.String()), running.ID), "failed")
		})
	}
	wait.Eventually(t, "the last task's end is seen", func() bool {
		return slices.Contains(states(eventsOf(t, out.String()), last), "completed")
	})
	signals <- os.Interrupt
	if code := <-done; code != 0 {
		t.Errorf("exit %d", code)
	}
	followed := eventsOf(t, out.String())
	stored := p.events(t)
	if diff := cmp.Diff(stored[:min(len(followed), len(stored))], followed, sharedEncoding); diff != "" {
		t.Errorf("stored (-) and followed (+) differ:\n%s", diff)
	}
	var gaps []any
	for _, e := range followed {
		if e.Kind == events.Gap {
			gaps = append(gaps, e.Data["reason"])
		}
	}
	if diff := cmp.Diff([]any{"killed", "killed"}, gaps); diff != "" { // one for each kill, and no other
		t.Error(diff)
	}
}

func TestTotalsSumUpTasks(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	want(t, p.run(t, "totals"), 0, "No tasks.")
	for _, args := range [][]string{{"echo", "1"}, {"echo", "2"}, {"fails", "x"}, {"words", "a b"}} {
		p.run(t, append([]string{"send"}, args...)...)
	}
	type group struct {
		Agent, Day               string
		Tasks, Completed, Failed int
	}
	totals := func(flags ...string) map[string]group {
		t.Helper()
		all := map[string]group{}
		o := p.run(t, append([]string{"--format", "json", "totals"}, flags...)...)
		for line := range strings.Lines(o.stdout) {
			var g group
			if err := json.Unmarshal([]byte(line), &g); err == nil && g.Tasks > 0 {
				all[g.Agent] = g
				continue
			}
			var list struct{ Totals []group }
			if err := json.Unmarshal([]byte(line), &list); err != nil {
				t.Fatalf("%v in %+v", err, o)
			}
			for _, g := range list.Totals {
				all[g.Agent] = g
			}
		}
		return all
	}
	if diff := cmp.Diff(map[string]group{"echo": {"echo", "", 2, 2, 0}, "fails": {"fails", "", 1, 0, 1}, "words": {"words", "", 1, 1, 0}}, totals("--by", "agent")); diff != "" {
		t.Errorf("by agent (-want, +got):\n%s", diff)
	}
	if got := totals("--by", "day")[""]; got.Tasks != 4 || got.Day == "" {
		t.Errorf("by day: %+v", got)
	}
	if got := totals("--agent", "fails"); len(got) != 1 || got["fails"].Failed != 1 {
		t.Errorf("of one agent: %+v", got)
	}
	if got := totals("--since", "24h", "--by", "agent"); len(got) != 3 {
		t.Errorf("of a day: %+v", got)
	}
	if got := totals("--project", t.TempDir()); len(got) != 0 {
		t.Errorf("of another project: %+v", got)
	}
	o := p.run(t, "totals", "--by", "agent")
	want(t, o, 0, "AGENT")
	if strings.Contains(o.stdout, "DAY") || strings.Contains(o.stdout, "PROJECT") {
		t.Errorf("%+v", o)
	}
	want(t, p.run(t, "totals", "--by", "planet"), 2, "")
}
