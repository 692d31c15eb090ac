package jsonrpc

import (
	"net/http"
	"sync"
	"time"
)

// EventStream writes a response of Server-Sent Events. After the first event, a second
// goroutine, which Close ends, writes comments while there are no events. The methods
// are for one goroutine; they block while the client reads slowly, for at most Timeout.
type EventStream struct {
	W            http.ResponseWriter
	KeepAlive    time.Duration // between comments
	CacheControl string
	// Timeout bounds a write, so that a client that does not read cannot hold the stream
	// forever; 0 leaves the deadline to W.
	Timeout time.Duration
	// Gather is how long an event waits for the next ones, to be written together with them. 0 writes each by itself.
	Gather time.Duration

	mu       sync.Mutex     // serialises writes
	pending  []byte         // events that wait for the next ones
	failure  error          // of the write of events that have waited
	flush    *time.Timer    // of pending; nil without Gather
	done     chan struct{}  // closed by Close; nil before the first event
	ticker   *time.Ticker   // of the comments
	comments sync.WaitGroup // the goroutine of the comments
}

// Started reports whether an event was sent.
func (s *EventStream) Started() bool { return s.done != nil }

// Send writes an event in its wire format. The first one starts the stream.
func (s *EventStream) Send(event []byte) error {
	if s.done == nil {
		s.start()
	}
	s.ticker.Reset(s.KeepAlive)
	if s.Gather <= 0 {
		return s.write(event)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil {
		return s.failure
	}
	if len(s.pending) == 0 {
		s.flush.Reset(s.Gather)
	}
	if s.pending = append(s.pending, event...); len(s.pending) >= maxGathered {
		return s.writeGathered()
	}
	return nil
}

// maxGathered is how many bytes of events wait at most.
const maxGathered = 32 << 10

// writeGathered writes the events that wait. mu must be held.
func (s *EventStream) writeGathered() error {
	if len(s.pending) == 0 || s.failure != nil {
		return s.failure
	}
	s.failure = s.writeLocked(s.pending)
	s.pending = s.pending[:0]
	return s.failure
}

func (s *EventStream) start() {
	h := s.W.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", s.CacheControl)
	h.Set("X-Accel-Buffering", "no") // proxies must not buffer the stream
	s.W.WriteHeader(http.StatusOK)
	s.done, s.ticker = make(chan struct{}), time.NewTicker(s.KeepAlive)
	var gathered <-chan time.Time
	if s.Gather > 0 {
		s.flush = time.NewTimer(s.Gather)
		gathered = s.flush.C
	}
	s.comments.Go(func() { s.comment(gathered) })
}

func (s *EventStream) comment(gathered <-chan time.Time) {
	for {
		select {
		case <-gathered:
			s.mu.Lock()
			err := s.writeGathered()
			s.mu.Unlock()
			if err != nil {
				return // the next event fails with it
			}
		case <-s.ticker.C:
			if s.write([]byte(": keep-alive\n\n")) != nil {
				return // net/http ends the request's context; the next event fails too
			}
		case <-s.done:
			return
		}
	}
}

func (s *EventStream) write(frame []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writeLocked(frame)
}

// writeLocked writes and flushes. mu must be held.
func (s *EventStream) writeLocked(frame []byte) error {
	control := http.NewResponseController(s.W)
	if s.Timeout > 0 {
		_ = control.SetWriteDeadline(time.Now().Add(s.Timeout)) // only writers in tests have no deadlines
	}
	if _, err := s.W.Write(frame); err != nil {
		return err
	}
	return control.Flush()
}

// Close writes the events that wait, ends the comments and waits for their goroutine. No Send may follow.
func (s *EventStream) Close() {
	if s.done == nil {
		return
	}
	close(s.done)
	s.ticker.Stop()
	s.comments.Wait()
	if s.flush != nil {
		s.flush.Stop()
		_ = s.writeGathered() // a client that is gone continues after the last event that it has
	}
}
