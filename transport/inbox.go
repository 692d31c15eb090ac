package transport

import "context"

// maxSpare is how many frames a slice may have room for that is kept to be used
// again.
const maxSpare = 512

// Inbox is what a connection's reader has read and nobody has yet received. It is
// for those who write a transport whose connections are read by a goroutine: that
// calls Spare, Put and at last End; [Conn.Receive] calls Receive. It holds what
// came in one message beside the one that is received: more waits in the network,
// and so at the sender.
type Inbox struct {
	done   <-chan struct{}
	closed func() error

	in    chan []Frame // closed after the last
	spare chan []Frame // slices to be used again
	lent  []Frame      // the caller's, of the last Receive
}

// NewInbox returns the inbox of a connection that is of no more use once done is
// closed; after that closed says why. Before or after [Inbox.End] done is closed
// in any case.
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

// Put gives the inbox frames that have been read, and the slice with them. It
// blocks until there is room, and reports false when the connection is of no more
// use.
func (b *Inbox) Put(frames []Frame) bool {
	select {
	case b.in <- frames:
		return true
	case <-b.done:
		return false
	}
}

// End says that nothing more is put.
func (b *Inbox) End() { close(b.in) }

// Receive is [Conn.Receive]. When ctx ends, the connection lives on.
func (b *Inbox) Receive(ctx context.Context) ([]Frame, error) {
	b.giveBack()
	select {
	case frames, ok := <-b.in:
		return b.lend(frames, ok)
	case <-b.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case frames, ok := <-b.in: // came before the end
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

// giveBack keeps the slice of the last Receive, which is over, to be used again.
func (b *Inbox) giveBack() {
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
