//go:build unix

package cli_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/wait"
)

// openedSession is an open session with the MCP server as its child.
type openedSession struct {
	*mcpChild
	calls int
}

// openSession starts an MCP server in project a and registers the session.
func (d *machine) openSession(handle string) *openedSession {
	d.t.Helper()
	s := &openedSession{mcpChild: d.serve(d.command("parley", "a", "mcp"))}
	s.ask(1, "initialize", initializeParams)
	s.calls = 1
	s.say("set_handle", `{"handle":"%s"}`, handle)
	wait.Eventually(d.t, "the session is registered", func() bool {
		return strings.HasPrefix(s.say("register_agent", `{"agentType":%q,"capabilities":[],"scope":"project"}`, handle), "Registered")
	})
	return s
}

// say calls a tool and returns its text.
func (s *openedSession) say(tool, format string, args ...any) string {
	s.t.Helper()
	s.calls++
	return s.call(s.calls, tool, fmt.Sprintf(format, args...))
}

var taskPattern = regexp.MustCompile(`\*\*Task ([0-9a-f-]{36})\*\*`)

// nextTask waits for a task, and returns its id and the mail's text.
func (s *openedSession) nextTask() (id, text string) {
	s.t.Helper()
	wait.Eventually(s.t, "the session gets a task", func() bool {
		text = s.say("wait_for_direct_messages", `{"messageType":"task","timeout_seconds":5}`)
		match := taskPattern.FindStringSubmatch(text)
		if match != nil {
			id = match[1]
		}
		return match != nil
	})
	return id, text
}

// parley runs a command and returns its output.
func (d *machine) parley(args ...string) string {
	d.t.Helper()
	out, err := d.command("parley", "a", args...).CombinedOutput()
	if err != nil {
		d.t.Logf("parley %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// ask gives a task to an agent, and returns its id.
func (d *machine) ask(agent, text string) (id string) {
	d.t.Helper()
	wait.Eventually(d.t, "the task is stored", func() bool {
		var task dialect.Task
		out := d.parley("--format", "json", "send", "--scratch", "--detach", agent, text)
		id = ""
		if json.Unmarshal([]byte(out), &task) == nil {
			id = task.ID
		}
		return id != ""
	})
	return id
}

func (d *machine) task(id string) (task dialect.Task) {
	d.t.Helper()
	wait.Eventually(d.t, "the hub shows the task", func() bool {
		return json.Unmarshal([]byte(d.parley("--format", "json", "task", "show", id)), &task) == nil && task.ID == id
	})
	return task
}

// killHub kills the hub without a warning, as a crash of the computer would.
func (d *machine) killHub() {
	d.t.Helper()
	info, running, err := daemon.Running(filepath.Join(d.root, "data"))
	if err != nil || !running {
		d.t.Fatalf("running %v, %v", running, err)
	}
	if err := syscall.Kill(info.PID, syscall.SIGKILL); err != nil {
		d.t.Fatal(err)
	}
	wait.Eventually(d.t, "the hub is gone, or another one runs", func() bool {
		now, running, err := daemon.Running(filepath.Join(d.root, "data"))
		return err == nil && (!running || now.PID != info.PID)
	})
}

// Whatever is killed at whatever moment: a task that was stored is given to the session, and answered once.
func TestATaskOfASessionSurvivesKills(t *testing.T) {
	t.Parallel()
	for _, killed := range []string{"nothing", "the hub, when the task is stored", "the hub, when the task is shown", "the hub, when it is answered", "the session, when it is shown"} {
		t.Run(killed, func(t *testing.T) {
			t.Parallel()
			d := newMachine(t)
			s := d.openSession("reviewer")
			wait.Eventually(t, "the session is an agent", func() bool { return strings.Contains(d.parley("agents"), "reviewer") })
			id := d.ask("reviewer", "is this safe?")
			if strings.Contains(killed, "stored") {
				d.killHub()
			}
			got, text := s.nextTask()
			if got != id || !strings.Contains(text, "is this safe?") {
				t.Fatalf("%s was given as %s", id, text)
			}
			switch {
			case strings.Contains(killed, "the hub, when the task is shown"):
				d.killHub()
				if state := d.task(id).Status.State; state != "submitted" && state != "working" {
					t.Errorf("the task is %s", state)
				}
			case strings.Contains(killed, "the session"):
				if err := s.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = s.Wait() // it was killed
				s = d.openSession("reviewer")
				if again, _ := s.nextTask(); again != id {
					t.Fatalf("the session got %s again, not %s", again, id)
				}
			}
			if strings.Contains(killed, "answered") {
				done := make(chan struct{})
				go func() {
					defer close(done)
					d.killHub()
				}()
				defer func() { <-done }()
			}
			var said string
			wait.Eventually(t, "the answer is stored", func() bool {
				said = s.say("answer_task", `{"taskId":%q,"text":"It is."}`, id)
				return !strings.HasPrefix(said, "ConnectionError") && !strings.HasPrefix(said, "NotRegisteredError")
			})
			if !strings.Contains(said, "is done") && !strings.Contains(said, "it is completed") {
				t.Errorf("the session is told: %s", said)
			}
			task := d.task(id)
			if task.Status.State != "completed" || len(task.History) != 2 || task.Status.Message == nil {
				t.Errorf("the task is %+v", task)
			}
			if again := s.say("answer_task", `{"taskId":%q,"text":"No."}`, id); !strings.HasPrefix(again, "ConflictError") {
				t.Errorf("another answer: %s", again)
			}
			s.end()
		})
	}
}

// A command waits for a session's answer as for a program's.
func TestSendToASession(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	s := d.openSession("reviewer")
	wait.Eventually(t, "the session is an agent", func() bool { return strings.Contains(d.parley("agents"), "reviewer") })
	answered := make(chan string, 1)
	go func() { answered <- d.parley("send", "--scratch", "reviewer", "is this safe?") }()
	id, _ := s.nextTask()
	s.say("report_progress", `{"taskId":%q,"message":"reading"}`, id)
	if got := s.say("answer_task", `{"taskId":%q,"text":"It is."}`, id); !strings.Contains(got, "is done") {
		t.Error(got)
	}
	if got := <-answered; !strings.Contains(got, "It is.") {
		t.Errorf("the sender got %q", got)
	}
	s.end()
}

// A session's files come before its text, which is printed as well, however the command waits for it.
func TestSendPrintsTheTextThatComesWithFiles(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	s := d.openSession("reviewer")
	wait.Eventually(t, "the session is an agent", func() bool { return strings.Contains(d.parley("agents"), "reviewer") })
	for _, c := range []struct {
		flag string
		want []string
	}{
		{"--stream", []string{"[file a.txt]\nSee the file.\n", "note: a.txt, data came with the answer"}},
		{"--scratch", []string{"See the file.\n", "note: a.txt, data came with the answer"}},
	} {
		answered := make(chan string, 1)
		go func() { answered <- d.parley("send", "--scratch", c.flag, "reviewer", "is this safe?") }()
		id, _ := s.nextTask()
		said := s.say("answer_task", `{"taskId":%q,"text":"See the file.","files":[{"name":"a.txt","text":"x"}],"data":{"x":1}}`, id)
		if !strings.Contains(said, "is done") {
			t.Error(said)
		}
		got := <-answered
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("send %s printed %q, without %q", c.flag, got, want)
			}
		}
		if got := d.parley("task", "show", id); !strings.Contains(got, "[file a.txt]") {
			t.Errorf("the task is shown as %q", got)
		}
		if got := d.parley("task", "follow", id); !strings.Contains(got, "See the file.\n") {
			t.Errorf("task follow printed %q", got)
		}
	}
	s.end()
}

// program starts the MCP server of an open session of a coding agent in a project.
func (d *machine) program(name, project string) *openedSession {
	d.t.Helper()
	s := &openedSession{mcpChild: d.serve(d.command("parley", project, "mcp"))}
	s.ask(1, "initialize", strings.Replace(initializeParams, `"name":"t"`, fmt.Sprintf(`"name":%q`, name), 1))
	s.calls = 1
	return s
}

// agents returns the directory by the agents' addresses.
func (d *machine) agents(args ...string) map[string]dialect.Agent {
	d.t.Helper()
	var list []dialect.Agent
	out := d.parley(append([]string{"--format", "json", "agents"}, args...)...)
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil // the hub is just starting
	}
	byAddress := map[string]dialect.Agent{}
	for _, a := range list {
		byAddress[a.Address] = a
	}
	return byAddress
}

// awaitAgent waits until the directory has an agent with a state.
func (d *machine) awaitAgent(address, state string) (found dialect.Agent) {
	d.t.Helper()
	wait.Eventually(d.t, address+" is "+state, func() bool {
		found = d.agents()[address]
		return found.State == state
	})
	return found
}

// Open sessions are in the directory without a word of theirs, keep their names when they are opened again, and are
// addressed by the names that people give them.
func TestOpenSessionsAreInTheDirectory(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	first := d.program("claude-code", "a")
	d.awaitAgent("claude-a", "idle")
	second := d.program("claude-code", "a")
	d.awaitAgent("claude-a-2", "idle")
	other := d.program("codex-mcp-client", "b")
	if a := d.awaitAgent("codex-b", "idle"); a.Kind != "session" || a.Vendor != "codex" || a.Project != "b" || a.Computer == "" || a.GUID == "" || a.Visibility != "project-only" {
		t.Errorf("the session of Codex is %+v", a.Place)
	}
	if list := d.agents("--kind", "session", "--project", "a"); len(list) != 2 {
		t.Errorf("the sessions of the project are %v", list)
	}
	if list := d.agents("--kind", "session", "--project", "."); len(list) != 2 {
		t.Errorf("the sessions here are %v", list)
	}
	if got := d.parley("agents", "rename", "claude-a-2", "reviewer"); !strings.Contains(got, "claude-a-2 is called reviewer") {
		t.Error(got)
	}
	if got := d.parley("agents", "rename", "codex-b", "reviewer"); !strings.Contains(got, "this one is reviewer.b") {
		t.Error(got)
	}
	id := d.ask("reviewer.b", "is this safe?")
	if got, _ := other.nextTask(); got != id {
		t.Errorf("the other session got %s", got)
	}
	if a := d.awaitAgent("reviewer.b", "working"); a.Working == nil || a.Working.TaskID != id || a.Working.Title != "is this safe?" {
		t.Errorf("it works on %+v", a.Working)
	}
	for _, list := range [][]string{{"tasks"}, {"contexts"}, {"task", "show", id}} {
		if got := d.parley(list...); !strings.Contains(got, "reviewer.b") {
			t.Errorf("%v does not call the agent by its name: %s", list, got)
		}
	}
	if got := d.parley("send", "--scratch", "--detach", "reviewer", "x"); !regexp.MustCompile(`^[0-9a-f-]{36}\n`).MatchString(got) {
		t.Errorf("the reviewer of this project: %s", got)
	}
	if got, _ := second.nextTask(); got == id {
		t.Error("the session got another one's task")
	}
	if err := second.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = second.Wait() // it was killed
	again := d.program("claude-code", "a")
	id = d.ask("reviewer", "and this?")
	wait.Eventually(t, "the session gets the task", func() bool { // and the one before, which it had read
		return strings.Contains(again.say("wait_for_direct_messages", `{"messageType":"task","timeout_seconds":5}`), id)
	})
	if got := again.say("answer_task", `{"taskId":%q,"text":"It is."}`, id); !strings.Contains(got, "is done") {
		t.Error(got)
	}
	var said string
	wait.Eventually(t, "the hub's tools are there", func() bool {
		said = first.say("delegate_task", `{"agent":"claude-a","task":"x"}`)
		return !strings.Contains(said, "unknown tool")
	})
	if !strings.Contains(said, "claude-a is in it already") {
		t.Errorf("a session may hand work to itself: %s", said)
	}
	first.end()
	other.end()
	again.end()
	d.awaitAgent("claude-a", "offline")
	if got := d.parley("agents", "rename", "echo", "x"); !strings.Contains(got, "only sessions are renamed") {
		t.Error(got)
	}
}

// A session is known to the hub with its first call, so that it cannot hand a task to itself; and it is registered with it.
func TestTheFirstCallOfASessionIsTheSessions(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	d.parley("start")
	one := d.program("claude-code", "a")
	if said := one.say("delegate_task", `{"agent":"claude-a","task":"x"}`); !strings.Contains(said, "claude-a is in it already") {
		t.Errorf("a session may hand work to itself: %s", said)
	}
	two := d.program("codex-mcp-client", "b")
	if said := two.say("update_presence", `{"status":"busy"}`); !strings.HasPrefix(said, "You are busy") {
		t.Error(said)
	}
	one.end()
	two.end()
}
