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
	started bool // the status line was sent
	seq     int
}

func newEventStream(w http.ResponseWriter, timeout time.Duration) *eventStream {
	return &eventStream{w: w, rc: http.NewResponseController(w), timeout: timeout}
}

// run sends the encoded events until they or ctx end, or encoding or writing fails, and
// returns that error. The stream starts with the first event; after that, comments are
// sent when there is no event for keepAlive. events must end with ctx.
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
			if !s.started {
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

// pumpEvents sends events to items and closes it at their end. A panic becomes an
// error: nothing else would recover it in this goroutine.
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

// send writes one event, and the headers before the first.
func (s *eventStream) send(data []byte) error {
	if !s.started {
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // proxies must not buffer the stream
		s.w.WriteHeader(http.StatusOK)
		s.started = true
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

// setWriteDeadline bounds the next write, so that a client that does not read cannot
// hold a goroutine and a subscription forever. Writers without deadlines, in tests, are
// left without.
func setWriteDeadline(rc *http.ResponseController, timeout time.Duration) {
	_ = rc.SetWriteDeadline(time.Now().Add(timeout))
}
