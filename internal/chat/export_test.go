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

// DecodeKept decodes a file of kept messages; it returns their ids, their data, and what is damaged.
func DecodeKept(raw []byte) (ids, data []string, damage, err error) {
	messages, damage, err := decodeKept(raw)
	for _, m := range messages {
		ids, data = append(ids, m.ID), append(data, string(m.Data))
	}
	return ids, data, damage, err
}

// JetStream returns the JetStream of the Space's bus.
func (s *Space) JetStream() jetstream.JetStream { return s.current().JetStream() }
