package replica

import "github.com/parleyhub/parley/envelope"

// Sign sets the checksum of a message, for tests.
func Sign(m *Message) { m.Sum = m.checksum() }

// Decode decodes a message, for tests.
func Decode(e *envelope.Envelope) (*Message, error) { return decode(e) }
