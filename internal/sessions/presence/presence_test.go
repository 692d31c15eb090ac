package presence_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var began = time.Date(2026, 11, 28, 6, 0, 0, 0, time.UTC)

// world is records with processes and a clock that the test controls.
type world struct {
	*presence.Records
	t    *testing.T
	path string
	now  time.Time

	mu   sync.Mutex
	dead map[presence.Process]bool
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, path: filepath.Join(t.TempDir(), "open.json"), now: began, dead: map[presence.Process]bool{}}
	w.open()
	return w
}

func (w *world) open() {
	w.t.Helper()
	var err error
	w.Records, err = presence.Open(presence.Options{Path: w.path, Alive: w.alive, Now: func() time.Time { return w.now },
		Names: func(guid string) (string, string) { return "agent-" + guid, "@" + guid }})
	if err != nil {
		w.t.Fatal(err)
	}
}

// store writes the file, as at the end of the hub.
func (w *world) store() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	cancel()
	if err := w.Run(ctx); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) alive(p presence.Process) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.dead[p]
}

func (w *world) kill(p presence.Process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead[p] = true
}

// only returns the only session.
func (w *world) only() presence.Session {
	w.t.Helper()
	all := w.All()
	if len(all) != 1 {
		w.t.Fatalf("the sessions are %+v", all)
	}
	return all[0]
}

func process(pid int) presence.Process {
	return presence.Process{PID: pid, Start: fmt.Sprint(pid * 10)}
}

// thread returns the id of a Codex thread that began at a time.
func thread(at time.Time, last byte) string {
	var u uuid.UUID
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(at.UnixMilli()))
	copy(u[:6], ms[2:])
	u[6], u[8], u[15] = 0x70, 0x80, last
	return u.String()
}

func TestAHookAndAnMCPServerOfOneProcessAreOneSession(t *testing.T) {
	t.Parallel()
	for _, hookFirst := range []bool{true, false} {
		w := newWorld(t)
		hook := func() {
			w.Hook(presence.Hooked{Vendor: presence.Claude, ID: "s1", Process: process(7), Dir: "/p", Transcript: "/t.jsonl", State: presence.Idle, Terminal: presence.TerminalOpen})
		}
		if hookFirst {
			hook()
		}
		w.Serve(presence.Served{Vendor: presence.Claude, ID: "old", Process: process(7), Dir: "/p", GUID: "g1", Server: process(8), Since: began})
		if !hookFirst {
			hook()
		}
		s := w.only()
		if s.ID != "s1" || s.GUID != "g1" || s.Dir != "/p" || s.Transcript != "/t.jsonl" || s.State != presence.Idle || s.Terminal != presence.TerminalOpen ||
			s.Name != "agent-g1" || s.Handle != "@g1" || s.Server != process(8) || s.Guessed {
			t.Errorf("hook first %t: the session is %+v", hookFirst, s)
		}
	}
}

// A program may have started two servers, as of two entries of its configuration: both are agents until one of them ends.
func TestTwoServersOfOneProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Hook(presence.Hooked{Vendor: presence.Claude, ID: "s1", Process: process(7), Dir: "/p", Terminal: presence.TerminalOpen})
	serve := func(guid string, pid int) {
		w.Serve(presence.Served{Vendor: presence.Claude, ID: "s1", Process: process(7), Dir: "/p", GUID: guid, Server: process(pid), Since: began})
	}
	for range 2 {
		serve("g1", 8)
		serve("g2", 9)
	}
	for guid, pid := range map[string]int{"g1": 8, "g2": 9} {
		if s, ok := w.Agent(guid); !ok || s.Server != process(pid) || s.Process != process(7) || s.Terminal != presence.TerminalOpen {
			t.Errorf("%s is %+v", guid, s)
		}
	}
	if len(w.Closed()) != 0 {
		t.Errorf("closed are %v", w.Closed())
	}
	w.kill(process(8))
	if closed := w.Closed(); len(closed) != 1 || closed["g1"].IsZero() {
		t.Errorf("closed are %v", closed)
	}
}

func TestTheSessionIDChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Hook(presence.Hooked{Vendor: presence.Claude, ID: "s1", Process: process(7)})
	w.Serve(presence.Served{Vendor: presence.Claude, ID: "s1", Process: process(7), GUID: "g1", Server: process(8)})
	w.Hook(presence.Hooked{Vendor: presence.Claude, ID: "s2", Process: process(7)})
	if s := w.only(); s.ID != "s2" || s.GUID != "g1" {
		t.Errorf("the session is %+v", s)
	}
	// The server's environment still has the first id.
	w.Serve(presence.Served{Vendor: presence.Claude, ID: "s1", Process: process(7), GUID: "g2", Server: process(8)})
	if s := w.only(); s.ID != "s2" || s.GUID != "g2" {
		t.Errorf("the session is %+v", s)
	}
	if _, ok := w.Session(presence.Claude, "s1"); ok {
		t.Error("the former id is known")
	}
	if s, ok := w.Agent("g2"); !ok || s.ID != "s2" {
		t.Errorf("the agent's session is %+v", s)
	}
}

func TestASessionThatIsResumedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Hook(presence.Hooked{Vendor: presence.Claude, ID: "s1", Process: process(7)})
	w.Hook(presence.Hooked{Vendor: presence.Claude, ID: "s1", Process: process(9)}) // both run
	if all := w.All(); len(all) != 2 {
		t.Errorf("the sessions are %+v", all)
	}
	w.kill(process(7))
	w.Hook(presence.Hooked{Vendor: presence.Claude, ID: "s1", Process: process(9)})
	if s := w.only(); s.Process != process(9) {
		t.Errorf("the session is %+v", s)
	}
}

func TestTwoCodexThreadsOfOneDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := thread(began, 1), thread(began.Add(time.Minute), 2)
	serve := func(id, guid string, pid int, after time.Duration) {
		w.Serve(presence.Served{Vendor: presence.Codex, ID: id, Dir: "/p", GUID: guid, Server: process(pid), Since: began.Add(after)})
	}
	serve("", "g1", 11, time.Second)
	serve("", "g2", 12, time.Minute+time.Second)
	w.Hook(presence.Hooked{Vendor: presence.Codex, ID: two, Dir: "/p", State: presence.InTurn})
	w.Hook(presence.Hooked{Vendor: presence.Codex, ID: one, Dir: "/p"})
	first, _ := w.Session(presence.Codex, one)
	second, _ := w.Session(presence.Codex, two)
	if len(w.All()) != 2 || first.GUID != "g1" || second.GUID != "g2" || !first.Guessed || second.State != presence.InTurn {
		t.Errorf("the sessions are %+v", w.All())
	}
	// A tool call says that it is the other way round.
	serve(one, "g2", 12, time.Minute)
	first, _ = w.Session(presence.Codex, one)
	second, _ = w.Session(presence.Codex, two)
	if first.GUID != "g2" || first.Guessed || second.GUID != "" {
		t.Errorf("the sessions are %+v", w.All())
	}
	serve(two, "g1", 11, 0)
	if second, _ = w.Session(presence.Codex, two); second.GUID != "g1" || len(w.All()) != 2 {
		t.Errorf("the sessions are %+v", w.All())
	}
}

func TestACodexServerThatIsSlowerThanTheHook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := thread(began, 1)
	w.Hook(presence.Hooked{Vendor: presence.Codex, ID: id, Dir: "/p"})
	w.Serve(presence.Served{Vendor: presence.Codex, Dir: "/other", GUID: "g0", Server: process(10), Since: began.Add(time.Second)})
	w.Serve(presence.Served{Vendor: presence.Codex, Dir: "/p", GUID: "g1", Server: process(11), Since: began.Add(time.Hour)})
	w.Serve(presence.Served{Vendor: presence.Codex, Dir: "/p", GUID: "g2", Server: process(12), Since: began.Add(time.Second)})
	if s, _ := w.Session(presence.Codex, id); s.GUID != "g2" {
		t.Errorf("the sessions are %+v", w.All())
	}
	w.Serve(presence.Served{Vendor: presence.Codex, ID: id, Dir: "/p", GUID: "g2", Server: process(12)})
	if s, _ := w.Session(presence.Codex, id); s.GUID != "g2" || s.Guessed || len(w.All()) != 3 {
		t.Errorf("the sessions are %+v", w.All())
	}
}

func TestWhatHasEndedIsRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Hook(presence.Hooked{Vendor: presence.Gemini, ID: "s1", Process: process(7)})
	w.Serve(presence.Served{Vendor: presence.Gemini, Process: process(7), GUID: "g1", Server: process(8)})
	w.Serve(presence.Served{Vendor: presence.Codex, Dir: "/p", GUID: "g2", Server: process(9)})
	changed := w.Changed()
	w.kill(process(8))
	w.kill(process(9))
	if s := w.only(); s.GUID != "" || s.Server.PID != 0 {
		t.Errorf("the session is %+v", s)
	}
	<-changed
	w.kill(process(7))
	if all := w.All(); len(all) != 0 {
		t.Errorf("the sessions are %+v", all)
	}
	w.Hook(presence.Hooked{Vendor: presence.Codex, ID: "t1"})
	if !w.End(presence.Codex, "t1") || w.End(presence.Codex, "t1") || w.End(presence.Codex, "") || len(w.All()) != 0 {
		t.Errorf("the sessions are %+v", w.All())
	}
}

func TestATerminalIsClosedWhenNoProgramCanShowTheSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hook := presence.Hooked{Vendor: presence.Codex, ID: "t1", Screens: []presence.Process{process(1), process(2)}}
	w.Hook(hook)
	w.kill(process(1))
	if s := w.only(); s.Terminal != presence.TerminalOpen {
		t.Errorf("the terminal is %s", s.Terminal)
	}
	w.kill(process(2))
	if s := w.only(); s.Terminal != presence.TerminalClosed {
		t.Errorf("the terminal is %s", s.Terminal)
	}
	hook.Screens = []presence.Process{process(3)} // it is resumed
	w.Hook(hook)
	if s := w.only(); s.Terminal != presence.TerminalOpen {
		t.Errorf("the terminal is %s", s.Terminal)
	}
}

func TestTheRecordsOutliveTheHub(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Hook(presence.Hooked{Vendor: presence.Claude, ID: "s1", Process: process(7), State: presence.InTurn, Terminal: presence.TerminalOpen})
	w.Serve(presence.Served{Vendor: presence.Claude, Process: process(7), GUID: "g1", Server: process(8)})
	w.setQuiet("g1", true)
	w.setQuiet("g2", true)
	w.setQuiet("g2", false)
	w.store()
	w.open()
	s := w.only()
	if s.ID != "s1" || s.GUID != "g1" || s.State != "" || s.Terminal != presence.TerminalOpen || !s.Quiet || !w.Quiet("g1") || w.Quiet("g2") {
		t.Errorf("the session is %+v", s)
	}
	w.setQuiet("g1", false)
	if w.only().Quiet {
		t.Error("it is still quiet")
	}
}

func (w *world) setQuiet(guid string, quiet bool) {
	w.t.Helper()
	if err := w.SetQuiet(guid, quiet); err != nil {
		w.t.Error(err)
	}
}

// A hub that is killed right after the answer has stored it. One that cannot store it says so.
func TestQuietIsStoredWhenItIsAnswered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, quiet := range []bool{true, false} {
		w.setQuiet("g1", quiet)
		w.open() // nothing has written the file meanwhile
		if w.Quiet("g1") != quiet {
			t.Errorf("after a kill quiet is %t", !quiet)
		}
	}
	w.path = filepath.Join(t.TempDir(), "missing", "open.json")
	w.open()
	if err := w.SetQuiet("g1", true); err == nil || !w.Quiet("g1") {
		t.Errorf("what cannot be stored: %v", err)
	}
}

func TestADamagedFileIsNoted(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"{", `{"version":2}`} {
		path := filepath.Join(t.TempDir(), "open.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		var noted []statefile.Damage
		if _, err := presence.Open(presence.Options{Path: path, Damaged: func(d statefile.Damage) { noted = append(noted, d) }}); err != nil || len(noted) != 1 || noted[0].Loss == "" {
			t.Errorf("%s: %v, %+v", content, err, noted)
		}
	}
}

func TestTheRecordsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 1100 {
		w.now = w.now.Add(time.Second)
		w.Hook(presence.Hooked{Vendor: presence.Codex, ID: fmt.Sprint(i), Dir: strings.Repeat("x", 5000), Screens: make([]presence.Process, 100)})
	}
	all := w.All()
	if len(all) != 1000 || all[0].ID != "100" || len(all[0].Dir) != 4096 || len(all[0].Screens) != 16 {
		t.Errorf("%d sessions, the first is %.60s", len(all), all[0].ID)
	}
	quiet, err := presence.Open(presence.Options{})
	for i := 0; err == nil && i < 1100; i++ {
		err = quiet.SetQuiet(fmt.Sprint(i), true)
	}
	if err != nil || quiet.Quiet("99") || !quiet.Quiet("100") {
		t.Errorf("the quiet agents are not bounded: %v", err)
	}
}

func TestThreadTime(t *testing.T) {
	t.Parallel()
	if at, ok := presence.ThreadTime(thread(began, 1)); !ok || !at.Equal(began) {
		t.Errorf("%s, %t", at, ok)
	}
	for _, id := range []string{"", "x", uuid.NewString()} {
		if _, ok := presence.ThreadTime(id); ok {
			t.Errorf("%q has a time", id)
		}
	}
}

func TestProcessesOfThisComputer(t *testing.T) {
	t.Parallel()
	me := presence.Running(os.Getpid())
	if me.PID != os.Getpid() || !me.Alive() {
		t.Errorf("this process is %+v", me)
	}
	if p := presence.SessionOf(os.Getpid()); p.PID == 0 || !p.Alive() {
		t.Errorf("the parent is %+v", p)
	}
	if runtime.GOOS != "linux" {
		return
	}
	if p := (presence.Process{PID: me.PID, Start: "1"}); p.Alive() {
		t.Error("a process with another start is taken for this one")
	}
	if (presence.Process{PID: 1 << 30}).Alive() || presence.Running(1<<30) != (presence.Process{}) {
		t.Error("a process that is none lives")
	}
}

func TestScreensAreTheTerminalProgramsOfCodex(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux shows the processes")
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(sleep)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "codex"), data, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	tui := exec.CommandContext(t.Context(), filepath.Join(dir, "codex"), "600")
	tui.Dir = dir
	if err := tui.Start(); err != nil {
		t.Skip(err) // a program with many names does nothing under this one
	}
	defer func() { _ = tui.Process.Kill(); _ = tui.Wait() }()
	screens := presence.Screens(dir)
	if !presence.Running(tui.Process.Pid).Alive() {
		t.Skip("the program does not run under this name")
	}
	if len(screens) != 1 || screens[0].PID != tui.Process.Pid {
		t.Errorf("the screens are %+v, not %d", screens, tui.Process.Pid)
	}
	if others := presence.Screens(t.TempDir()); len(others) != 0 {
		t.Errorf("the screens of another directory are %+v", others)
	}
}
