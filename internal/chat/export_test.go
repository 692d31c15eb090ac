package chat

// Decode decodes a message.
var Decode = decode

// UnwatchIdle runs the check for idle subscriptions that otherwise runs every minute.
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
