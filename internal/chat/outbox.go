package chat

import (
	"context"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/broadcast"
)

// MaxQueued is how many messages wait for the bus at most (REQ-REL-004).
const MaxQueued = 1000

// entry is a message on its way to the bus.
type entry struct {
	channel Channel
	id      string // the same at every attempt, so that it is stored once
	data    []byte
	tried   time.Time     // when the first attempt began; zero before
	stored  chan struct{} // closed when it is
	seq     uint64        // valid once stored is closed
}

// outbox is the queue of messages that wait for the bus, in the order of the
// sends. When it is full the oldest is dropped (REQ-REL-005).
type outbox struct {
	pushed chan struct{} // has a value when something was pushed

	mu      sync.Mutex
	entries []*entry
	dropped int
	empty   broadcast.Signal // sent when the last entry has gone
}

func (o *outbox) init() {
	o.pushed = make(chan struct{}, 1)
}

// push appends e and returns the entry that had to go for it, if any.
func (o *outbox) push(e *entry) (dropped *entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.entries) == MaxQueued {
		dropped = o.entries[0]
		o.entries = o.entries[1:]
		o.dropped++
	}
	o.entries = append(o.entries, e)
	select {
	case o.pushed <- struct{}{}:
	default:
	}
	return dropped
}

// head is the oldest entry, nil if there is none. It stays in the queue.
func (o *outbox) head() *entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.entries) == 0 {
		return nil
	}
	return o.entries[0]
}

// remove takes e out, if it was not dropped already.
func (o *outbox) remove(e *entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.entries) > 0 && o.entries[0] == e {
		o.entries[0] = nil
		o.entries = o.entries[1:]
	}
	if len(o.entries) == 0 {
		o.entries = nil
		o.empty.Send()
	}
}

func (o *outbox) counts() (queued, dropped int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.entries), o.dropped
}

// drained waits until the queue is empty or ctx ends.
func (o *outbox) drained(ctx context.Context) {
	for {
		empty := o.empty.Wait()
		if o.head() == nil {
			return
		}
		select {
		case <-empty:
		case <-ctx.Done():
			return
		}
	}
}
