package process_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/internal/hub/process"
)

// after waits for d on the bubble's clock and returns the cause of the end of ctx, nil
// if it has not ended.
func after(d time.Duration, ctx context.Context) error {
	time.Sleep(d) // on the bubble's clock: takes no time
	synctest.Wait()
	return context.Cause(ctx)
}

func TestTheRunLimitIgnoresActivity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, w := process.NewWatch(t.Context(), time.Minute, 10*time.Second)
		defer w.Stop()
		for range 11 {
			if err := after(5*time.Second, ctx); err != nil {
				t.Fatal(err)
			}
			w.Touch()
		}
		if err := after(5*time.Second, ctx); !errors.Is(err, process.ErrRunTime) {
			t.Errorf("got %v", err)
		}
	})
}

func TestTheIdleLimitCountsFromTheLastActivity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, w := process.NewWatch(t.Context(), 0, 10*time.Second)
		defer w.Stop()
		r := w.Reader(strings.NewReader("x"))
		if err := after(9*time.Second, ctx); err != nil {
			t.Fatal(err)
		}
		_, _ = r.Read(make([]byte, 1))
		if err := after(9*time.Second, ctx); err != nil {
			t.Fatal(err)
		}
		_, _ = r.Read(make([]byte, 1)) // EOF is no activity
		if err := after(2*time.Second, ctx); !errors.Is(err, process.ErrIdle) {
			t.Errorf("got %v", err)
		}
	})
}

func TestNeitherLimitRunsDuringAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, w := process.NewWatch(t.Context(), time.Minute, 10*time.Second)
		defer w.Stop()
		if err := after(8*time.Second, ctx); err != nil {
			t.Fatal(err)
		}
		w.Pause()
		w.Pause() // pauses nest
		if err := after(time.Hour, ctx); err != nil {
			t.Fatal(err)
		}
		w.Resume()
		if err := after(time.Hour, ctx); err != nil {
			t.Fatal(err)
		}
		w.Resume()
		w.Resume() // a surplus Resume has no effect
		if err := after(9*time.Second, ctx); err != nil {
			t.Fatal("the idle time did not restart: ", err)
		}
		w.Touch()
		for range 4 {
			if err := after(9*time.Second, ctx); err != nil {
				t.Fatal(err)
			}
			w.Touch()
		}
		// 8 + 9 + 36 seconds have passed, 7 are left.
		if err := after(6*time.Second, ctx); err != nil {
			t.Fatal(err)
		}
		if err := after(2*time.Second, ctx); !errors.Is(err, process.ErrRunTime) {
			t.Errorf("got %v", err)
		}
	})
}

func TestAStoppedWatchDoesNotFire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, w := process.NewWatch(t.Context(), time.Minute, time.Second)
		w.Pause()
		w.Stop()
		w.Resume()
		if err := after(time.Hour, ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestCancellingTheParentEndsAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancel(t.Context())
		ctx, w := process.NewWatch(parent, 0, 0)
		defer w.Stop()
		if err := after(time.Hour, ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := after(0, ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestARowOfRetriesIsLimited(t *testing.T) {
	for name, tc := range map[string]struct {
		events string // r: a retry, p: progress, a minute each
		want   error
	}{
		"few":              {"rrr", nil},
		"too many":         {"rrrr", process.ErrRetries},
		"progress between": {"rrrprrr", nil},
		"too long":         {"r----", process.ErrRetryTime},
		"progress in time": {"r--p----", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, w := process.NewWatch(t.Context(), 0, 0)
				defer w.Stop()
				w.LimitRetries(3, 4*time.Minute+time.Second)
				for _, e := range tc.events {
					switch e {
					case 'r':
						w.Retry()
					case 'p':
						w.Progress()
					}
					_ = after(time.Minute, ctx) // checked at the end
				}
				if err := after(0, ctx); !errors.Is(err, tc.want) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}
