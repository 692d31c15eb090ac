package daemon

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
)

// The growth of the heap between two collections of garbage, in percent. Objects that stay are strewn among as much garbage as is made
// between two collections, and what that leaves free of their spans stays in memory. So the least growth is used while collections are rare.
const (
	usualPercent = 100
	leastPercent = 25
)

// Times between two collections that the program did not force.
const (
	busyInterval = 100 * time.Millisecond // below, the growth is doubled
	calmInterval = 300 * time.Millisecond // above, it is halved
)

// nextPercent returns the growth until the next collection, after one that came an interval after the one before.
func nextPercent(percent int, interval time.Duration) int {
	switch {
	case interval < busyInterval:
		return min(usualPercent, percent*2)
	case interval > calmInterval:
		return max(leastPercent, percent/2)
	}
	return percent
}

// adaptPercent sets the growth after each collection until ctx ends, unless the environment decides. clock is time.Now.
func adaptPercent(ctx context.Context, clock func() time.Time) {
	if os.Getenv(percentEnv) != "" {
		return
	}
	collected := make(chan struct{}, 1)
	watchCollections(ctx, collected)
	percent, count, last := usualPercent, collections(), clock()
	for {
		select {
		case <-ctx.Done():
			return
		case <-collected:
		}
		now := collections()
		if now == count {
			continue // it was forced
		}
		at := clock()
		next := nextPercent(percent, at.Sub(last)/time.Duration(now-count))
		count, last = now, at
		if next != percent {
			debug.SetGCPercent(next)
			percent = next
		}
	}
}

// collections returns how often the garbage was collected without being forced.
func collections() uint64 {
	sample := []runtimemetrics.Sample{{Name: "/gc/cycles/automatic:gc-cycles"}}
	runtimemetrics.Read(sample)
	return sample[0].Value.Uint64()
}

// watchCollections sends to collected after each collection of garbage until ctx ends, unless the receiver has not received the last one.
func watchCollections(ctx context.Context, collected chan<- struct{}) {
	if ctx.Err() != nil {
		return
	}
	runtime.AddCleanup(new([4]uint64), func(struct{}) { // of an object that is garbage at once
		select {
		case collected <- struct{}{}:
		default:
		}
		watchCollections(ctx, collected)
	}, struct{}{})
}
