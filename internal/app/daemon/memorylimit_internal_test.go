package daemon

import (
	"context"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheSoftMemoryLimitFollowsTheHeapAndTheControlGroup(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct{ live, beside, group, want int64 }{
		{0, 0, 0, 192 * mib},
		{100 * mib, 20 * mib, 0, 192 * mib},
		{400 * mib, 0, 0, 600 * mib},        // room to collect
		{100 * mib, 90 * mib, 0, 240 * mib}, // stacks take nothing of it
		{400 * mib, 90 * mib, 0, 690 * mib},
		{400 * mib, 90 * mib, 500 * mib, 450 * mib},
		{10 * mib, 0, 100 * mib, 90 * mib},
		{10 * mib, 0, 8 << 30, 192 * mib},
	} {
		if got := softLimit(c.live, c.beside, c.group); got-c.want > 10 || c.want-got > 10 {
			t.Errorf("%d live, %d beside, of %d: %d, want %d", c.live, c.beside, c.group, got, c.want)
		}
	}
	if live, beside := memoryInUse(); live < 0 || beside <= 0 || beside > 1024*mib {
		t.Errorf("%d live, %d beside", live, beside)
	}
}

func TestLimitsOfControlGroupsAreRead(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none": {},
		"version 2": {map[string]string{
			"proc/self/cgroup": "0::/user.slice/hub.service\n", "sys/fs/cgroup/user.slice/hub.service/memory.max": "500\n", "sys/fs/cgroup/user.slice/memory.max": "max\n",
		}, 500},
		"a group above": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "500", "sys/fs/cgroup/a/memory.max": "400",
		}, 400},
		"in a container": {map[string]string{"proc/self/cgroup": "0::/docker/1234\n", "sys/fs/cgroup/memory.max": "300\n"}, 300},
		"unlimited":      {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		"version 1": {map[string]string{
			"proc/self/cgroup": "11:cpu,cpuacct:/x\n4:memory:/x\nrubbish\n1:name=systemd:/x\n0::/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "700\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 700},
		"version 1, unlimited": {map[string]string{
			"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range c.files {
				path := filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := controlGroupLimit(root); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}

func TestTheEnvironmentDecidesOnTheMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	t.Setenv(memoryEnv, "100GiB")
	limitMemory(slog.New(slog.DiscardHandler))
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Error(got)
	}
	t.Setenv(memoryEnv, "")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			limitMemoryEvery(ctx, time.Minute, slog.New(slog.DiscardHandler))
		}()
		time.Sleep(2 * time.Minute)
		cancel()
		<-done
	})
	if got := debug.SetMemoryLimit(-1); got == math.MaxInt64 || got <= 0 {
		t.Error(got)
	}
}
