package process

import (
	"context"
	"io"
	"sync"
	"time"
)

// Watch limits the duration of a run, and the time without output. It is safe for concurrent use.
type Watch struct {
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	run     *time.Timer   // nil without a limit
	left    time.Duration // of the run limit, at since
	since   time.Time
	idle    *time.Timer   // nil without a limit
	most    time.Duration // between two touches
	touched time.Time
	paused  int

	row        int           // retries since the last progress
	maxRow     int           // 0: no limit
	retrying   *time.Timer   // runs since the first retry of the row, nil without one
	maxRetries time.Duration // 0: no limit
	stopped    bool
}

// NewWatch returns a context that ends with parent, or with the cause ErrRunTime after run, or ErrIdle after idle
// without a Touch. 0 means no limit. The caller must stop the watch.
func NewWatch(parent context.Context, run, idle time.Duration) (context.Context, *Watch) {
	ctx, cancel := context.WithCancelCause(parent)
	now := time.Now()
	w := &Watch{cancel: cancel, left: run, since: now, most: idle, touched: now}
	w.mu.Lock()
	defer w.mu.Unlock()
	if run > 0 {
		w.run = time.AfterFunc(run, func() { cancel(ErrRunTime) })
	}
	if idle > 0 {
		w.idle = time.AfterFunc(idle, w.checkIdle)
	}
	return ctx, w
}

// checkIdle runs when the idle timer fires. Touch does not reset the timer, which keeps it
// cheap: checkIdle waits for the remaining time.
func (w *Watch) checkIdle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paused > 0 || w.stopped {
		return
	}
	if rest := w.most - time.Since(w.touched); rest > 0 {
		w.idle.Reset(rest)
		return
	}
	w.cancel(ErrIdle)
}

// Touch restarts the idle limit.
func (w *Watch) Touch() {
	w.mu.Lock()
	w.touched = time.Now()
	w.mu.Unlock()
}

// LimitRetries ends the context with the cause ErrRetries after more than count calls of Retry without Progress, and
// with ErrRetryTime at the time within after the first of them. 0 means no limit.
func (w *Watch) LimitRetries(count int, within time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.maxRow, w.maxRetries = count, within
}

// Retry counts a request that the model server refused and that the agent repeats.
func (w *Watch) Retry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	w.row++
	if w.maxRow > 0 && w.row > w.maxRow {
		w.cancel(ErrRetries)
	}
	if w.retrying == nil && w.maxRetries > 0 {
		w.retrying = time.AfterFunc(w.maxRetries, func() { w.cancel(ErrRetryTime) })
	}
}

// Progress ends a row of retries.
func (w *Watch) Progress() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.progress()
}

// progress is Progress with mu held.
func (w *Watch) progress() {
	w.row = 0
	if w.retrying != nil {
		w.retrying.Stop()
		w.retrying = nil
	}
}

// Pause pauses both limits, and ends a row of retries, while the user is asked. Each call needs a Resume.
func (w *Watch) Pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused++
	w.progress()
	if w.paused > 1 {
		return
	}
	if w.run != nil && w.run.Stop() {
		w.left -= time.Since(w.since)
	}
	if w.idle != nil {
		w.idle.Stop()
	}
}

// Resume ends a Pause: the run limit continues, the idle limit restarts.
func (w *Watch) Resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paused == 0 {
		return
	}
	w.paused--
	if w.paused > 0 || w.stopped {
		return
	}
	now := time.Now()
	if w.run != nil {
		w.since = now
		w.run.Reset(max(w.left, 0))
	}
	if w.idle != nil {
		w.touched = now
		w.idle.Reset(w.most)
	}
}

// Stop ends the watch and its context.
func (w *Watch) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.progress()
	for _, t := range []*time.Timer{w.run, w.idle} {
		if t != nil {
			t.Stop()
		}
	}
	w.cancel(context.Canceled)
}

// Reader returns a reader of r that touches the watch with every byte.
func (w *Watch) Reader(r io.Reader) io.Reader { return watchReader{r, w} }

type watchReader struct {
	r io.Reader
	w *Watch
}

func (r watchReader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	if n > 0 {
		r.w.Touch()
	}
	return n, err
}
