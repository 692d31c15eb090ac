package transport

import "context"

// maxSpare bounds the capacity of a slice that is kept for reuse.
const maxSpare = 512

// Inbox buffers the frames that a connection's reading goroutine has decoded, for implementations of
// [Conn]. The goroutine calls Spare, Put and finally End; [Conn.Receive] calls Receive. The buffer holds
// one message, besides the one being received: further ones wait in the network, so that the sender blocks.
type Inbox struct {
	done   <-chan struct{}
	closed func() error

	in    chan []Frame // closed after the last
	spare chan []Frame // slices for reuse
	lent  []Frame      // returned by the last Receive
}

// NewInbox returns the inbox of a connection that is unusable once done is closed; closed then returns the
// reason. Done must be closed before or soon after [Inbox.End].
func NewInbox(done <-chan struct{}, closed func() error) *Inbox {
	return &Inbox{done: done, closed: closed, in: make(chan []Frame, 1), spare: make(chan []Frame, 2)}
}

// Spare returns an empty slice to decode into; it may be nil.
func (b *Inbox) Spare() []Frame {
	select {
	case frames := <-b.spare:
		return frames
	default:
		return nil
	}
}

// Put stores decoded frames; the slice then belongs to the inbox. It blocks until there is room, and
// reports false if the connection has ended.
func (b *Inbox) Put(frames []Frame) bool {
	select {
	case b.in <- frames:
		return true
	case <-b.done:
		return false
	}
}

// End marks the end of the frames; Put is not called afterwards.
func (b *Inbox) End() { close(b.in) }

// Receive implements [Conn.Receive]. The end of ctx does not end the connection.
func (b *Inbox) Receive(ctx context.Context) ([]Frame, error) {
	b.recycle()
	select {
	case frames, ok := <-b.in:
		return b.lend(frames, ok)
	case <-b.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case frames, ok := <-b.in: // stored before the end
		return b.lend(frames, ok)
	default:
		return nil, b.closed()
	}
}

func (b *Inbox) lend(frames []Frame, ok bool) ([]Frame, error) {
	if !ok {
		<-b.done
		return nil, b.closed()
	}
	b.lent = frames
	return frames, nil
}

// recycle keeps the slice of the last Receive for reuse.
func (b *Inbox) recycle() {
	frames := b.lent
	b.lent = nil
	if cap(frames) == 0 || cap(frames) > maxSpare {
		return
	}
	clear(frames)
	select {
	case b.spare <- frames[:0]:
	default:
	}
}
