package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// filePages returns how many KiB of mapped files this process has in memory.
func filePages(t *testing.T) (kib int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// touch reads all of the program's mappings.
func touch(t *testing.T) {
	t.Helper()
	all, err := programMappings()
	if err != nil || len(all) == 0 {
		t.Fatalf("%d mappings, %v", len(all), err)
	}
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	for _, m := range all {
		if _, err := memory.ReadAt(make([]byte, m.end-m.start), int64(m.start)); err != nil {
			t.Fatal(err)
		}
	}
}

// The pages of the program's file are released while nobody uses the hub, and stay while it works or somebody uses it.
func TestTheProgramIsReleasedWhileNobodyUsesTheHub(t *testing.T) {
	for name, c := range map[string]struct {
		working, used, released bool
	}{"unused": {released: true}, "with a task": {working: true}, "in use": {used: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var busy atomic.Bool
				busy.Store(true) // until all is prepared
				done := make(chan struct{})
				touch(t)
				before := filePages(t)
				go func() {
					defer close(done)
					releaseProgramEvery(ctx, time.Second, busy.Load, slog.New(slog.DiscardHandler))
				}()
				synctest.Wait()
				busy.Store(c.working)
				if c.used {
					held = make([]byte, 4<<20)
				}
				time.Sleep(time.Second + time.Millisecond) // of the bubble
				synctest.Wait()
				if after := filePages(t); (after < before/2) != c.released {
					t.Errorf("%d KiB of files are in memory, before it were %d", after, before)
				}
				cancel()
				<-done
			})
		})
	}
}
