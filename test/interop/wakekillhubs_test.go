//go:build interop && linux

package interop_test

import (
	"context"
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/stubmodel"
)

var wakeHubKills = flag.Int("wake-hub-kills", 2, "second opinions with a kill, in TestSecondOpinionsFromAnotherHubSurviveKills")

var wakeHubFirst = flag.Int("wake-hub-first", 0, "the number of the first kill")

// killedAcross has what is killed in turn, and when: here is the hub of Claude Code, there that of Codex. The link is cut for a while.
var killedAcross = []struct{ victim, step string }{
	{"there", read}, {"here", answered}, {"link", given}, {"link", read},
	{"there", given}, {"here", given}, {"claude", given},
	{"here", read}, {"claude", read}, {"there", answered}, {"link", answered}, {"claude", answered},
	{"codex", given}, {"codex", read},
}

// cutTime is for how long the link is cut: longer than the hubs need to see it.
const cutTime = 15 * time.Second

// udpLink forwards datagrams to an address until it is cut.
type udpLink struct {
	front  *net.UDPConn
	target *net.UDPAddr

	cut             atomic.Bool
	passed, dropped atomic.Int64 // datagrams

	mu    sync.Mutex
	backs map[string]*net.UDPConn // by the address of whoever has sent
	done  sync.WaitGroup
}

// newLink opens a link to a hub, and returns the address at which others reach it.
func newLink(t *testing.T, listen string) (l *udpLink, address string) {
	t.Helper()
	target, err := net.ResolveUDPAddr("udp4", listen)
	if err != nil {
		t.Fatal(err)
	}
	front, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	l = &udpLink{front: front, target: target, backs: make(map[string]*net.UDPConn)}
	l.done.Go(l.forward)
	t.Cleanup(func() {
		front.Close()
		l.mu.Lock()
		for _, back := range l.backs {
			back.Close()
		}
		l.mu.Unlock()
		l.done.Wait()
	})
	return l, front.LocalAddr().String()
}

func (l *udpLink) forward() {
	packet := make([]byte, 1<<16)
	for {
		n, from, err := l.front.ReadFromUDP(packet)
		if err != nil {
			return
		}
		if back := l.back(from); back != nil && l.open() {
			_, _ = back.Write(packet[:n]) // a datagram may be lost
		}
	}
}

// open counts a datagram, and reports whether it passes.
func (l *udpLink) open() bool {
	if l.cut.Load() {
		l.dropped.Add(1)
		return false
	}
	l.passed.Add(1)
	return true
}

// back returns the socket that stands for a sender, and forwards what it gets.
func (l *udpLink) back(from *net.UDPAddr) *net.UDPConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if back := l.backs[from.String()]; back != nil {
		return back
	}
	back, err := net.DialUDP("udp4", nil, l.target)
	if err != nil {
		return nil
	}
	l.backs[from.String()] = back
	l.done.Go(func() {
		packet := make([]byte, 1<<16)
		for {
			n, err := back.Read(packet)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && l.open() { // it is refused while the hub is not there
				_, _ = l.front.WriteToUDP(packet[:n], from)
			}
		}
	})
	return back
}

// twoHubs are the opinions of a Claude Code here and a Codex behind another hub.
type twoHubs struct {
	*opinions // here, with the session of the other hub
	there     *desktop
	links     []*udpLink
}

func newTwoHubs(t *testing.T, h *stubmodel.Handler) *twoHubs {
	t.Helper()
	programs, model := openPrograms(t, h)
	x := &twoHubs{opinions: &opinions{}}
	open := func(settings string) *desktop {
		listen := freeAddress(t)
		link, public := newLink(t, listen)
		x.links = append(x.links, link)
		return newPlainDesktopAt(t, programs, model, settings, listen, public)
	}
	here, there := open(""), open("sessions: {outside: allow}\n")
	x.desktop, x.there = here, there
	here.pair(t, "there", there.office)
	there.pair(t, "here", here.office)
	here.ask(t, "install", "claude", "--yes")(t)
	there.ask(t, "install", "codex", "--yes")(t)
	x.claude = &session{here, "claude-shop", here.shop, []string{"claude", "--allowedTools", "mcp__parley"}}
	x.codex = &session{there, "codex-shop", there.shop, []string{"codex"}}
	x.claude.begin(t)
	x.codex.begin(t)
	here.dial(t)
	x.claude.logFailure(t)
	x.codex.trustHooks(t)
	there.dial(t)
	x.codex.logFailure(t)
	x.claude.ready(t)
	x.codex.ready(t)
	x.publish(t)
	return x
}

// publish lets the hub here see the session there.
func (x *twoHubs) publish(t *testing.T) {
	t.Helper()
	registered := func() int { return strings.Count(x.codex.screen(t), "Registeredascodex") }
	before := registered()
	x.codex.say(t, `USE:register_agent {"agentType":"codex","capabilities":["review"],"scope":"user","visibility":"public"}`,
		func() bool { return registered() > before })
	until(t, "the hub here sees the session", x.reachable)
}

// Two users' sessions behind two hubs: whichever hub, MCP server or session is killed, and if the link is cut, at each step: the
// answer comes to the session that asked, once.
func TestSecondOpinionsFromAnotherHubSurviveKills(t *testing.T) {
	t.Parallel()
	r := &reviews{tasks: make(map[string]int), shown: make(map[string]int), reached: make(chan string, 1), release: make(chan struct{}, 1)}
	x := newTwoHubs(t, &stubmodel.Handler{Script: r.script})
	t.Cleanup(func() { x.logFailure(t) })
	for n := range *wakeHubKills {
		i := *wakeHubFirst + n
		k := killedAcross[i%len(killedAcross)]
		began := time.Now()
		x.survives(t, r, k.victim, k.step)
		t.Logf("%d: %s killed when the task was %s: %s", i, k.victim, k.step, time.Since(began).Round(time.Millisecond))
	}
}

// logFailure shows what the hubs know if the test fails.
func (x *twoHubs) logFailure(t *testing.T) {
	if !t.Failed() {
		return
	}
	for name, d := range map[string]*desktop{"here": x.desktop, "there": x.there} {
		all := d.hubTasks()
		for _, task := range all[:min(len(all), 3)] {
			t.Logf("%s: task %s is %s: %v", name, task.ID, task.Status.State, task.Metadata)
		}
		out, _ := d.office.command(context.Background(), "logs", "--limit", "60").CombinedOutput()
		t.Logf("%s: %s", name, out)
	}
}

func (x *twoHubs) survives(t *testing.T, r *reviews, victim, step string) {
	t.Helper()
	before, beforeThere := len(x.hubTasks()), len(x.there.hubTasks())
	r.mu.Lock()
	r.hold = step == read
	r.mu.Unlock()
	var id string
	until(t, "the other hub's session is reachable", x.reachable)
	if victim == "link" && step == given { // else the task may be there already
		x.end(t, victim)
	}
	x.claude.enter(t, askReview, func() bool {
		all := x.hubTasks()
		if len(all) > before {
			id = all[0].ID
		}
		return id != ""
	})
	switch step {
	case read:
		select {
		case <-r.reached:
		case <-time.After(2 * time.Minute):
			t.Fatalf("codex has not read %s", id)
		}
	case answered:
		until(t, "it is answered", func() bool {
			all := x.there.hubTasks()
			return len(all) > beforeThere && all[0].Status.State == dialect.StateCompleted
		})
	}
	if victim != "link" || step != given {
		x.end(t, victim)
	}
	if step == read {
		r.release <- struct{}{}
	}
	switch victim {
	case "codex":
		(&opinions{desktop: x.there, codex: x.codex}).resume(t)
		until(t, "codex has answered", func() bool {
			all := x.there.hubTasks()
			return len(all) > beforeThere && all[0].Status.State == dialect.StateCompleted
		})
		until(t, "the hub here sees the session again", x.reachable)
	case "claude":
		_ = x.command("kill-session", "-t", x.claude.id).Run() // it may be gone
		x.claude.cli = []string{"claude", "--allowedTools", "mcp__parley", "--continue"}
		x.claude.begin(t)
	}
	until(t, "the answer is in the session that asked", func() bool {
		_, answer := r.counts(id)
		return answer > 0 && x.hubTask(id).Status.State == dialect.StateCompleted
	})
	all := x.there.hubTasks()
	if len(all) != beforeThere+1 {
		t.Fatalf("%s killed when the task was %s: the other hub has %d tasks, had %d", victim, step, len(all), beforeThere)
	}
	task, _ := r.counts(all[0].ID)
	_, answer := r.counts(id)
	want := "VERDICT-" + all[0].ID
	until(t, "the answer is on the screen", func() bool { return strings.Contains(x.claude.screen(t), "codexsays:"+want) })
	mostTask, mostAnswer := 1, 1
	switch victim { // the conversation that read it may be gone
	case "codex":
		mostTask = 2
	case "claude":
		mostAnswer = 2
	}
	if task > mostTask || answer > mostAnswer {
		t.Errorf("%s killed when the task was %s: codex has read it %d times, claude the answer %d times", victim, step, task, answer)
	}
	done := x.hubTask(id)
	if got := done.Status.Message.Text(); got != want {
		t.Errorf("the answer is %q, not %q", got, want)
	}
	for _, r := range []hub.Receipts{hub.ReceiptsOf(done.Metadata), hub.ReceiptsOf(all[0].Metadata)} {
		if r.HeldAt+r.RefusedAt != "" {
			t.Errorf("the receipts are %+v", r)
		}
	}
}

// end kills, as kill -9 does, or cuts the link for a while.
func (x *twoHubs) end(t *testing.T, victim string) {
	t.Helper()
	switch victim {
	case "here":
		x.kill(t, "hub")
	case "there":
		(&opinions{desktop: x.there}).kill(t, "hub")
	case "codex":
		x.kill(t, "server")
	case "claude":
		if err := syscall.Kill(x.claudeServer(t), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	case "link":
		for _, l := range x.links {
			l.cut.Store(true)
		}
		before := x.dropped()
		t.Cleanup(func() {
			if x.dropped() == before {
				t.Error("nothing was lost on the link, so that nothing was tried")
			}
		})
		time.AfterFunc(cutTime, func() {
			for _, l := range x.links {
				l.cut.Store(false)
			}
		})
	}
}

// dropped counts the datagrams that the links have lost.
func (x *twoHubs) dropped() (all int64) {
	for _, l := range x.links {
		all += l.dropped.Load()
	}
	return all
}

// claudeServer returns the process of Claude Code's MCP server.
func (x *twoHubs) claudeServer(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || string(line) != x.parley+"\x00mcp\x00" {
			continue
		}
		env, err := os.ReadFile(filepath.Join(filepath.Dir(file), "environ"))
		if err != nil || !strings.Contains(string(env), "CLAUDE_CODE_SESSION_ID=") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			return pid
		}
	}
	t.Fatal("claude has no MCP server")
	return 0
}

// reachable reports whether the hub here lists the session there.
func (x *twoHubs) reachable() (found bool) {
	_ = x.onHub(func(ctx context.Context, c *client.Client) error {
		all, err := c.ListAgents(ctx, dialect.AgentsListParams{})
		for _, a := range all {
			found = found || a.Handle == x.codex.id && a.Address != ""
		}
		return err
	})
	return found
}
