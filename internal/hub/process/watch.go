package process

import (
	"context"
	"io"
	"sync"
	"time"
)

// Watch bounds a run in time: the whole of it, and the time without a sign of
// life. It is safe for concurrent use.
type Watch struct {
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	run     limit
	idle    limit
	paused  int
	stopped bool
}

// limit is a time that runs out unless it is paused.
type limit struct {
	left  time.Duration // when the timer was last started, or at the pause
	since time.Time
	timer *time.Timer // nil without a limit
}

// NewWatch returns a context that ends with parent, or with the cause
// ErrRunTime after run, or ErrIdle when Touch was not called for idle. A limit
// of 0 is none. The watch must be stopped.
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

// checkIdle runs when the idle timer fires. Touch does not set the timer anew,
// which keeps it cheap: the rest is waited for here.
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

// Touch is a sign of life.
func (w *Watch) Touch() {
	w.mu.Lock()
	w.idle.since = time.Now()
	w.mu.Unlock()
}

// Pause stops both clocks, while a person is asked for something. Each call
// needs a Resume.
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

// Resume lets the clocks run on: the run from where it was, the idle time from
// the beginning.
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

// Reader touches the watch with every read of r that brought something.
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
