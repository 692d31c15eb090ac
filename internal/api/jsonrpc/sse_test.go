package jsonrpc_test

import (
	"errors"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
)

// deadlineWriter records the deadlines of writes.
type deadlineWriter struct {
	*httptest.ResponseRecorder
	deadlines []time.Time
}

func (w *deadlineWriter) SetWriteDeadline(d time.Time) error {
	w.deadlines = append(w.deadlines, d)
	return nil
}

func TestEventStreamSendsKeepAliveComments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := httptest.NewRecorder()
		s := jsonrpc.EventStream{W: w, KeepAlive: time.Second, CacheControl: "no-cache"}
		if s.Started() {
			t.Error("the stream started before its first event")
		}
		if err := s.Send([]byte("data: 1\n\n")); err != nil || !s.Started() || !w.Flushed {
			t.Errorf("Send returned %v; started %v, flushed %v", err, s.Started(), w.Flushed)
		}
		time.Sleep(900 * time.Millisecond)
		if err := s.Send([]byte("data: 2\n\n")); err != nil { // delays the next comment
			t.Error(err)
		}
		time.Sleep(1100 * time.Millisecond)
		s.Close()
		time.Sleep(time.Minute)
		if want := "data: 1\n\ndata: 2\n\n: keep-alive\n\n"; w.Body.String() != want {
			t.Errorf("the stream is %q, want %q", w.Body.String(), want)
		}
		for name, want := range map[string]string{
			"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no",
		} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	})
}

func TestEventStreamBoundsEveryWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &deadlineWriter{ResponseRecorder: httptest.NewRecorder()}
		s := jsonrpc.EventStream{W: w, KeepAlive: time.Second, Timeout: time.Minute}
		if err := s.Send([]byte("data: 1\n\n")); err != nil {
			t.Error(err)
		}
		start := time.Now()
		time.Sleep(1100 * time.Millisecond)
		s.Close()
		for i, want := range []time.Duration{time.Minute, time.Minute + time.Second} { // the event, a comment
			if i >= len(w.deadlines) || w.deadlines[i].Sub(start) != want {
				t.Errorf("write %d: the deadlines are %v after %v, want %v", i, w.deadlines, start, want)
			}
		}
	})
}

func TestEventStreamThatNeverStartedCanBeClosed(*testing.T) {
	s := jsonrpc.EventStream{W: httptest.NewRecorder(), KeepAlive: time.Second}
	s.Close()
}

// writesWriter records writes.
type writesWriter struct {
	*httptest.ResponseRecorder
	mu     sync.Mutex
	writes []string
}

func (w *writesWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, string(p))
	return len(p), nil
}

func (w *writesWriter) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.writes)
}

func TestEventStreamGathersWhatFollowsClosely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writesWriter{ResponseRecorder: httptest.NewRecorder()}
		s := jsonrpc.EventStream{W: w, KeepAlive: time.Hour, Gather: 50 * time.Millisecond}
		want := func(writes ...string) {
			t.Helper()
			synctest.Wait()
			if got := w.all(); !slices.Equal(got, writes) {
				t.Errorf("the writes are %.60q, want %.60q", got, writes)
			}
		}
		send := func(event string) {
			t.Helper()
			if err := s.Send([]byte(event)); err != nil {
				t.Error(err)
			}
		}
		send("1")
		time.Sleep(20 * time.Millisecond)
		send("2")
		want()
		time.Sleep(30 * time.Millisecond)
		want("12")
		send("3")
		long := strings.Repeat("x", 32<<10)
		send(long)
		want("12", "3"+long) // what is large does not wait
		send("4")
		s.Close()
		want("12", "3"+long, "4")
	})
}

func TestEventStreamWritesWhatItHoldsWithTheNextEvent(t *testing.T) {
	w := &writesWriter{ResponseRecorder: httptest.NewRecorder()}
	s := jsonrpc.EventStream{W: w, KeepAlive: time.Hour}
	want := func(flushed bool, writes ...string) {
		t.Helper()
		if got := w.all(); !slices.Equal(got, writes) || w.Flushed != flushed {
			t.Errorf("the writes are %.60q, want %.60q; flushed: %v", got, writes, w.Flushed)
		}
		w.Flushed = false
	}
	do := func(write func([]byte) error, event string) {
		t.Helper()
		if err := write([]byte(event)); err != nil {
			t.Error(err)
		}
	}
	do(s.Hold, "1")
	want(false)
	do(s.Hold, "2")
	do(s.Send, "3")
	want(true, "123")
	long := strings.Repeat("x", 32<<10)
	do(s.Hold, long)
	want(true, "123", long) // what is large is not held
	do(s.Hold, "4")
	s.Close()
	want(false, "123", long, "4") // the end of the response flushes it
}

// brokenWriter fails once it is broken.
type brokenWriter struct {
	*httptest.ResponseRecorder
	broken atomic.Bool
}

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.broken.Load() {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

func TestEventStreamReportsALateFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &brokenWriter{ResponseRecorder: httptest.NewRecorder()}
		s := jsonrpc.EventStream{W: w, KeepAlive: time.Hour, Gather: time.Second}
		if err := s.Send([]byte("1")); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		w.broken.Store(true)
		if err := s.Send([]byte("2")); err != nil { // waits
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		if err := s.Send([]byte("3")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the event after a failure: %v", err)
		}
		s.Close()
	})
}
