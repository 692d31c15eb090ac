package udx

// Lent reports whether a stream has borrowed the reading of the socket.
func (s *Socket) Lent() bool {
	s.turn.mu.Lock()
	defer s.turn.mu.Unlock()
	return s.turn.borrower != nil
}

// AtSocket reports whether a Read of the stream waits at its socket.
func (s *Stream) AtSocket() bool { return s.leads.Load() != nil }
