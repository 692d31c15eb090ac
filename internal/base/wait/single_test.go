package wait_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parleyhub/parley/internal/base/wait"
)

func TestSingleRunsOnceMoreForRequestsMeanwhile(t *testing.T) {
	var s wait.Single
	if !s.Begin() {
		t.Fatal("the job is not begun")
	}
	for range 2 {
		if s.Begin() {
			t.Error("another goroutine begins the job")
		}
	}
	for _, once := range []bool{true, false} {
		if s.Again() != once {
			t.Error("the job does not run exactly once more")
		}
	}
	if !s.Begin() {
		t.Error("the job is not begun again")
	}
}

func TestSingleLosesNoRequest(t *testing.T) {
	var s wait.Single
	var wanted, seen, running atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				wanted.Add(1)
				if !s.Begin() {
					continue
				}
				all.Go(func() {
					for again := true; again; again = s.Again() {
						if running.Add(1) != 1 {
							t.Error("two goroutines do the job")
						}
						seen.Store(wanted.Load())
						running.Add(-1)
					}
				})
			}
		})
	}
	all.Wait()
	if seen.Load() != wanted.Load() {
		t.Errorf("the last run saw %d of %d requests", seen.Load(), wanted.Load())
	}
}
