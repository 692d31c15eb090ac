package clock

import (
	"sync"
	"time"
)

// Set returns by how much the wall clock has advanced more than the monotonic clock since the start of the process: it was set, or the
// computer slept. It says nothing by itself; between two calls it grows by what the clock was set.
func Set() time.Duration {
	now := time.Now()
	return now.Round(0).Sub(base.Round(0)) - now.Sub(base)
}

// MinSet is the least that counts as a change of the wall clock: both clocks may drift apart slowly.
const MinSet = time.Second

// A Watch notices when the wall clock is set, or when the computer has slept. It does nothing between its calls, each of which
// notices what has happened since the one before. It is safe for concurrent use.
type Watch struct {
	set func() time.Duration // see Set
	now func() time.Time

	mu    sync.Mutex
	known time.Duration
	at    time.Time
}

// NewWatch returns a Watch of the clock now, by Set where set is nil.
func NewWatch(now func() time.Time, set func() time.Duration) *Watch {
	if set == nil {
		set = Set
	}
	return &Watch{set: set, now: now, known: set()}
}

// Changed returns when the Watch noticed the last change, by the clock as it is since then; the zero time without one.
func (w *Watch) Changed() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	set := w.set()
	if (set - w.known).Abs() >= MinSet {
		w.known, w.at = set, w.now()
	}
	return w.at
}
