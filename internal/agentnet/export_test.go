package agentnet

import "time"

// WithBeat replaces the heartbeat's pace, which no entry can name below ten
// seconds.
func WithBeat(c Config, every time.Duration) Config {
	c.beatEvery = every
	return c
}

// MaxSwept is how many items one pass of the collector looks at closely.
const MaxSwept = maxSwept

// CheckEntry says whether the shipped schema accepts an entry's JSON.
func CheckEntry(data []byte) error {
	_, err := decodeEntry(data)
	return err
}

// DecodeMail reads a message as an inbox holds it.
func DecodeMail(data []byte) (Mail, error) { return decodeMail(data, nil) }

// DecodeOrder reads a queue's message.
func DecodeOrder(data []byte) error {
	_, err := decodeOrder(data, 1, "c")
	return err
}

// NewClock is the clock that a Network carries on.
func NewClock(own func() time.Time) (now func() time.Time, set func(server, before, after time.Time)) {
	c := &clock{own: own}
	return c.now, c.set
}

// IsAckSubject says whether a record may name a subject to acknowledge on.
func IsAckSubject(subject string) bool { return isAckSubject(subject) }

// MaxOwnedQueues is how many queues the agents of one project on a computer make.
const MaxOwnedQueues = maxOwned
