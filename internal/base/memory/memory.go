// Package memory keeps a process that lives for days from holding what it needs for
// moments: a user has one hub and an MCP process for each agent.
package memory

import (
	"context"
	"log/slog"
	"runtime"
	"runtime/metrics"
	"time"
)

// quiet is how much may have been allocated since the memory was given back for it not
// to be worth doing again.
const quiet = 1 << 20

// shrinks is how often the garbage is collected before memory is given back.
const shrinks = 2

// Keep gives memory back every time, until ctx ends, unless busy says that there is
// something to do, or next to nothing was allocated since.
func Keep(ctx context.Context, every time.Duration, busy func() bool, log *slog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := uint64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := allocated(); now-last < quiet || busy() {
			continue
		}
		// A collection halves a stack that is mostly unused. The NATS server has one of
		// 32 KiB for each connection that it has sent something to.
		for range shrinks {
			runtime.GC()
		}
		if err := GiveBack(); err != nil {
			log.Debug("memory was not given back", "error", err)
		}
		last = allocated()
	}
}

// allocated is how many bytes this process has allocated in its life.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
