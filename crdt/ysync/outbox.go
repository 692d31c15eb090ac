package ysync

import (
	"sync"

	"github.com/parleyhub/parley/internal/base/wait"
)

// Limits of a client's queue. Most frames are small and arrive in bursts.
const (
	maxOut      = 8192
	maxOutBytes = 32 << 20 // a single frame may be larger
)

// outbox is the queue of frames to a client.
type outbox struct {
	wake chan struct{} // has an element while something is queued

	mu    sync.Mutex
	queue [][]byte
	bytes int
}

// put queues a frame without blocking. It reports false if there is no room.
func (o *outbox) put(b []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) >= maxOut || len(o.queue) > 0 && o.bytes+len(b) > maxOutBytes {
		return false
	}
	o.queue = append(o.queue, b)
	o.bytes += len(b)
	wait.Nudge(o.wake)
	return true
}

// first returns the next frame, which stays queued until sent is called.
func (o *outbox) first() ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		return nil, false
	}
	return o.queue[0], true
}

// sent removes the first frame.
func (o *outbox) sent() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bytes -= len(o.queue[0])
	o.queue[0] = nil
	if o.queue = o.queue[1:]; len(o.queue) == 0 {
		o.queue = nil
		return
	}
	wait.Nudge(o.wake)
}
