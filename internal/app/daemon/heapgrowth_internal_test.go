package daemon

import (
	"context"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
)

func TestTheHeapGrowsLessWhileCollectionsAreRare(t *testing.T) {
	for _, c := range []struct {
		percent  int
		interval time.Duration
		want     int
	}{
		{100, time.Second, 50}, {50, time.Second, 25}, {25, time.Hour, 25},
		{25, 200 * time.Millisecond, 25}, {100, 200 * time.Millisecond, 100},
		{25, 50 * time.Millisecond, 50}, {50, 0, 100}, {100, time.Millisecond, 100},
	} {
		if got := nextPercent(c.percent, c.interval); got != c.want {
			t.Errorf("%d percent, after %v: %d, want %d", c.percent, c.interval, got, c.want)
		}
	}
}

func TestEachCollectionIsNoticed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	collected := make(chan struct{}, 1)
	watchCollections(ctx, collected)
	for range 3 {
		runtime.GC()
		<-collected
	}
	cancel()
}

func TestTheEnvironmentDecidesOnTheGrowthOfTheHeap(t *testing.T) {
	t.Setenv(percentEnv, "300")
	adaptPercent(t.Context(), time.Now) // returns
}

func TestTheGrowthOfTheHeapIsAdapted(t *testing.T) {
	t.Setenv(percentEnv, "")
	defer debug.SetGCPercent(debug.SetGCPercent(usualPercent))
	ctx, cancel := context.WithCancel(t.Context())
	clock := time.Now()
	slow := func() time.Time {
		clock = clock.Add(time.Hour)
		return clock
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		adaptPercent(ctx, slow)
	}()
	wait.Eventually(t, "the percentage has fallen", func() bool {
		for n := collections(); collections() == n; {
			held = make([]byte, 1<<20)
		}
		return percent() < usualPercent
	})
	cancel()
	<-done
}

// percent returns the growth of the heap between two collections.
func percent() uint64 {
	sample := []runtimemetrics.Sample{{Name: "/gc/gogc:percent"}}
	runtimemetrics.Read(sample)
	return sample[0].Value.Uint64()
}
