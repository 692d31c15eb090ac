package chat

import "github.com/nats-io/nats.go/jetstream"

// Decode decodes a message.
var Decode = decode

// DecodeOwn decodes a message of this program; ok is false for others.
func DecodeOwn(data []byte) (handle, message, timestamp string, ok bool) {
	p, ok := decodeOwn(data)
	if !ok {
		return "", "", "", false
	}
	return p.Handle, *p.Message, p.Timestamp, true
}

// Encode encodes a message.
var Encode = encode

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

// DecodeKept decodes a file of kept messages; it returns their number and all ids.
func DecodeKept(data []byte) (n int, ids string, err error) {
	messages, err := decodeKept(data)
	for _, m := range messages {
		ids += m.ID
	}
	return len(messages), ids, err
}

// JetStream returns the JetStream of the Space's bus.
func (s *Space) JetStream() jetstream.JetStream { return s.current().JetStream() }
