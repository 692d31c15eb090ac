//go:build unix

package cli_test

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/wait"
)

var (
	programKills = flag.Int("program-kills", 3, "kills of hub, connected program and its link while tasks are given and answered; `make soak` has 150")
	programSeed  = flag.Uint64("program-seed", 0, "repeats the moments of a run; 0 is a random one")
)

// link is a TCP link to a machine's hub, whatever its port is now, which can be cut.
type link struct {
	net.Listener
	to *machine

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	all   sync.WaitGroup
}

func newLink(d *machine) *link {
	d.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.t.Fatal(err)
	}
	k := &link{Listener: l, to: d, conns: map[net.Conn]struct{}{}}
	k.all.Go(k.accept)
	d.t.Cleanup(func() {
		l.Close() //nolint:errcheck // the test ends
		k.cut()
		k.all.Wait()
	})
	return k
}

func (l *link) accept() {
	for {
		near, err := l.Accept()
		if err != nil {
			return
		}
		info, running, err := daemon.Running(filepath.Join(l.to.root, "data"))
		if err != nil || !running {
			near.Close() //nolint:errcheck // there is no hub
			continue
		}
		far, err := net.Dial("tcp", strings.TrimPrefix(info.HTTP, "http://"))
		if err != nil {
			near.Close() //nolint:errcheck // there is no hub
			continue
		}
		l.mu.Lock()
		l.conns[near], l.conns[far] = struct{}{}, struct{}{}
		l.mu.Unlock()
		for from, to := range map[net.Conn]net.Conn{near: far, far: near} {
			l.all.Go(func() {
				io.Copy(to, from) //nolint:errcheck // the link was cut, or an end has ended
				l.drop(near, far)
			})
		}
	}
}

func (l *link) drop(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		c.Close() //nolint:errcheck // it may be closed already
		delete(l.conns, c)
	}
}

// cut closes all connections.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close() //nolint:errcheck // it may be closed already
	}
	clear(l.conns)
}

// connectedProgram is a Go program whose agent does tasks.
type connectedProgram struct {
	*machine
	link  *link
	notes string
	env   []string

	cmd *exec.Cmd
	in  io.Closer
}

func (d *machine) connectProgram(env ...string) *connectedProgram {
	d.t.Helper()
	p := &connectedProgram{machine: d, link: newLink(d), notes: filepath.Join(d.root, "notes"), env: env}
	p.run()
	d.t.Cleanup(p.kill)
	return p
}

// run starts the program.
func (p *connectedProgram) run() {
	p.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append([]string{beAgent + "=tasks", programHub + "=http://" + p.link.Addr().String(), programNotes + "=" + p.notes, "PATH=" + os.Getenv("PATH"),
		"GOCOVERDIR=" + p.t.TempDir(), "GORACE=atexit_sleep_ms=0"}, p.env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd, p.in = cmd, in
}

func (p *connectedProgram) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	_ = p.cmd.Wait() // it was killed
	_ = p.in.Close()
	p.cmd = nil
}

// begun returns how often the program has begun a turn of a task.
func (p *connectedProgram) begun(id string, turn int) int {
	p.t.Helper()
	notes, err := os.ReadFile(p.notes)
	if err != nil && !os.IsNotExist(err) {
		p.t.Fatal(err)
	}
	return strings.Count(string(notes), fmt.Sprintf("%s %d ", id, turn))
}

// killedProgram is a connected program whose tasks are given and answered while processes and links are killed.
type killedProgram struct {
	*connectedProgram
	random *rand.Rand
	ranks  map[string]int // the furthest state in which each task was seen
	asked  map[string]bool
}

// look returns a task, which must not be in an earlier state than before, nor in one that is not so.
func (k *killedProgram) look(id string) dialect.Task {
	k.t.Helper()
	task := k.task(id)
	turn := 1
	if k.asked[id] {
		turn = 2
	}
	rank := map[dialect.TaskState]int{dialect.StateSubmitted: 1, dialect.StateWorking: 2, dialect.StateInputRequired: 3, dialect.StateCompleted: 9}[task.Status.State]
	if turn == 2 && rank < 3 {
		rank += 3
	}
	if rank == 0 || rank < k.ranks[id] {
		k.t.Fatalf("task %s is %s after state %d", id, task.Status.State, k.ranks[id])
	}
	k.ranks[id] = rank
	if task.Status.State == dialect.StateWorking && k.begun(id, turn) == 0 {
		k.t.Fatalf("task %s is %s, and the program has not begun its turn %d", id, task.Status.State, turn)
	}
	return task
}

// soon kills at a random moment. The caller waits for done.
func (k *killedProgram) soon(what string) (done chan struct{}) {
	done = make(chan struct{})
	delay := time.Duration(k.random.Int64N(int64(3 * maxKillDelay)))
	go func() {
		defer close(done)
		time.Sleep(delay)
		switch what {
		case "hub":
			k.killHub()
			k.parley("start") // unless a command has started it: a connected program does not
		case "link":
			k.link.cut()
		case "program":
			k.kill()
			k.run()
		}
	}()
	return done
}

// Whatever is killed at whatever moment, the hub, the program or its link: every task of a connected program that was stored is
// answered, once, its state never goes back, and it is shown as working only if the program has begun it.
func TestKilledHubsAndProgramsLoseNoTask(t *testing.T) {
	t.Parallel()
	seed := *programSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat it with: -program-seed %d", seed)
	d := newMachine(t)
	d.parley("start")
	k := &killedProgram{connectedProgram: d.connectProgram(), random: rand.New(rand.NewPCG(seed, 0)), ranks: map[string]int{}, asked: map[string]bool{}}
	k.awaitAgent("counter", "idle")
	counts := map[string]int{}
	repeated := 0
	for n := range *programKills {
		what := []string{"hub", "link", "program"}[k.random.IntN(3)]
		when := []string{"send", "work", "answer", "second turn"}[k.random.IntN(4)]
		counts[what+" at "+when]++
		during := func(name string, do func()) {
			if when != name {
				do()
				return
			}
			done := k.soon(what)
			do()
			<-done
		}
		text := fmt.Sprintf("ask %d", n)
		if when != "second turn" && k.random.IntN(2) == 0 {
			text = fmt.Sprintf("count %d", n)
		}
		var id string
		during("send", func() { id = k.ask("counter", text) })
		during("work", func() { k.look(id) })
		during("answer", func() { k.look(id) })
		want, messages := "answer to "+text, 2
		if strings.HasPrefix(text, "ask") {
			wait.Eventually(t, "the program asks", func() bool { return k.look(id).Status.State == dialect.StateInputRequired })
			during("second turn", func() {
				wait.Eventually(t, "the question is answered", func() bool {
					d.parley("send", "--scratch", "--detach", "--task", id, "these of "+text)
					return len(d.task(id).History) >= 3
				})
			})
			k.asked[id] = true
			want, messages = "answer to these of "+text, 4
		}
		wait.Eventually(t, "the task is completed", func() bool { return k.look(id).Status.State == dialect.StateCompleted })
		task := k.look(id)
		if said := task.Status.Message.Text(); len(task.History) != messages || said != want {
			t.Fatalf("the task has %d messages and the answer %q, not %d and %q", len(task.History), said, messages, want)
		}
		begun := k.begun(id, 1) + k.begun(id, 2)
		if what != "program" && begun != messages/2 {
			t.Fatalf("nobody has killed the program, and it has begun %d turns of task %s, which has %d", begun, id, messages/2)
		}
		repeated += begun - messages/2
	}
	t.Logf("kills: %v; turns that a killed program has begun again: %d", counts, repeated)
}
