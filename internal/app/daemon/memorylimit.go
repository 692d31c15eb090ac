package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"strconv"
	"strings"
	"time"
)

const (
	// usualMemory is the memory to which the garbage collector keeps a hub with little data, in bytes. Without it, the heap
	// would double before each collection, and bursts of large requests would count twice.
	usualMemory = 192 << 20
	// memoryEnv and percentEnv are environment variables of Go's runtime. Whoever sets one decides.
	memoryEnv  = "GOMEMLIMIT"
	percentEnv = "GOGC"
	// startPercent is the growth of the heap between two collections while the hub starts, in percent. Most of what a start
	// allocates stays: each collection would go through it again.
	startPercent = 400
)

// collectRarely lets the garbage collector run rarely up to twice the usual memory. The function that it returns ends that.
func collectRarely() (usually func()) {
	if os.Getenv(memoryEnv) != "" || os.Getenv(percentEnv) != "" {
		return func() {}
	}
	before := debug.SetGCPercent(startPercent)
	debug.SetMemoryLimit(softLimit(usualMemory, usualMemory/2, controlGroupLimit("/")))
	return func() { debug.SetGCPercent(before) }
}

// limitMemoryEvery calls limitMemory at intervals until ctx ends.
func limitMemoryEvery(ctx context.Context, interval time.Duration, log *slog.Logger) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			limitMemory(log)
		}
	}
}

// limitMemory sets the soft limit of this process's memory from what it holds and from the limit of its control group.
func limitMemory(log *slog.Logger) {
	if os.Getenv(memoryEnv) != "" {
		return
	}
	live, beside := memoryInUse()
	limit := softLimit(live, beside, controlGroupLimit("/"))
	if before := debug.SetMemoryLimit(limit); before != limit {
		log.Debug("soft memory limit", "bytes", limit)
	}
}

// softLimit returns the soft limit for a heap with live bytes, and beside it the runtime's other memory, in a control group
// with a limit, 0 for none. It leaves room to the live heap, since the collector would otherwise run without a pause, unless
// the system's limit leaves none.
func softLimit(live, beside, group int64) int64 {
	limit := max(usualMemory, live+live/2+beside)
	if group > 0 {
		limit = min(limit, group/10*9) // the rest is for the program's file and what is not Go's
	}
	return limit
}

// memoryInUse returns the bytes that the last garbage collection found in use on the heap, and those beside the heap that a
// soft limit counts too and no collection frees: stacks and the runtime's own.
func memoryInUse() (live, beside int64) {
	samples := []runtimemetrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	runtimemetrics.Read(samples)
	bytes := func(i int) int64 { return int64(min(samples[i].Value.Uint64(), math.MaxInt64/8)) }
	return bytes(0), max(0, bytes(1)-bytes(2)-bytes(3)-bytes(4)-bytes(5))
}

// controlGroupLimit returns the smallest memory limit of this process's control group and those above it, 0 for none.
// It knows both versions of Linux's control groups; elsewhere there are none. root is the root directory.
func controlGroupLimit(root string) int64 {
	groups, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0
	}
	least := int64(math.MaxInt64)
	for line := range strings.Lines(string(groups)) {
		controllers, group, ok := strings.Cut(strings.TrimSpace(line), "::") // version 2
		mount, file := "sys/fs/cgroup", "memory.max"
		if !ok {
			fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(fields) != 3 || fields[1] != "memory" {
				continue
			}
			mount, file, group = "sys/fs/cgroup/memory", "memory.limit_in_bytes", fields[2]
		} else if controllers != "0" {
			continue
		}
		// In a container the path may be the host's; then the mount itself is the process's group.
		for dir := path.Clean("/" + group); ; dir = path.Dir(dir) {
			least = min(least, readLimit(filepath.Join(root, mount, dir, file)))
			if dir == "/" {
				break
			}
		}
	}
	if least >= math.MaxInt64/2 { // version 1 has no word for no limit
		return 0
	}
	return least
}

// readLimit reads a limit; a missing or unlimited one is math.MaxInt64.
func readLimit(name string) int64 {
	data, err := os.ReadFile(name)
	if err != nil {
		return math.MaxInt64
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return math.MaxInt64
	}
	return cmp.Or(max(limit, 0), math.MaxInt64)
}
