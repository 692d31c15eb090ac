package daemon

import (
	"context"
	"log/slog"
	"runtime"
	runtimemetrics "runtime/metrics"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
)

// leastAllocated is how many bytes must have been allocated since the last release
// of memory for another to be worth it.
const leastAllocated = 1 << 20

// unusedAllocates is how many bytes are allocated at most between two releases of the program's pages while nobody uses the hub.
const unusedAllocates = 1 << 20

// collectionsBefore is how often the garbage is collected before memory is released.
const collectionsBefore = 2

// releaseMemoryEvery calls ReleaseMemory at intervals until ctx ends, unless busy reports work, or next to nothing
// was allocated since. A hub lives for days, and would otherwise hold what it needs for moments.
func releaseMemoryEvery(ctx context.Context, interval time.Duration, busy func() bool, log *slog.Logger) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for last := uint64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := allocated(); now-last < leastAllocated || busy() {
			continue
		}
		// A collection halves a stack that is mostly unused. The NATS server has one of
		// 32 KiB for each connection that it has sent something to.
		for range collectionsBefore {
			runtime.GC()
		}
		if err := ReleaseMemory(); err != nil {
			log.Debug("memory was not released", "error", err)
		}
		last = allocated()
	}
}

// releaseProgramEvery calls releaseProgram at intervals until ctx ends, unless busy reports work, or so much was allocated since that
// somebody uses the hub and needs the pages again at once. What a timer touches comes back sixteen pages at a time.
func releaseProgramEvery(ctx context.Context, interval time.Duration, busy func() bool, log *slog.Logger) {
	for last := allocated(); wait.Pause(ctx, interval); {
		now := allocated()
		if now-last <= unusedAllocates && !busy() {
			if err := releaseProgram(); err != nil {
				log.Debug("the program's pages were not released", "error", err)
			}
		}
		last = now
	}
}

// allocated returns how many bytes this process has allocated in its life.
func allocated() uint64 {
	sample := []runtimemetrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	runtimemetrics.Read(sample)
	return sample[0].Value.Uint64()
}
