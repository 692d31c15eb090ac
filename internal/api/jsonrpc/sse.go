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

	mu       sync.Mutex     // serialises writes
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
	return s.write(event)
}

func (s *EventStream) start() {
	h := s.W.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", s.CacheControl)
	h.Set("X-Accel-Buffering", "no") // proxies must not buffer the stream
	s.W.WriteHeader(http.StatusOK)
	s.done, s.ticker = make(chan struct{}), time.NewTicker(s.KeepAlive)
	s.comments.Go(s.comment)
}

func (s *EventStream) comment() {
	for {
		select {
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
	control := http.NewResponseController(s.W)
	if s.Timeout > 0 {
		_ = control.SetWriteDeadline(time.Now().Add(s.Timeout)) // only writers in tests have no deadlines
	}
	if _, err := s.W.Write(frame); err != nil {
		return err
	}
	return control.Flush()
}

// Close ends the comments and waits for their goroutine. No Send may follow.
func (s *EventStream) Close() {
	if s.done != nil {
		close(s.done)
		s.ticker.Stop()
		s.comments.Wait()
	}
}
