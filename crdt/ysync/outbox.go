package ysync

import (
	"slices"
	"sync"

	"github.com/parleyhub/parley/internal/base/wait"
)

// maxOutBytes bounds a client's queue; a single frame may be larger.
const maxOutBytes = 32 << 20

// outbox is the queue of what is to be sent to a client: WebSocket frames, one or several in an element, which the queues
// of other clients may share.
type outbox struct {
	socket *socket
	wake   chan struct{} // has an element while something is to be sent

	mu     sync.Mutex
	queue  [][]byte
	own    bool // the last element is of this queue alone
	bytes  int  // in the queue, and those that are being sent
	answer bool // the queue has the answer to a state vector
	ended  bool // nothing is sent any more
}

// put sends frames at once if the system accepts them, and otherwise queues them. It never blocks. It reports false if
// there is no room, or if the connection has failed.
func (o *outbox) put(b []byte) bool {
	o.mu.Lock()
	if !o.ended && len(o.queue) == 0 && o.socket.take() {
		o.mu.Unlock()
		return o.attempt(b)
	}
	defer o.mu.Unlock()
	return o.add(b)
}

// attempt sends frames as far as the system accepts them, and leaves the rest to who writes next. The caller has the turn.
func (o *outbox) attempt(b []byte) bool {
	defer o.socket.release()
	if o.socket.over {
		return false
	}
	n, err := o.socket.attempt(b)
	if err != nil {
		o.socket.over = true
		return false
	}
	if n == len(b) {
		return true
	}
	o.socket.rest = b[n:]
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bytes += len(b) - n
	wait.Nudge(o.wake)
	return true
}

// putAnswer queues the answer to a state vector.
func (o *outbox) putAnswer(b []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = true
	return o.add(b)
}

// add queues frames; o.mu is held.
func (o *outbox) add(b []byte) bool {
	switch {
	case o.ended:
		return true
	case o.bytes > 0 && o.bytes+len(b) > maxOutBytes:
		return false
	}
	o.bytes += len(b)
	wait.Nudge(o.wake)
	// Most frames are small and arrive in bursts: many of them in one element take less room.
	last := len(o.queue) - 1
	switch {
	case last < 0 || len(o.queue[last])+len(b) > joined:
		o.queue, o.own = append(o.queue, b), false
	case o.own:
		o.queue[last] = append(o.queue[last], b...)
	default:
		o.queue[last], o.own = slices.Concat(o.queue[last], b), true
	}
	return true
}

// flush sends what is queued. It blocks until the system has accepted it, and reports whether the answer to a state vector
// was sent.
func (o *outbox) flush() (answered bool, err error) {
	if err := o.socket.acquire(); err != nil {
		return false, err
	}
	defer o.socket.release()
	o.mu.Lock()
	queue, bytes := o.queue, o.bytes
	answered = o.answer
	o.queue, o.answer = nil, false
	o.mu.Unlock()
	if err := o.socket.write(queue); err != nil {
		return false, err
	}
	o.mu.Lock()
	o.bytes -= bytes
	o.mu.Unlock()
	return answered, nil
}

// end drops what is queued and what is put from now on: after a close frame nothing may follow.
func (o *outbox) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue, o.ended = nil, true
}
