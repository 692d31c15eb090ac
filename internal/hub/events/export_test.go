package events

// Held returns how many events the reader holds in memory.
func (r *Reader) Held() int { return len(r.page) }

// Decode decodes a stored event, for the fuzz target.
func Decode(data []byte, sequence uint64) (Event, error) { return decode(data, sequence) }

// Encode encodes an event as it is stored.
func Encode(e Event) ([]byte, error) { return encode(e.Position.Epoch, e.bounded()) }

// Store stores a batch as run does. It must not be called while events are published.
func (l *Log) Store(batch []Event) (failed int, err error) { return l.store(batch) }

// Alone returns the event as one of a single reader, to be compared.
func Alone(e Event) Event {
	e.encoded = nil
	return e
}
