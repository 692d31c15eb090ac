package presence_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/sessions/presence"
)

// codexServes reports an MCP server in /p, of a terminal 70 unless it is said.
func (w *world) codexServes(id, guid string, pid int, after time.Duration, screens ...presence.Process) {
	if screens == nil {
		screens = []presence.Process{process(70)}
	}
	w.Serve(presence.Served{Vendor: presence.Codex, ID: id, Dir: "/p", GUID: guid, Server: process(pid), Since: began.Add(after), Screens: screens})
}

func (w *world) codexHooks(id string, screens ...presence.Process) presence.Session {
	if screens == nil {
		screens = []presence.Process{process(70)}
	}
	return w.Hook(presence.Hooked{Vendor: presence.Codex, ID: id, Dir: "/p", State: presence.Idle, Turn: true, Screens: screens})
}

// A resumed thread is older than its MCP server: both are one session all the same.
func TestAResumedCodexThreadIsOneSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := thread(began.Add(-time.Hour), 1)
	w.codexServes("", "g0", 10, -time.Minute) // of the thread that the terminal showed before
	w.codexServes("", "g1", 11, 0)
	w.now = began.Add(time.Minute)
	if s := w.codexHooks(id); s.GUID != "g1" || !s.Guessed {
		t.Errorf("the session is %+v", s)
	}
	if all := w.All(); len(all) != 2 || all[0].GUID != "g0" || all[0].Terminal != presence.TerminalClosed || all[1].Terminal != presence.TerminalOpen {
		t.Errorf("the sessions are %+v", all)
	}
}

// Two threads of one directory are resumed at once, and their MCP servers begin as each other's agents or as another one: a hook of a thread
// that a tool call had named is of the agent that the thread was, also after a start of the hub.
func TestResumedCodexThreadsAreTheAgentsThatTheyWere(t *testing.T) {
	t.Parallel()
	for name, again := range map[string][]string{"of both": {"g2", "g1"}, "of one": {"g1"}, "of others": {"g8", "g9"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			threads := []string{thread(began.Add(-time.Hour), 1), thread(began.Add(-time.Hour), 2)}
			w.codexServes(threads[0], "g1", 11, -time.Hour)
			w.codexServes(threads[1], "g2", 12, -time.Hour)
			for i, id := range threads {
				w.End(presence.Codex, id)
				w.kill(process(11 + i))
			}
			w.store()
			w.open()
			both := []presence.Process{process(70), process(71)}
			for i, guid := range again {
				w.codexServes("", guid, 13+i, 0, both...)
			}
			for i, id := range threads {
				want := fmt.Sprint("g", i+1)
				if s := w.codexHooks(id, both...); s.GUID != want || s.ID != id {
					t.Errorf("the session is %+v", s)
				}
				if got := w.Former(id); got != want {
					t.Errorf("the thread was %s", got)
				}
			}
			w.codexServes(threads[1], "g2", 13, 0, both...)
			if s, ok := w.Agent("g2"); !ok || s.ID != threads[1] || s.Server != process(13) || s.Guessed {
				t.Errorf("after a tool call g2 is %+v", s)
			}
			if s, ok := w.Agent("g1"); !ok || s.ID != threads[0] {
				t.Errorf("after a tool call of the other one g1 is %+v", s)
			}
		})
	}
}

// A thread whose agent has become another thread's does not get it back.
func TestAnAgentThatAnotherThreadHasIsNotTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	former, now := thread(began.Add(-time.Hour), 1), thread(began, 2)
	w.codexServes(former, "g1", 11, -time.Hour)
	w.codexServes(now, "g1", 12, 0)
	if s := w.codexHooks(former); s.GUID != "" {
		t.Errorf("the session is %+v", s)
	}
	if s, _ := w.Agent("g1"); s.ID != now {
		t.Errorf("the agent's session is %+v", s)
	}
}

// A thread whose MCP server has ended cannot read mail: it is no agent's until another server is there.
func TestAThreadWithoutItsServerIsNoAgents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := thread(began.Add(-time.Hour), 1)
	w.codexServes(id, "g1", 11, -time.Hour)
	w.codexHooks(id)
	w.kill(process(11))
	w.All()
	if s := w.codexHooks(id); s.GUID != "" {
		t.Errorf("without its server the session is %+v", s)
	}
	w.codexServes("", "g1", 12, 0)
	if s := w.codexHooks(id); s.GUID != "g1" || s.Server != process(12) {
		t.Errorf("with another server the session is %+v", s)
	}
}

// With several terminals it is not known which server is a resumed thread's, so that none is another session for certain.
func TestAResumedCodexThreadAmongOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	both := []presence.Process{process(70), process(71)}
	w.codexServes("", "g1", 11, 0, both...)
	w.codexServes("", "g2", 12, time.Second, both...)
	s := w.codexHooks(thread(began.Add(-time.Hour), 1), both...)
	if s.GUID != "" {
		t.Fatalf("the session is %+v", s)
	}
	for _, guid := range []string{"g1", "g2"} {
		if x, _ := w.Agent(guid); !s.MayBe(x) || x.Terminal != presence.TerminalOpen {
			t.Errorf("%s cannot be the session: %+v", guid, x)
		}
	}
	w.codexServes(thread(began, 9), "g3", 13, time.Second, both...)
	if x, _ := w.Agent("g3"); s.MayBe(x) {
		t.Error("a server that a tool call has joined may be another session's")
	}
	if x, _ := w.Agent("g1"); s.MayBe(presence.Session{Vendor: presence.Gemini, Dir: x.Dir}) || x.MayBe(s) {
		t.Error("a session of another vendor, or a known one, may be any")
	}
}

// After /new one terminal has two threads, of which it shows the latter; when that one goes, the former is seen again.
func TestATerminalShowsOneCodexThread(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := thread(began, 1), thread(began.Add(time.Minute), 2)
	w.codexServes("", "g1", 11, time.Second)
	w.now = began.Add(10 * time.Second)
	w.codexHooks(one)
	if len(w.Closed()) != 0 {
		t.Errorf("closed are %v", w.Closed())
	}
	w.codexServes("", "g2", 12, time.Minute)
	if closed := w.Closed(); len(closed) != 1 || !closed["g1"].IsZero() {
		t.Errorf("closed are %v", closed)
	}
	w.now = began.Add(2 * time.Minute)
	if s := w.codexHooks(two); s.GUID != "g2" || s.Terminal != presence.TerminalOpen {
		t.Errorf("the session is %+v", s)
	}
	w.now = began.Add(3 * time.Minute)
	if s := w.codexHooks(one); s.Terminal != presence.TerminalOpen {
		t.Errorf("the session is %+v", s)
	}
	if closed := w.Closed(); len(closed) != 1 || closed["g2"] != (time.Time{}) {
		t.Errorf("closed are %v", closed)
	}
	w.End(presence.Codex, one)
	if closed := w.Closed(); len(closed) != 0 {
		t.Errorf("closed are %v", closed)
	}
}

// A terminal that was opened later takes none from the session that was there before.
func TestTwoTerminalsShowTwoCodexThreads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	both := []presence.Process{process(70), process(71)}
	w.codexServes("", "g1", 11, time.Second)
	w.codexHooks(thread(began, 1))
	w.codexServes("", "g2", 12, time.Minute, both...)
	if closed := w.Closed(); len(closed) != 0 {
		t.Errorf("closed are %v", closed)
	}
	w.kill(process(71))
	if closed := w.Closed(); len(closed) != 1 {
		t.Errorf("one terminal shows %v", closed)
	}
	w.Serve(presence.Served{Vendor: presence.Codex, Dir: "/p", GUID: "g3", Server: process(13), Since: began.Add(time.Hour), Headless: true})
	if x, _ := w.Agent("g3"); x.Terminal != presence.NoTerminal || len(w.Closed()) != 1 {
		t.Errorf("codex exec is %+v, closed are %v", x, w.Closed())
	}
}

// An agent whose server has ended or was replaced is closed before the registry notices, until it registers again.
func TestAgentsThatHaveEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := thread(began, 1)
	w.codexServes(id, "g1", 11, 0)
	w.now = began.Add(time.Hour)
	w.codexServes(id, "g2", 12, 0)
	if closed := w.Closed(); len(closed) != 1 || !closed["g1"].Equal(w.now) {
		t.Errorf("closed are %v", closed)
	}
	w.kill(process(12))
	if closed := w.Closed(); len(closed) != 2 || !closed["g2"].Equal(w.now) {
		t.Errorf("closed are %v", closed)
	}
	if all := w.All(); len(all) != 0 {
		t.Errorf("a thread without hooks stays when its server has ended: %+v", all)
	}
	w.codexServes(id, "g2", 13, 0)
	if closed := w.Closed(); len(closed) != 1 || closed["g1"].IsZero() {
		t.Errorf("closed are %v", closed)
	}
}

// A tool call that corrects a guess leaves the session that was guessed.
func TestAWrongGuessLosesNoSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := thread(began, 1)
	w.codexServes("", "g1", 11, time.Second)
	w.codexHooks(id)
	w.codexServes(id, "g2", 12, 2*time.Second)
	if s, _ := w.Session(presence.Codex, id); s.GUID != "g2" {
		t.Errorf("the session is %+v", s)
	}
	if s, ok := w.Agent("g1"); !ok || s.ID != "" || s.Server != process(11) {
		t.Errorf("the other one is %+v", s)
	}
}
