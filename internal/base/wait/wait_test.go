package wait_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
)

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if !wait.Pause(t.Context(), time.Hour) || time.Since(start) != time.Hour {
			t.Errorf("the pause took %v", time.Since(start))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if wait.Pause(ctx, time.Hour) || wait.Pause(ctx, 0) || time.Since(start) != time.Hour {
			t.Error("the pause did not end with its context")
		}
	})
}

func TestBackoffDoublesUpToItsLimit(t *testing.T) {
	b := wait.Backoff{First: time.Second, Most: 5 * time.Second}
	for range 2 {
		var got []time.Duration
		for range 5 {
			got = append(got, b.Next().Round(time.Second)/time.Second)
		}
		if want := []time.Duration{1, 2, 4, 5, 5}; !slices.Equal(got, want) {
			t.Errorf("pauses of %v s, want %v", got, want)
		}
		b.Reset()
	}
}

// REQ-REL-002
func TestBackoffVaries(t *testing.T) {
	b := wait.Backoff{Most: time.Minute}
	for attempt := range 200 {
		d := b.Next()
		if d <= 0 || d > b.Most {
			t.Fatalf("attempt %d waits %v", attempt, d)
		}
		if attempt > 12 && d < b.Most*8/10 {
			t.Errorf("attempt %d waits only %v", attempt, d)
		}
	}
}

type fatal struct{ failed bool }

func (f *fatal) Helper()               {}
func (f *fatal) Fatalf(string, ...any) { f.failed = true; panic(f) }

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		wait.Eventually(t, "three tries", func() bool { tries++; return tries == 3 })
		f := &fatal{}
		defer func() {
			if recover() != f || !f.failed {
				t.Error("Eventually did not give up")
			}
		}()
		wait.Eventually(f, "never", func() bool { return false })
	})
}
