package ysync

import "sync"

// Bounds of what a slow client has not taken. Most frames are small, and come in bursts.
const (
	maxOut      = 8192
	maxOutBytes = 32 << 20 // one frame may be larger
)

// outbox is what is to be sent to a client: put never blocks.
type outbox struct {
	wake chan struct{} // has an element while something is queued

	mu    sync.Mutex
	queue [][]byte
	bytes int
}

// put queues a frame. It reports false if there is no room.
func (o *outbox) put(b []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) >= maxOut || len(o.queue) > 0 && o.bytes+len(b) > maxOutBytes {
		return false
	}
	o.queue = append(o.queue, b)
	o.bytes += len(b)
	o.signal()
	return true
}

// signal wakes whoever sends; the lock is held.
func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// first returns what is to be sent next; it stays until it was sent.
func (o *outbox) first() ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		return nil, false
	}
	return o.queue[0], true
}

// sent takes the first frame away.
func (o *outbox) sent() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bytes -= len(o.queue[0])
	o.queue[0] = nil
	if o.queue = o.queue[1:]; len(o.queue) == 0 {
		o.queue = nil
		return
	}
	o.signal()
}
