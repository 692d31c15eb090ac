//go:build unix

package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
)

// The first Ctrl-C stops the work that the command has started, and waits for its end.
func TestCtrlCStopsTheWorkOfALoopAndOfASwarm(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	path := filepath.Join(p.dir, "TODO.md")
	if err := os.WriteFile(path, []byte("- [ ] think\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"loop", "run", path, "--agent", "hangs"}, {"loop", "run", path, "--swarm", "hangs"}, {"swarm", "run", "--agents", "hangs", "think"}, {"swarm", "run", "--planner", "hangs", "think"},
	} {
		s, signals := newScreen(t), make(chan os.Signal, 1)
		code := s.run(p, nil, signals, args...)
		await(t, p, dialect.StateWorking, 1)
		signals <- os.Interrupt
		text := s.await("<end>")
		if c := <-code; c != 130 || !strings.Contains(text, "a second Ctrl-C exits") || !strings.Contains(text, "is stopped") {
			t.Errorf("%q: exit %d, %q", args, c, text)
		}
		await(t, p, dialect.StateWorking, 0)
	}
	// The attempt that was stopped does not count, and the loop begins it again.
	status := decode[struct {
		Items map[string]struct{ Attempt int }
	}](t, p.run(t, "--format", "json", "loop", "status", path))
	for id, item := range status.Items {
		if item.Attempt != 1 {
			t.Errorf("item %s: attempt %d", id, item.Attempt)
		}
	}
	want(t, p.run(t, "loop", "run", path, "--agent", "words"), 0, "completed  think")
}

// The second Ctrl-C exits while the work that the command has started still runs, and says how to stop it.
func TestASecondCtrlCSaysThatTheWorkGoesOn(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	path := filepath.Join(p.dir, "TODO.md")
	if err := os.WriteFile(path, []byte("- [ ] think\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		next string // a pattern of the command that the message names
	}{
		{[]string{"send", "deaf", "think"}, "task show"}, {[]string{"loop", "run", path, "--agent", "deaf"}, "task cancel"}, {[]string{"loop", "run", path, "--swarm", "deaf"}, "swarm stop|tasks --state working"},
		{[]string{"swarm", "run", "--agents", "deaf", "think"}, "swarm stop|tasks --state working"}, {[]string{"swarm", "run", "--planner", "deaf", "think"}, "task cancel"},
	} {
		s, signals := newScreen(t), make(chan os.Signal, 1)
		code := s.run(p, nil, signals, tt.args...)
		for ready := false; !ready; { // to ignore the signal
			page := decode[dialect.TaskPage](t, p.run(t, "--format", "json", "tasks", "--state", "working"))
			ready = len(page.Tasks) == 1 && strings.Contains(page.Tasks[0].Status.Message.Text(), "429")
		}
		if !slices.Contains(tt.args, "--planner") {
			s.await("(429)") // the agent's retry is shown while it waits
		}
		signals <- os.Interrupt
		s.await("a second Ctrl-C exits")
		signals <- os.Interrupt
		text := s.await("<end>")
		if c := <-code; c != 130 || !regexp.MustCompile(tt.next).MatchString(text) || strings.Contains(text, "is stopped\x1b") {
			t.Errorf("%q: exit %d, %q", tt.args, c, text)
		}
		await(t, p, dialect.StateWorking, 0)
	}
}

// At a terminal the user answers the agent's questions; elsewhere nobody does, and no task goes on waiting.
func TestQuestionsOfALoop(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	path := filepath.Join(p.dir, "TODO.md")
	if err := os.WriteFile(path, []byte("- [ ] build\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := []string{"loop", "run", path, "--agent", "asks", "--attempts", "2", "--retry"}
	o := p.run(t, run...)
	if o.code != 5 || !strings.Contains(o.stdout, "nobody answered: Allow Run `rm -rf build`?") || strings.Count(o.stderr, "agents.asks.permissions") != 1 {
		t.Errorf("without a terminal: %+v", o)
	}
	await(t, p, dialect.StateInputRequired, 0)
	await(t, p, dialect.StateCanceled, 2)

	s := newScreen(t)
	signals := make(chan os.Signal, 1)
	code := s.run(p, nil, signals, run...)
	s.await("1-2? ")
	signals <- os.Interrupt
	if text := s.await("<end>"); <-code != 130 || !strings.Contains(text, "is stopped") {
		t.Errorf("interrupted: %q", text)
	}
	await(t, p, dialect.StateCanceled, 3)
	if _, err := s.master.WriteString("\n"); err != nil { // ends the read of the terminal
		t.Fatal(err)
	}

	s = newScreen(t)
	code = s.run(p, nil, nil, run...)
	s.await("1-2? ")
	if _, err := s.master.WriteString("y\n"); err != nil {
		t.Fatal(err)
	}
	if text := s.await("<end>"); <-code != 0 || !strings.Contains(text, "you said yes-once") {
		t.Errorf("answered: %q", text)
	}
}

// await blocks until a number of tasks are in a state.
func await(t *testing.T, p setup, state dialect.TaskState, n int) {
	t.Helper()
	for {
		page := decode[dialect.TaskPage](t, p.run(t, "--format", "json", "tasks", "--state", string(state)))
		if page.Total == n {
			return
		}
	}
}

func TestItemsThatWereGivenUpAreTakenUpAgain(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	want(t, p.run(t, "loop", "list"), 0, "No loop has run yet.")
	path := filepath.Join(p.dir, "TODO.md")
	if err := os.WriteFile(path, []byte("- [ ] say one\n- [x] say two\n- [ ] say three\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := []string{"loop", "run", path, "--agent", "words", "--attempts", "1"}
	if o := p.run(t, append(run, "--", "false")...); o.code != 5 || !strings.Contains(o.stderr, "gave up 2 items") || !strings.Contains(o.stderr, "  words") {
		t.Errorf("%+v", o)
	}
	type info struct {
		List, Queue              string
		Running                  bool
		Completed, GivenUp, Open int
	}
	list := func() info {
		all := decode[[]info](t, p.run(t, "--format", "json", "loop", "list"))
		if len(all) != 1 {
			t.Fatalf("%+v", all)
		}
		return all[0]
	}
	if got := list(); got != (info{path, "", false, 1, 2, 0}) {
		t.Errorf("%+v", got)
	}
	if o := p.run(t, append(run, "--", "true")...); o.code != 5 {
		t.Errorf("without --retry: %+v", o)
	}
	want(t, p.run(t, append(run, "--retry", "--", "true")...), 0, "2 completed, 0 given up")
	if got := list(); got != (info{path, "", false, 3, 0, 0}) {
		t.Errorf("%+v", got)
	}
	want(t, p.run(t, "loop", "list"), 0, "finished")
	if o := p.run(t, "loop", "run", "--queue", "go", "--agent", "words", "--retry"); o.code != 2 || !strings.Contains(o.stderr, "dead-letters --retry") {
		t.Errorf("of a queue: %+v", o)
	}
}
