package channel

// Status is the state of a channel.
type Status string

// The four states.
const (
	Connecting   Status = "connecting"   // not yet acknowledged by both ends
	Open         Status = "open"         // envelopes travel
	Reconnecting Status = "reconnecting" // the connection broke; envelopes wait
	Closed       Status = "closed"       // for good
)

// CanBecome reports whether a channel in state s may change to next:
// a channel opens when both ends have acknowledged it, an open one
// may break and open again, and any but a closed one may close.
func (s Status) CanBecome(next Status) bool {
	switch next {
	case Open:
		return s == Connecting || s == Reconnecting
	case Reconnecting:
		return s == Open
	case Closed:
		return s == Connecting || s == Open || s == Reconnecting
	}
	return false
}
