package wait

import "sync"

// Signal wakes everybody who waits for something new. Its zero value is ready; it
// is safe for concurrent use.
type Signal struct {
	mu   sync.Mutex
	next chan struct{} // nil while nobody waits
}

// Send closes the channel that Wait returned.
func (s *Signal) Send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// Wait returns a channel that is closed by the next Send. Take it before
// looking whether there is something new, else a Send in between is missed.
func (s *Signal) Wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}
