//go:build unix

package daemon_test

import (
	"flag"
	"math/rand/v2"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/app/daemon"
)

var (
	startKills  = flag.Int("start-kills", 30, "how often the hub is killed in its start")
	startWithin = flag.Duration("start-kills-for", 8*time.Second, "how long at most")
	startSeed   = flag.Uint64("start-seed", 0, "seed of the moments of the kills; 0 takes a new one")
)

// A hub that is killed at any moment of its start is up again with the next start, without any repair.
func TestAHubThatIsKilledInItsStartStartsAgain(t *testing.T) {
	t.Parallel()
	seed := *startSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	moments := rand.New(rand.NewPCG(seed, seed))
	dir := newDir(t)
	var took []time.Duration
	up := func() daemon.Info {
		t.Helper()
		begin := time.Now()
		info, err := start(t, "serve", dir)
		if err != nil {
			t.Fatalf("seed %d, start %d: %v", seed, len(took), err)
		}
		took = append(took, time.Since(begin))
		return info
	}
	kill := func(pid int) {
		t.Helper()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	kill(up().PID)
	for begin := time.Now(); len(took) <= *startKills && time.Since(begin) < *startWithin; {
		command := hubCommand(t, "serve", dir)
		hub := exec.Command(command[0], command[1:]...)
		if err := hub.Start(); err != nil {
			t.Fatal(err)
		}
		killed := time.NewTimer(time.Duration(moments.Int64N(int64(took[0]) * 5 / 4)))
		<-killed.C
		kill(hub.Process.Pid)
		_ = hub.Wait() // it was killed
		kill(up().PID)
	}
	if _, _, err := daemon.Stop(t.Context(), dir, shutdown(up().Socket)); err != nil {
		t.Error(err)
	}
	slices.Sort(took)
	t.Logf("seed %d: %d starts after kills, p50 %v, p99 %v, longest %v", seed, len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
}
