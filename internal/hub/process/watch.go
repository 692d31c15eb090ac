package process

import (
	"context"
	"io"
	"sync"
	"time"
)

// Watch limits the duration of a run, and the time without output. It is safe for
// concurrent use.
type Watch struct {
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	run     limit
	idle    limit
	paused  int
	stopped bool
}

// limit is a timer that can be paused.
type limit struct {
	left  time.Duration // at the last start of the timer, or at the pause
	since time.Time
	timer *time.Timer // nil without a limit
}

// NewWatch returns a context that ends with parent, or with the cause ErrRunTime after
// run, or ErrIdle after idle without a Touch. 0 means no limit. The caller must stop the
// watch.
func NewWatch(parent context.Context, run, idle time.Duration) (context.Context, *Watch) {
	ctx, cancel := context.WithCancelCause(parent)
	w := &Watch{cancel: cancel}
	now := time.Now()
	if run > 0 {
		w.run = limit{left: run, since: now}
		w.run.timer = time.AfterFunc(run, func() { cancel(ErrRunTime) })
	}
	if idle > 0 {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.idle = limit{left: idle, since: now}
		w.idle.timer = time.AfterFunc(idle, func() { w.checkIdle(idle) })
	}
	return ctx, w
}

// checkIdle runs when the idle timer fires. Touch does not reset the timer, which keeps it
// cheap: checkIdle waits for the remaining time.
func (w *Watch) checkIdle(idle time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paused > 0 || w.stopped {
		return
	}
	if rest := idle - time.Since(w.idle.since); rest > 0 {
		w.idle.timer.Reset(rest)
		return
	}
	w.cancel(ErrIdle)
}

// Touch restarts the idle limit.
func (w *Watch) Touch() {
	w.mu.Lock()
	w.idle.since = time.Now()
	w.mu.Unlock()
}

// Pause pauses both limits, while the user is asked. Each call needs a Resume.
func (w *Watch) Pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused++
	if w.paused > 1 {
		return
	}
	if t := w.run.timer; t != nil && t.Stop() {
		w.run.left -= time.Since(w.run.since)
	}
	if t := w.idle.timer; t != nil {
		t.Stop()
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
	if t := w.run.timer; t != nil {
		w.run.since = now
		t.Reset(max(w.run.left, 0))
	}
	if t := w.idle.timer; t != nil {
		w.idle.since = now
		t.Reset(w.idle.left)
	}
}

// Stop ends the watch and its context.
func (w *Watch) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	for _, t := range []*time.Timer{w.run.timer, w.idle.timer} {
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
