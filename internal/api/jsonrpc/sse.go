package jsonrpc

import (
	"net/http"
	"sync"
	"time"
)

// EventStream writes a response of Server-Sent Events. After the first event, timers, which Close stops, write comments while
// there are no events, and events that have waited. The methods are for one goroutine; they block while the client reads slowly,
// for at most Timeout.
type EventStream struct {
	W            http.ResponseWriter
	KeepAlive    time.Duration // between comments
	CacheControl string
	// Timeout bounds a write, so that a client that does not read cannot hold the stream
	// forever; 0 leaves the deadline to W.
	Timeout time.Duration
	// Gather is how long an event waits for the next ones, to be written together with them. 0 writes each by itself.
	Gather time.Duration

	mu       sync.Mutex  // serialises writes
	pending  []byte      // events that wait for the next ones
	failure  error       // of the last write
	closed   bool        // the timers write nothing any more
	comments *time.Timer // nil before the first event
	flush    *time.Timer // of pending; nil without Gather
}

// Started reports whether an event was sent.
func (s *EventStream) Started() bool { return s.comments != nil }

// Send writes an event in its wire format, after those that wait. The first one starts the stream.
func (s *EventStream) Send(event []byte) error {
	s.next()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Gather > 0 && len(s.pending) == 0 {
		s.flush.Reset(s.Gather)
	}
	return s.add(event, s.Gather <= 0)
}

// Hold is Send for an event that the next one follows at once: the next Send, or Close, writes both together.
func (s *EventStream) Hold(event []byte) error {
	s.next()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(event, false)
}

// next prepares the stream for another event.
func (s *EventStream) next() {
	if s.comments == nil {
		s.start()
	}
	s.comments.Reset(s.KeepAlive)
}

// add adds an event to those that wait, and writes them if asked, or if they are many. mu must be held.
func (s *EventStream) add(event []byte, write bool) error {
	if s.failure != nil {
		return s.failure
	}
	if write && len(s.pending) == 0 {
		return s.writeNow(event) // it may be large
	}
	if s.pending = append(s.pending, event...); write || len(s.pending) >= maxGathered {
		return s.writeGathered()
	}
	return nil
}

// maxGathered is how many bytes of events wait at most.
const maxGathered = 32 << 10

// writeGathered writes the events that wait, and flushes them. mu must be held.
func (s *EventStream) writeGathered() error {
	if len(s.pending) == 0 || s.failure != nil {
		return s.failure
	}
	events := s.pending
	if s.pending = nil; cap(events) <= 2*maxGathered {
		s.pending = events[:0]
	}
	return s.writeNow(events)
}

// writeNow writes and flushes. mu must be held.
func (s *EventStream) writeNow(events []byte) error {
	if s.write(events); s.failure == nil {
		s.failure = http.NewResponseController(s.W).Flush()
	}
	return s.failure
}

func (s *EventStream) start() {
	h := s.W.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", s.CacheControl)
	h.Set("X-Accel-Buffering", "no") // proxies must not buffer the stream
	s.W.WriteHeader(http.StatusOK)
	s.mu.Lock() // for the timers
	defer s.mu.Unlock()
	s.comments = time.AfterFunc(s.KeepAlive, s.comment)
	if s.Gather > 0 {
		s.flush = time.AfterFunc(s.Gather, s.gathered)
	}
}

// gathered writes the events that have waited.
func (s *EventStream) gathered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		_ = s.writeGathered() // the next event fails with the error
	}
}

// comment writes a comment and plans the next one.
func (s *EventStream) comment() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.failure != nil {
		return // net/http ends the request's context; the next event fails too
	}
	if s.add([]byte(": keep-alive\n\n"), true) == nil {
		s.comments.Reset(s.KeepAlive)
	}
}

// write writes without flushing. mu must be held.
func (s *EventStream) write(frame []byte) {
	if s.Timeout > 0 {
		_ = http.NewResponseController(s.W).SetWriteDeadline(time.Now().Add(s.Timeout)) // only writers in tests have no deadlines
	}
	_, s.failure = s.W.Write(frame)
}

// Close writes the events that wait, and blocks while a timer writes. The end of the response flushes them. No Send may follow.
func (s *EventStream) Close() {
	if s.comments == nil {
		return
	}
	s.comments.Stop()
	if s.flush != nil {
		s.flush.Stop()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if len(s.pending) > 0 && s.failure == nil {
		s.write(s.pending) // a client that is gone continues after the last event that it has
	}
}
