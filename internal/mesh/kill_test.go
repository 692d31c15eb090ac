package mesh_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/mesh"
)

// With this variable set the test binary is a worker's process. Its value is the
// server's URL, the state directory and the host's name.
const beWorker = "PARLEY_MESH_TEST_WORKER"

var killItems = flag.Int("kill-items", 200, "items of work in the test that kills processes; 10000 for a soak")

// workForEver claims and completes items, and says which, until it is killed.
func workForEver(args string) int {
	part := strings.SplitN(args, ",", 3)
	ctx := context.Background()
	log := slog.New(slog.DiscardHandler)
	n := mesh.Open(mesh.Config{
		Hostname: part[2], Username: "ann", ProjectPath: "/home/ann/shop", ProjectID: "0123456789abcdef", StateDir: part[1],
		AckTimeout: time.Second, MaxAttempts: 20, Logger: log,
		Dial: func(ctx context.Context) (*bus.Bus, error) {
			return bus.Open(ctx, bus.Config{URL: bus.Secret(part[0]), Logger: log})
		},
	})
	var a *mesh.Agent
	for a == nil {
		if err := n.Ready(ctx); err != nil {
			return 1
		}
		var err error
		if a, err = n.Register(ctx, worker("go")); err != nil && category(err) != mesh.ConnectionError && category(err) != mesh.RateLimitError {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	fmt.Println("guid", a.GUID())
	for {
		turn, cancel := context.WithTimeout(ctx, time.Second)
		claim, err := a.Claim(turn, nil)
		cancel()
		if err != nil || claim == nil {
			continue
		}
		<-time.After(time.Duration(rand.IntN(100)) * time.Millisecond) // the work
		if a.Complete(ctx, claim.TaskID, claim.Token, mesh.Outcome{Success: true, Summary: "ok"}) == nil {
			fmt.Println("done", claim.TaskID)
		}
	}
}

// workerProcess is a process of workForEver's.
type workerProcess struct {
	cmd  *exec.Cmd
	read sync.WaitGroup
}

func startWorker(t *testing.T, args string, said func(string)) *workerProcess {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &workerProcess{cmd: exec.Command(exe)}
	w.cmd.Env = append(os.Environ(), beWorker+"="+args)
	w.cmd.Stderr = os.Stderr
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.read.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said(lines.Text())
		}
	})
	return w
}

// kill is SIGKILL, at whatever the process is doing.
func (w *workerProcess) kill() {
	if w.cmd.ProcessState != nil {
		return
	}
	_ = w.cmd.Process.Kill() // it may be gone
	w.read.Wait()
	_ = w.cmd.Wait() // killed
}

// Workers' processes are killed at random moments, and the server is stopped and
// started: each item is completed once or in the dead letters, none is missing,
// and what was said to be completed is.
func TestKilledProcessesLoseNoWork(t *testing.T) {
	const workers = 3
	n := startServer(t)
	cfg := n.host("host-boss", "ann", "shop")
	cfg.AckTimeout, cfg.MaxAttempts = time.Second, 20
	boss := register(t, open(t, cfg), dispatcher())
	for i := range *killItems {
		submit(t, boss, fmt.Sprint("T", i), "go")
	}
	var mu sync.Mutex
	done, identities := map[string]int{}, map[string]map[string]bool{}
	start := func(i int) *workerProcess {
		host := fmt.Sprint("host-", i)
		return startWorker(t, strings.Join([]string{n.url(), filepath.Join(t.TempDir(), "..", host), host}, ","), func(line string) {
			mu.Lock()
			defer mu.Unlock()
			word, rest, _ := strings.Cut(line, " ")
			switch word {
			case "done":
				done[rest]++
			case "guid":
				if identities[host] == nil {
					identities[host] = map[string]bool{}
				}
				identities[host][rest] = true
			}
		})
	}
	var processes [workers]*workerProcess
	for i := range processes {
		processes[i] = start(i)
	}
	defer func() {
		for _, w := range processes {
			w.kill()
		}
	}()
	states := map[mesh.ItemState]int{}
	left := *killItems
	next := 0
	for round := 0; left > 0; round++ {
		select {
		case <-time.After(time.Duration(100+rand.IntN(500)) * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("it does not end")
		}
		if round < 12 {
			i := rand.IntN(workers)
			processes[i].kill()
			processes[i] = start(i)
		}
		if round == 4 {
			n.stop()
			n.start()
		}
		for ; next < *killItems; next++ {
			s, err := boss.Item(t.Context(), fmt.Sprint("T", next), false)
			if err != nil || (s.State != mesh.Completed && s.State != mesh.Dead) {
				break
			}
			states[s.State]++
			left--
		}
	}
	for _, w := range processes {
		w.kill()
	}
	mu.Lock()
	defer mu.Unlock()
	for id, times := range done {
		if s := state(t, boss, id); s.State != mesh.Completed || times != 1 {
			t.Errorf("%s was completed %d times and is %s", id, times, s.State)
		}
	}
	if dead := len(deadLetters(t, boss, "")); dead != states[mesh.Dead] {
		t.Errorf("%d items are dead, %d in the dead letters", states[mesh.Dead], dead)
	}
	for host, guids := range identities {
		if len(guids) != 1 {
			t.Errorf("%s had %d identities: a killed process's must be free at once", host, len(guids))
		}
	}
	t.Logf("%v; %d were said to be completed", states, len(done))
}
