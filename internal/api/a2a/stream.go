package a2a

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// eventStream writes server-sent events.
type eventStream struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	begun   bool // the status line is out
	seq     int
}

func newEventStream(w http.ResponseWriter, timeout time.Duration) *eventStream {
	return &eventStream{w: w, rc: http.NewResponseController(w), timeout: timeout}
}

// run sends what encode makes of events until they end, ctx does, a write fails
// or encode returns an error, and returns that. The stream begins with the first
// event; silence afterwards is filled with comments. events must heed ctx.
func (s *eventStream) run(ctx context.Context, keepAlive time.Duration, events iter.Seq2[a2a.Event, error], encode func(a2a.Event, error) ([]byte, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	items := make(chan streamItem)
	var pump sync.WaitGroup
	pump.Go(func() { pumpEvents(ctx, events, items) })
	defer pump.Wait()
	defer cancel()

	silence := time.NewTicker(keepAlive)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-silence.C:
			if !s.begun {
				continue
			}
			if err := s.write(": keep-alive\n\n"); err != nil {
				return err
			}
		case item, open := <-items:
			if !open {
				return nil
			}
			data, err := encode(item.event, item.err)
			if err != nil {
				return err
			}
			if err := s.send(data); err != nil || item.err != nil {
				return err
			}
			silence.Reset(keepAlive)
		}
	}
}

type streamItem struct {
	event a2a.Event
	err   error
}

// pumpEvents moves events to items and closes it at their end. A panic on the way
// becomes an error: nothing else would catch it in this goroutine.
func pumpEvents(ctx context.Context, events iter.Seq2[a2a.Event, error], items chan<- streamItem) {
	defer close(items)
	send := func(item streamItem) bool {
		select {
		case items <- item:
			return item.err == nil
		case <-ctx.Done():
			return false
		}
	}
	defer func() {
		if p := recover(); p != nil {
			send(streamItem{err: fmt.Errorf("stream panicked: %v", p)})
		}
	}()
	for event, err := range events {
		if !send(streamItem{event, err}) {
			return
		}
	}
}

// send writes one event, in front of the first the headers.
func (s *eventStream) send(data []byte) error {
	if !s.begun {
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // a proxy that buffers would break the stream
		s.w.WriteHeader(http.StatusOK)
		s.begun = true
	}
	s.seq++
	return s.write(fmt.Sprintf("id: %d\ndata: %s\n\n", s.seq, data))
}

func (s *eventStream) write(text string) error {
	setWriteDeadline(s.rc, s.timeout)
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.rc.Flush()
}

// setWriteDeadline bounds the next write, so that a client that stopped reading
// does not hold a goroutine and a subscription for ever. A writer that cannot do
// it (in tests) goes without.
func setWriteDeadline(rc *http.ResponseController, timeout time.Duration) {
	_ = rc.SetWriteDeadline(time.Now().Add(timeout))
}
