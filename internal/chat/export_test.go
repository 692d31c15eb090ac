package chat

// Decode is the decoder of messages, for its fuzz test.
var Decode = decode

// UnwatchIdle is what happens every minute.
func (s *Space) UnwatchIdle() { s.unwatchIdle() }

// Watching reports whether the Space has a subscription.
func (s *Space) Watching() bool {
	s.watcher.mu.Lock()
	defer s.watcher.mu.Unlock()
	return s.watcher.sub != nil
}

// Apart returns the difference of two times.
var Apart = apart

// Lasting reports whether a queued message is dropped.
var Lasting = lasting
