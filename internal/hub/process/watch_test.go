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

// after waits for d of the bubble's time and reports why ctx has ended, nil if it
// has not.
func after(d time.Duration, ctx context.Context) error {
	time.Sleep(d) // of the bubble's clock: costs nothing
	synctest.Wait()
	return context.Cause(ctx)
}

func TestTheRunLimitEndsWhateverHappens(t *testing.T) {
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

func TestTheIdleLimitCountsFromTheLastSignOfLife(t *testing.T) {
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
		_, _ = r.Read(make([]byte, 1)) // the end is no sign of life
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
		w.Pause() // two questions at once
		if err := after(time.Hour, ctx); err != nil {
			t.Fatal(err)
		}
		w.Resume()
		if err := after(time.Hour, ctx); err != nil {
			t.Fatal(err)
		}
		w.Resume()
		w.Resume() // one too many does nothing
		if err := after(9*time.Second, ctx); err != nil {
			t.Fatal("the idle time did not begin anew: ", err)
		}
		w.Touch()
		for range 4 {
			if err := after(9*time.Second, ctx); err != nil {
				t.Fatal(err)
			}
			w.Touch()
		}
		// 8 + 9 + 36 seconds have run, 7 are left.
		if err := after(6*time.Second, ctx); err != nil {
			t.Fatal(err)
		}
		if err := after(2*time.Second, ctx); !errors.Is(err, process.ErrRunTime) {
			t.Errorf("got %v", err)
		}
	})
}

func TestAStoppedWatchStaysQuiet(t *testing.T) {
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

func TestTheParentEndsAWatch(t *testing.T) {
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
