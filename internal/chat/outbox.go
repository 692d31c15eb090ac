package chat

import (
	"context"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
)

// MaxQueued bounds the messages that wait for the bus.
const MaxQueued = 1000

// entry is a message on its way to the bus.
type entry struct {
	channel Channel
	id      string // the same at every attempt, for deduplication
	data    []byte
	tried   time.Time     // of the first attempt; zero before
	stored  chan struct{} // closed once the message is stored
	seq     uint64        // valid once stored is closed
}

// outbox is the queue of messages that wait for the bus, in the order of the sends. A full queue drops the oldest.
type outbox struct {
	pushed chan struct{} // of capacity 1; has a value after a push

	mu      sync.Mutex
	entries []*entry
	dropped int
	empty   wait.Signal // sent when the queue becomes empty
}

// push appends e and returns the entry that was dropped for it, if any.
func (o *outbox) push(e *entry) (dropped *entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.entries) == MaxQueued {
		dropped = o.entries[0]
		o.entries = o.entries[1:]
		o.dropped++
	}
	o.entries = append(o.entries, e)
	wait.Nudge(o.pushed)
	return dropped
}

// head returns the oldest entry without removing it, nil if there is none.
func (o *outbox) head() *entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.entries) == 0 {
		return nil
	}
	return o.entries[0]
}

// remove removes the oldest entry if it is e, which may have been dropped.
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

// drained blocks until the queue is empty or ctx ends.
func (o *outbox) drained(ctx context.Context) {
	o.empty.Until(ctx, nil, func() bool { return o.head() == nil })
}
