package clock_test

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/base/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// UnixMilli is between the wall clock before the call and after it, give or take the
// millisecond that truncation may cost.
func TestUnixMilliIsTheWallClock(t *testing.T) {
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50_000 {
				before := time.Now().UnixMilli()
				got := clock.UnixMilli()
				if after := time.Now().UnixMilli(); got < before-1 || got > after+1 {
					t.Errorf("%d is not between %d and %d", got, before, after)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestUnixMilliFollowsTheClockOfASynctestBubble(t *testing.T) {
	outside := clock.UnixMilli()
	synctest.Test(t, func(t *testing.T) {
		for range 100 {
			began := clock.Nano()
			if got, want := clock.UnixMilli(), time.Now().UnixMilli(); got != want {
				t.Fatalf("UnixMilli is %d, want %d", got, want)
			}
			time.Sleep(3 * time.Millisecond)
			if d := clock.Nano() - began; d != 3_000_000 {
				t.Fatalf("Nano advanced by %d ns in 3 ms", d)
			}
		}
	})
	if got := clock.UnixMilli(); got < outside-1 {
		t.Errorf("outside the bubble it is %d after %d", got, outside)
	}
}

func BenchmarkUnixMilli(b *testing.B) {
	for b.Loop() {
		clock.UnixMilli()
	}
}

func BenchmarkTimeNow(b *testing.B) {
	for b.Loop() {
		time.Now().UnixMilli()
	}
}

// A Watch notices each time that the clock was set, by a second or more.
func TestAWatchNoticesThatTheClockWasSet(t *testing.T) {
	now, set := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Hour
	w := clock.NewWatch(func() time.Time { return now.Add(set) }, func() time.Duration { return set })
	for _, step := range []struct {
		by      time.Duration
		noticed bool
	}{{0, false}, {900 * time.Millisecond, false}, {100 * time.Millisecond, true}, {-2 * time.Hour, true}} {
		before := w.Changed()
		set += step.by
		if at := w.Changed(); at.Equal(before) == step.noticed || step.noticed && !at.Equal(now.Add(set)) {
			t.Errorf("set by %v: %v, before %v", step.by, at, before)
		}
	}
}

// The process's own clock is not set while nobody does.
func TestNobodySetsTheClock(t *testing.T) {
	if off := clock.Set().Abs(); off > time.Minute {
		t.Errorf("%v", off)
	}
	if at := clock.NewWatch(time.Now, nil).Changed(); !at.IsZero() {
		t.Errorf("%v", at)
	}
}

// Where the run of the system is known, it stays the same and becomes older.
func TestARunOfTheSystemGoesOn(t *testing.T) {
	id, length, ok := clock.Boot()
	if ok != (runtime.GOOS == "linux") || ok && (id == "" || length <= 0) {
		t.Fatalf("%q, %v, %v", id, length, ok)
	}
	if again, later, _ := clock.Boot(); again != id || later < length {
		t.Errorf("the run is %q, %v, and was %q, %v", again, later, id, length)
	}
}
