//go:build interop && linux

// Package terminal_test uses `parley ui` in real terminals of tmux, small and large, with agents behind it: every screen is
// looked at, a question is answered, a document is written in two terminals at once, and the hub is killed and started again
// under them.
//
//	go test -tags interop ./test/interop/terminal
package terminal_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/terminal"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/test/interop/rig"
)

var programs rig.Programs

// manyEnv makes this program the screens of a hub with so many tasks.
const manyEnv = "PARLEY_TEST_TASKS"

func TestMain(m *testing.M) {
	flag.Parse()
	if n, err := strconv.Atoi(os.Getenv(manyEnv)); err == nil {
		showMany(n)
		return
	}
	dir, err := os.MkdirTemp("", "parley-interop-")
	if err == nil {
		programs = rig.Programs(dir)
		err = programs.Build(rig.Parley[0], "github.com/parleyhub/parley/internal/testbed/asker")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := errors.Join(os.RemoveAll(dir), goleak.Find()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	patience = 60 * time.Second // for a command
	hostile  = "\x1b]0;mine\x07\x1b]52;c;bWluZQ==\x07\x1b[2J\x1b[31mred\u202e<b>\u200b\r日本語\u009b5A e\u0301\u0301\u0301\u0301"
)

// actor is the program of an agent that fails, changes a file, or says hostile texts.
const actor = `#!/bin/sh
[ "$1" = --version ] && { echo 1.0.0; exit; }
prompt=$(cat)
case $prompt in
*FAIL*) echo "the disk is on fire" >&2; exit 3 ;;
*HOSTILE*) cat "$HOSTILE" ;;
*CHANGE*) echo two >> notes.txt; echo "Changed a file." ;;
esac
`

// office is a home with a hub and a tmux of its own.
type office struct {
	rig.Home
	t *testing.T
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{programs.NewHome(t), t}
	script, texts := filepath.Join(o.Dir, "actor"), filepath.Join(o.Dir, "hostile.txt")
	config, err := json.Marshal(map[string]any{"version": 1, "agents": map[string]any{
		"claude-code": map[string]any{"disabled": true}, "codex": map[string]any{"disabled": true}, "gemini": map[string]any{"disabled": true}, "vibe": map[string]any{"disabled": true},
		"asker": map[string]any{"driver": "acp", "command": programs.Path("asker"), "description": "Asks before it cleans."},
		"actor": map[string]any{"driver": "exec", "command": script, "description": "Acts " + hostile, "env": map[string]any{"set": map[string]any{"HOSTILE": texts}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(o.Dir, "hub")
	if err := errors.Join(os.Mkdir(data, 0o700), os.WriteFile(filepath.Join(data, "config.yaml"), config, 0o600), os.WriteFile(script, []byte(actor), 0o700),
		os.WriteFile(texts, []byte(hostile+strings.Repeat("x", 1<<20)), 0o600)); err != nil {
		t.Fatal(err)
	}
	o.parley("start")
	return o
}

func (o *office) parley(args ...string) string {
	o.t.Helper()
	return o.run(programs.Path("parley"), args...)
}

func (o *office) run(name string, args ...string) string {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir = o.Env, o.Dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		o.t.Fatalf("%s %q: %v\n%s", filepath.Base(name), args, err, out)
	}
	return string(out)
}

// kill ends the hub at once.
func (o *office) kill() {
	o.t.Helper()
	var status struct{ PID int }
	if err := json.Unmarshal([]byte(o.parley("--format", "json", "status")), &status); err != nil || status.PID == 0 {
		o.t.Fatalf("the hub's process is not known: %v", err)
	}
	if err := syscall.Kill(status.PID, syscall.SIGKILL); err != nil {
		o.t.Fatal(err)
	}
}

// screen is a terminal in which the screens are shown.
type screen struct {
	*office
	name          string
	width, height int
}

// open shows the screens in a terminal of a size; more is added to the environment.
func (o *office) open(width, height int, program string, args ...string) *screen {
	o.t.Helper()
	s := &screen{o, fmt.Sprintf("%dx%d", width, height), width, height}
	s.tmux(slices.Concat([]string{"new-session", "-d", "-s", s.name, "-x", strconv.Itoa(width), "-y", strconv.Itoa(height), program}, args)...)
	o.t.Cleanup(func() {
		if o.t.Failed() {
			o.t.Logf("%s:\n%s", s.name, s.text())
		}
		_ = s.command("kill-session", "-t", s.name).Run() // it may have ended
	})
	return s
}

// command is a command of the terminals' tmux.
func (o *office) command(args ...string) *exec.Cmd {
	cmd := exec.Command("tmux", append([]string{"-f", "/dev/null", "-S", filepath.Join(o.Dir, "tmux.sock")}, args...)...)
	cmd.Env = o.Env
	return cmd
}

// ended waits until the program in the terminal has ended.
func (s *screen) ended() {
	s.t.Helper()
	wait.Eventually(s.t, "the screens end", func() bool { return s.command("has-session", "-t", s.name).Run() != nil })
}

func (o *office) tmux(args ...string) string {
	o.t.Helper()
	out, err := o.command(args...).CombinedOutput()
	if err != nil {
		o.t.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func (s *screen) text() string { return s.tmux("capture-pane", "-p", "-t", s.name) }

// press presses keys, as tmux names them.
func (s *screen) press(keys ...string) {
	s.t.Helper()
	s.tmux(append([]string{"send-keys", "-t", s.name}, keys...)...)
}

// write types a text.
func (s *screen) write(text string) {
	s.t.Helper()
	s.tmux("send-keys", "-t", s.name, "-l", text)
}

// shows waits until the terminal shows all texts.
func (s *screen) shows(texts ...string) {
	s.t.Helper()
	wait.Eventually(s.t, s.name+" shows "+strings.Join(texts, ", "), func() bool {
		now := s.text()
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(now, text) })
	})
}

// whole checks that the screen is as it must be, whatever others have written.
func (s *screen) whole(doing string) {
	s.t.Helper()
	text := s.tmux("capture-pane", "-p", "-e", "-t", s.name)
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if first := display.Plain(lines[0]); !strings.Contains(first, "1 Needs") || len(lines) != s.height {
		s.t.Errorf("%s, %s: %d lines, the first is %q", s.name, doing, len(lines), first)
	}
	for _, l := range lines {
		if n := display.Cells(display.Plain(l)); n > s.width || strings.Contains(l, "\x1b]") || strings.ContainsAny(l, "\u202e\u200b\u009b") {
			s.t.Errorf("%s, %s: %d columns: %q", s.name, doing, n, l)
		}
	}
	if title := s.tmux("display-message", "-p", "-t", s.name, "#{pane_title}"); strings.Contains(title, "mine") {
		s.t.Errorf("%s, %s: the title is %q", s.name, doing, title)
	}
}

func TestTheScreensInTerminals(t *testing.T) {
	o := newOffice(t)
	o.parley("send", "--scratch", "--detach", "asker", "Clean up.")
	for _, prompt := range []string{"FAIL at once", "HOSTILE " + hostile} {
		o.parley("send", "--scratch", "--detach", "actor", prompt)
	}
	o.parley("doc", "edit", "plan", "--text", "notes=the plan "+hostile, "--set", "plan.title="+hostile)
	bin := programs.Path("parley")
	small, large := o.open(80, 24, bin, "ui", "--no-start"), o.open(200, 50, bin, "ui", "--no-start")
	both := []*screen{small, large}

	for _, s := range both {
		for i, look := range []struct {
			title string
			shows []string
			open  string // what Enter shows
		}{
			{" Needs you", []string{"asker", "Run make clean"}, "The agent asks for permission"}, {" Agents", []string{"actor", "asker", "echo"}, "Agent actor"},
			{" Tasks", []string{"failed", "completed", "the disk is on fire"}, "Task 0"}, {" Conversations", []string{"actor", "asker"}, "Conversation with"}, {" Swarms", nil, ""},
			{" Network", []string{"agent"}, ""}, {" Documents", []string{"plan"}, "Enter write"}, {" Timeline", []string{"turn ended"}, ""}, {" Costs", []string{"tasks"}, ""},
		} {
			s.press(strconv.Itoa(i + 1))
			if i == 2 {
				s.press("/")
				s.write("FAIL")
				s.press("Enter") // below the list is why
				s.shows(" Tasks  1 of 1", "the disk is on fire")
				s.press("Escape")
				s.shows(" Tasks  1 of 3") // before the next key: with it, Escape would be Alt
			} else {
				s.shows(append(look.shows, look.title)...)
			}
			s.whole(look.title)
			if look.open == "" {
				continue
			}
			s.press("Enter")
			s.shows(look.open)
			s.whole(look.title + " opened")
		}
	}
	large.press("1")
	large.shows("Run make clean")
	large.press("a")
	small.press("1")
	small.shows("Nothing waits for you.")

	for _, s := range both {
		s.press("7")
		s.shows("plan")
		s.press("Enter")
		s.shows("Enter write")
		s.press("Enter")
		s.shows("✓ saved", "the plan")
		s.whole("writing")
	}
	small.write("small ")
	large.write("large ")
	o.parley("doc", "edit", "plan", "--text", "notes= command")
	for _, s := range both {
		s.shows("small", "large", "command", "✓ saved")
	}

	o.kill()
	for _, s := range both {
		s.shows("The hub is away", "the plan")
	}
	small.write("alone ")
	large.write("apart ")
	large.shows("not saved: the hub is away")
	large.press("Escape")
	large.shows("Enter write")
	large.press("3")
	large.shows("FAIL", "The hub is away")
	o.parley("start")
	small.shows("alone", "apart", "✓ saved")
	large.shows(" ● ")
	small.whole("back")
	got := o.parley("doc", "show", "plan")
	for _, word := range []string{"small ", "large ", "alone ", "apart ", " command"} {
		if strings.Count(got, word) != 1 {
			t.Errorf("the document has %q %d times: %q", word, strings.Count(got, word), got)
		}
	}
	for _, s := range both {
		s.press("C-c")
		s.ended()
	}
}

// manyHub is a hub with many tasks.
type manyHub struct {
	terminal.Hub // of which nothing else is called
	tasks        []dialect.Task
}

func (h *manyHub) Status(context.Context) (*dialect.Status, error) { return &dialect.Status{}, nil }
func (h *manyHub) Needs(context.Context) (*dialect.Needs, error)   { return &dialect.Needs{}, nil }
func (h *manyHub) Close() error                                    { return nil }

func (h *manyHub) Tasks(_ context.Context, p dialect.TasksListParams) (*dialect.TaskPage, error) {
	from, _ := strconv.Atoi(p.Cursor)
	to := min(from+p.Limit, len(h.tasks))
	page := &dialect.TaskPage{Tasks: h.tasks[from:to]}
	if to < len(h.tasks) {
		page.NextCursor = strconv.Itoa(to)
	}
	return page, nil
}

func (h *manyHub) Task(_ context.Context, id string) (*dialect.Task, error) {
	i := slices.IndexFunc(h.tasks, func(t dialect.Task) bool { return t.ID == id })
	if i < 0 {
		return nil, errors.New("no such task")
	}
	return &h.tasks[i], nil
}

// HubEvents reports a change of a task each millisecond.
func (h *manyHub) HubEvents(context.Context, dialect.EventsParams) (terminal.Stream[events.Event], error) {
	return &changes{}, nil
}

type changes struct{ n uint64 }

func (c *changes) Next(ctx context.Context) (events.Event, error) {
	if !wait.Pause(ctx, time.Millisecond) {
		return events.Event{}, ctx.Err()
	}
	c.n++
	return events.Event{Position: events.Position{Sequence: c.n}, Kind: events.TaskState, Task: taskID(int(c.n))}, nil
}

func (c *changes) Close() error { return nil }

func taskID(i int) string { return fmt.Sprintf("0%09d", 900_000_000-i) }

func showMany(n int) {
	h, now := &manyHub{}, time.Now()
	for i := range n {
		h.tasks = append(h.tasks, dialect.Task{Kind: dialect.KindTask, ID: taskID(i), Status: dialect.TaskStatus{State: dialect.StateCompleted, Timestamp: dialect.Time{Time: now.Add(-time.Duration(i) * time.Second)}},
			Metadata: map[string]any{hub.MetaAgent: "echo", hub.MetaSummary: map[string]any{"prompt": fmt.Sprintf("task number %d of many", i)}}})
	}
	err := terminal.Run(context.Background(), terminal.Options{
		Dial: func(context.Context) (terminal.Hub, error) { return h, nil }, Where: "here", Screen: 3, Input: os.Stdin, Output: os.Stdout, Env: os.Environ(),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Ten thousand tasks, of which one changes each millisecond, are scrolled and filtered.
func TestTenThousandTasksInATerminal(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	home := programs.NewHome(t)
	home.Env = append(home.Env, manyEnv+"=10000")
	o := &office{home, t}
	s := o.open(200, 50, self)
	s.shows("1 of 10000", "task number 0 of many")
	s.press("End")
	s.shows("10000 of 10000", "task number 9999 of many")
	s.whole("the end")
	begun := time.Now()
	for range 20 {
		s.press(slices.Repeat([]string{"k"}, 50)...)
	}
	s.shows("9000 of 10000", "task number 8999 of many")
	t.Logf("1000 keys took %s", time.Since(begun).Round(time.Millisecond))
	s.press("/")
	s.write("number 7777")
	s.press("Enter")
	s.shows("10000 in all", "task number 7777 of many")
	s.press("Escape")
	s.shows(" of 10000")
	s.press("Home")
	s.shows("1 of 10000")
	s.press("q")
	s.ended()
}
