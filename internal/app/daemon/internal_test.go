package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/store"
)

var held []byte

// forcedCollections returns the number of garbage collections that the program forced.
func forcedCollections() uint32 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.NumForcedGC
}

func TestMemoryIsReleasedWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var log bytes.Buffer
		var busy atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			releaseMemoryEvery(ctx, time.Minute, busy.Load, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		}()
		minute := func() uint32 {
			before := forcedCollections()
			time.Sleep(time.Minute) // in synctest's time
			synctest.Wait()
			return forcedCollections() - before
		}
		work := func() { held = make([]byte, 4<<20) }
		work()
		if minute() == 0 {
			t.Error("memory was not released")
		}
		if n := minute(); n != 0 {
			t.Errorf("memory was released %d times without work since", n)
		}
		busy.Store(true)
		work()
		if n := minute(); n != 0 {
			t.Error("memory was released during the work")
		}
		busy.Store(false)
		if minute() == 0 {
			t.Error("memory was not released after the work")
		}
		cancel()
		<-done
		if log.Len() > 0 {
			t.Error(log.String())
		}
	})
}

// OpenLogWithLimit opens a log that is rotated at a size in bytes.
func OpenLogWithLimit(path string, limit int64) (*LogFile, error) {
	l, err := OpenLog(path)
	if err == nil {
		l.limit = limit
	}
	return l, err
}

// Hubs that share a bus distinguish their tasks by their names.
func TestHubsOnOneBusKeepUniqueNames(t *testing.T) {
	t.Parallel()
	a, b := t.TempDir(), t.TempDir()
	name := func(dir string, embedded bool) string {
		t.Helper()
		name, err := hubName(dir, embedded, nil)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	first := name(a, false)
	if again := name(a, false); again != first {
		t.Errorf("the name changed from %s to %s", first, again)
	}
	if other := name(b, false); other == first {
		t.Error("two hubs have the same name")
	}
	if got := name(t.TempDir(), true); got != "local" {
		t.Errorf("on a private bus: %s", got)
	}
	if err := os.WriteFile(filepath.Join(a, "hub-name"), []byte("../x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := name(a, false); again != first {
		t.Errorf("after damage the name is %s instead of %s", again, first)
	}
	for _, file := range []string{"hub-name", "hub-name.copy"} {
		if err := os.WriteFile(filepath.Join(a, file), []byte("../x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := hubName(a, false, nil); err == nil {
		t.Errorf("the name from a damaged file is %q", got)
	}
}

// Until an agent uses the agents' network, there are no queues.
func TestTheQueuesOfNoNetworkAreEmpty(t *testing.T) {
	var q workQueues
	items, err := q.Items(t.Context(), "")
	letters, more, lettersErr := q.DeadLetters(t.Context(), 10, "")
	if len(items) != 0 || len(letters) != 0 || more || err != nil || lettersErr != nil {
		t.Error(items, letters, more, err, lettersErr)
	}
	if _, err := q.RetryDeadLetter(t.Context(), "x", true); !store.IsUnreachable(err) {
		t.Error(err)
	}
	if _, err := q.DiscardDeadLetter(t.Context(), "x"); !store.IsUnreachable(err) {
		t.Error(err)
	}
}
