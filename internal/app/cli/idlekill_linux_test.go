package cli_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/wait"
)

var idleKills = flag.Int("idle-kills", 5, "kills of the hub, or of a session's process, at each kind of session that rests; `make soak` has 150")

const (
	restsAfter    = 20 * time.Millisecond // see beIdle
	suspendedLine = "an idle session was suspended"
	// sessionGone begins what a session says whose call was not answered.
	sessionGone = "ConnectionError: "
)

// restingSession is a session whose connection to the hub rests, or that the hub has suspended.
type restingSession interface {
	// say calls a tool and returns its text. A call that was lost has a text like one that could not be made.
	say(tool, format string, args ...any) string
	// rest waits until the session rests.
	rest()
	// kill kills the session's process, if it has one, and opens the session again.
	kill()
	end()
}

// processSession is a session with a process, whose connections to the bus rest.
type processSession struct {
	*openedSession
	d *machine
}

func (d *machine) openResting() restingSession {
	return &processSession{d.openSession("reviewer"), d}
}

func (s *processSession) rest() {
	s.t.Helper()
	wait.Eventually(s.t, "no connection to the bus", func() bool { return connections(s.t, s.Process.Pid) == 0 })
}

// Calls of a session that rests wait for a hub that was killed as those of another.
func TestRestingCallsWaitForAKilledHub(t *testing.T) {
	t.Parallel()
	testCallsOfKilledHub(t, func(s *openedSession) { (&processSession{openedSession: s}).rest() }, beIdle+"="+restsAfter.String())
}

func (s *processSession) kill() {
	s.t.Helper()
	if err := s.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	_ = s.Wait() // it was killed
	s.openedSession = s.d.openSession("reviewer")
}

func (s *processSession) end() { s.openedSession.end() }

// connections returns how many TCP connections a process has.
func connections(t *testing.T, pid int) (n int) {
	t.Helper()
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		t.Fatal(err)
	}
	const state, established, inode = 3, "01", 9
	sockets := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); f[state] == established {
			sockets["socket:["+f[inode]+"]"] = true
		}
	}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is right
	for _, file := range files {
		if to, err := os.Readlink(file); err == nil && sockets[to] {
			n++
		}
	}
	return n
}

// webSession is a session at /mcp, which the hub suspends. Its client begins it anew when the hub does not know it any more.
type webSession struct {
	d         *machine
	web       http.Client
	id        string
	hub       int // process that answered last
	calls     int
	log       *bufio.Reader // of the hub, from the last look on
	suspended bool          // since the last call
}

func (d *machine) openWeb() restingSession {
	d.t.Helper()
	s := &webSession{d: d, web: http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	wait.Eventually(d.t, "the session is registered", func() bool {
		return strings.HasPrefix(s.say("register_agent", `{"agentType":"reviewer","capabilities":[],"scope":"project"}`), "Registered")
	})
	return s
}

// rest waits until the hub's log says that the session was suspended. A hub that was killed since gets a session again.
func (s *webSession) rest() {
	s.d.t.Helper()
	wait.Eventually(s.d.t, "the session is suspended", func() bool {
		if info, err := daemon.Read(filepath.Join(s.d.root, "data")); err != nil || info.PID != s.hub {
			s.say("get_my_registration", `{}`)
			return false
		}
		s.look()
		return s.suspended
	})
}

// look reads what is new in the hub's log.
func (s *webSession) look() {
	if s.log == nil {
		f, err := os.Open(daemon.LogPath(filepath.Join(s.d.root, "data")))
		if err != nil {
			return // it is just beginning
		}
		s.d.t.Cleanup(func() { _ = f.Close() })
		s.log = bufio.NewReader(f)
	}
	news, err := io.ReadAll(s.log)
	if err != nil {
		s.d.t.Fatal(err)
	}
	s.suspended = s.suspended || bytes.Contains(news, []byte(suspendedLine))
}

func (s *webSession) kill() {}
func (s *webSession) end()  {}

func (s *webSession) say(tool, format string, args ...any) string {
	s.d.t.Helper()
	s.look()
	s.suspended = false
	if s.id == "" && (s.request("initialize", initializeParams) == nil || s.request("notifications/initialized", "{}") == nil ||
		s.request("tools/call", `{"name":"set_handle","arguments":{"handle":"reviewer"}}`) == nil) {
		return sessionGone + "no session"
	}
	answer := s.request("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, fmt.Sprintf(format, args...)))
	var result struct {
		Result struct{ Content []struct{ Text string } }
	}
	if json.Unmarshal(answer, &result) != nil || len(result.Result.Content) == 0 {
		return sessionGone + string(answer)
	}
	text := result.Result.Content[0].Text
	if strings.HasPrefix(text, "NotRegisteredError") && tool != "register_agent" {
		s.say("register_agent", `{"agentType":"reviewer","capabilities":[],"scope":"project"}`)
		return s.say(tool, format, args...)
	}
	return text
}

// request sends a request and returns the answer; nil if there is none, and then the session is over.
func (s *webSession) request(method, params string) []byte {
	s.d.t.Helper()
	info, err := daemon.Read(filepath.Join(s.d.root, "data"))
	if err != nil {
		return nil
	}
	s.calls++
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, s.calls, method, params)
	if strings.HasPrefix(method, "notifications/") {
		body = fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params)
	}
	r, err := http.NewRequestWithContext(s.d.t.Context(), http.MethodPost, info.HTTP+"/mcp?project="+url.QueryEscape(filepath.Join(s.d.root, "a")), strings.NewReader(body))
	if err != nil {
		s.d.t.Fatal(err)
	}
	r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if s.id != "" {
		r.Header.Set("Mcp-Session-Id", s.id)
	}
	resp, err := s.web.Do(r)
	if err != nil {
		s.id = ""
		return nil
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		s.id = ""
		return nil
	}
	s.hub = info.PID
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		s.id = id
	}
	for line := range bytes.Lines(data) {
		if event, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			data = event
		}
	}
	return append([]byte{}, data...)
}

// restKills is a session whose tasks are given and answered while it rests, and the hub or its process is killed.
type restKills struct {
	*machine
	random *rand.Rand
	s      restingSession
	left   int            // kills
	counts map[string]int // of kills
	ranks  map[string]int // how far each task has come
}

// hub calls a method of the hub.
func (k *restKills) hub(call func(*client.Client) error) error {
	c, err := client.Dial(k.t.Context(), filepath.Join(k.root, "s"))
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // it was used
	return call(c)
}

// taskStates are the states of a task in their order: those of its second turn come after those of the first.
var taskStates = []dialect.TaskState{dialect.StateSubmitted, dialect.StateWorking, dialect.StateInputRequired, dialect.StateCompleted}

// look returns a task, which must not be in an earlier state than before. replied is whether it has got the reply to its question.
func (k *restKills) look(id string, replied bool) (task *dialect.Task) {
	k.t.Helper()
	wait.Eventually(k.t, "the hub shows the task", func() bool {
		return k.hub(func(c *client.Client) (err error) {
			task, err = c.Task(k.t.Context(), id)
			return err
		}) == nil
	})
	rank := 1 + slices.Index(taskStates, task.Status.State)
	if replied && rank > 0 && task.Status.State != dialect.StateInputRequired { // which it is until the reply is shown
		rank += len(taskStates)
	}
	if rank == 0 || rank < k.ranks[id] {
		k.t.Fatalf("task %s is %s after state %d", id, task.Status.State, k.ranks[id])
	}
	k.ranks[id] = rank
	return task
}

// step does one step of a task, with the session at rest before, and perhaps with a kill in it or after it.
func (k *restKills) step(name string, do func()) {
	k.t.Helper()
	k.s.rest()
	kind := k.random.IntN(8)
	if k.left <= 0 || kind > 3 {
		do()
		return
	}
	k.left--
	if kind == 0 {
		k.counts["during: "+name]++
		killed := make(chan struct{})
		delay := time.Duration(k.random.Int64N(int64(maxKillDelay)))
		go func() {
			defer close(killed)
			time.Sleep(delay)
			k.killHub()
			k.parley("start") // a session at /mcp does not
		}()
		do()
		<-killed
	} else {
		do()
		k.s.rest()
		if _, process := k.s.(*processSession); kind == 1 && process {
			k.counts["session, after: "+name]++
			k.s.kill()
		} else {
			k.counts["hub, after: "+name]++
			k.killHub()
		}
	}
	k.parley("start")
}

// persist calls a tool until the hub has answered.
func (k *restKills) persist(tool, format string, args ...any) (said string) {
	k.t.Helper()
	wait.Eventually(k.t, tool+" is done", func() bool {
		said = k.s.say(tool, format, args...)
		return !strings.HasPrefix(said, sessionGone) && !strings.HasPrefix(said, "NotRegisteredError")
	})
	return said
}

// read reads mail until the session has that with a text.
func (k *restKills) read(text string) {
	k.t.Helper()
	wait.Eventually(k.t, "the session reads "+text, func() bool {
		return strings.Contains(k.s.say("wait_for_direct_messages", `{"messageType":"task","timeout_seconds":1}`), text)
	})
}

// answer answers a task, and fails if that has another answer.
func (k *restKills) answer(id, outcome, text string) {
	k.t.Helper()
	said := k.persist("answer_task", `{"taskId":%q,"text":%q,"outcome":%q}`, id, text, outcome)
	if strings.HasPrefix(said, "ConflictError") { // of an attempt whose answer was lost
		if task := k.look(id, outcome == "completed"); string(task.Status.State) != outcome || task.Status.Message.Text() != text {
			k.t.Fatalf("%s: the task is %s: %q", said, task.Status.State, task.Status.Message.Text())
		}
	}
}

// reply answers the question of a task.
func (k *restKills) reply(id, text string) {
	k.t.Helper()
	wait.Eventually(k.t, "the reply is stored", func() bool {
		var task *dialect.Task
		err := k.hub(func(c *client.Client) (err error) {
			task, err = c.Task(k.t.Context(), id)
			return err
		})
		if err == nil && len(task.History) == 2 { // with the question
			k.parley("send", "--scratch", "--detach", "--task", id, text)
			return false // it is looked at again
		}
		return err == nil
	})
}

// task gives a task with a question, and answers it.
func (k *restKills) oneTask(n int) {
	k.t.Helper()
	var id string
	k.step("stored", func() { id = k.ask("reviewer", fmt.Sprintf("task %d", n)) })
	k.look(id, false)
	k.step("shown", func() { k.read(fmt.Sprintf("task %d\n", n)) })
	k.look(id, false)
	k.step("working", func() { k.persist("report_progress", `{"taskId":%q,"message":"reading"}`, id) })
	k.look(id, false)
	k.step("input-required", func() { k.answer(id, "input-required", "which part?") })
	if state := k.look(id, false).Status.State; state != dialect.StateInputRequired {
		k.t.Fatalf("a task whose session has asked is %s", state)
	}
	k.step("replied", func() { k.reply(id, fmt.Sprintf("reply %d", n)) })
	k.look(id, true)
	k.step("shown again", func() { k.read(fmt.Sprintf("reply %d\n", n)) })
	k.look(id, true)
	k.step("answered", func() { k.answer(id, "completed", fmt.Sprintf("answer %d", n)) })
	task := k.look(id, true)
	if text := task.Status.Message.Text(); task.Status.State != dialect.StateCompleted || len(task.History) != 4 || text != fmt.Sprintf("answer %d", n) {
		k.t.Fatalf("the task is %s with %d messages and the answer %q", task.Status.State, len(task.History), text)
	}
	if again := k.persist("answer_task", `{"taskId":%q,"text":"another"}`, id); !strings.HasPrefix(again, "ConflictError") {
		k.t.Fatalf("another answer: %s", again)
	}
}

// Whatever is killed at whatever state of a task of a session that rests: the task is not lost, it is answered once, and its state never
// goes back.
func TestKilledHubsAndRestingSessions(t *testing.T) {
	t.Parallel()
	seed := *sessionSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	for name, open := range map[string]func(*machine) restingSession{"connection": (*machine).openResting, "suspended": (*machine).openWeb} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Logf("repeat it with: -session-seed %d", seed)
			d := newMachine(t)
			d.env = append(d.env, beIdle+"="+restsAfter.String())
			f, err := os.OpenFile(filepath.Join(d.root, "data", "config.yaml"), os.O_APPEND|os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteString("logging: {level: debug}\n")
			}
			if err != nil || f.Close() != nil {
				t.Fatal(err)
			}
			d.parley("start")
			k := &restKills{machine: d, random: rand.New(rand.NewPCG(seed, 0)), left: *idleKills, counts: map[string]int{}, ranks: map[string]int{}}
			k.s = open(d)
			wait.Eventually(t, "the session is an agent", func() bool { return strings.Contains(d.parley("agents"), "reviewer") })
			for n := 0; k.left > 0; n++ {
				k.oneTask(n)
			}
			t.Logf("kills: %v", k.counts)
			k.s.end()
		})
	}
}
