package chat

// Decode is the decoder of messages, for its fuzz test.
var Decode = decode

// Rest is what happens every minute.
func (s *Space) Rest() {
	if s.ears.rest() {
		s.news.Send()
	}
}

// Listening says whether the Space hears what others say.
func (s *Space) Listening() bool {
	s.ears.mu.Lock()
	defer s.ears.mu.Unlock()
	return s.ears.sub != nil
}

// Apart is how far two times are apart.
var Apart = apart

// Lasting says whether a queued message is given up.
var Lasting = lasting
