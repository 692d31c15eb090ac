package udx

// Lent reports whether a stream reads the socket in place of its goroutine.
func (s *Socket) Lent() bool {
	s.turn.mu.Lock()
	defer s.turn.mu.Unlock()
	return s.turn.borrower != nil
}

// AtSocket reports whether a Read of the stream reads its socket itself.
func (s *Stream) AtSocket() bool { return s.leads.Load() != nil }
