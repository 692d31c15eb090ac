package chat

import (
	"context"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
)

// Limits of the messages that wait for the bus, of all channels together.
const (
	MaxQueued      = 1000
	maxQueuedBytes = 64 << 20
)

// entry is a message on its way to the bus.
type entry struct {
	channel Channel
	id      string // the same at every attempt, for deduplication
	data    []byte
	sent    time.Time     // of the call
	tried   time.Time     // of the first attempt; zero before
	stored  chan struct{} // closed once the message is stored
	seq     uint64        // valid once stored is closed
	order   uint64        // in the outbox
	journal *journal      // where it is or may be kept; nil if nothing is

	former bool // an earlier Space has kept it

	kept, left bool // in the journal; no longer in the outbox: guarded by the journal
}

// outbox has a queue for each channel, so that a channel whose stream is unavailable delays no other. The limits are
// those of all together; beyond them the oldest message is dropped.
type outbox struct {
	pushed  chan struct{} // of capacity 1; has a value after a push
	changed wait.Signal   // sent when a queue becomes empty or its attempts fail

	mu      sync.Mutex
	lanes   map[string]*lane
	orders  uint64
	total   int
	bytes   int
	dropped int
}

// lane is the queue of one channel, in the order of the sends.
type lane struct {
	entries  []*entry
	sending  bool  // a goroutine sends it
	failures int   // attempts since the last success
	problem  error // of the last attempt
}

func (o *outbox) lane(channel string) *lane {
	if o.lanes == nil {
		o.lanes = map[string]*lane{}
	}
	if o.lanes[channel] == nil {
		o.lanes[channel] = &lane{}
	}
	return o.lanes[channel]
}

// push appends e to its channel's queue and returns the entries that were dropped for it.
func (o *outbox) push(e *entry) (dropped []*entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.total >= MaxQueued || o.total > 0 && o.bytes+len(e.data) > maxQueuedBytes {
		dropped = append(dropped, o.dropOldest())
	}
	o.orders++
	e.order = o.orders
	l := o.lane(e.channel.Name)
	l.entries = append(l.entries, e)
	o.total++
	o.bytes += len(e.data)
	wait.Nudge(o.pushed)
	return dropped
}

// dropOldest removes the oldest entry of all queues. The lock is held.
func (o *outbox) dropOldest() *entry {
	var oldest *lane
	for _, l := range o.lanes {
		if len(l.entries) > 0 && (oldest == nil || l.entries[0].order < oldest.entries[0].order) {
			oldest = l
		}
	}
	e := oldest.entries[0]
	o.shift(oldest)
	o.dropped++
	return e
}

// shift removes the first entry of a queue. The lock is held.
func (o *outbox) shift(l *lane) {
	e := l.entries[0]
	l.entries[0] = nil
	l.entries = l.entries[1:]
	o.total--
	o.bytes -= len(e.data)
	if e.journal != nil {
		e.journal.left(e)
	}
	if len(l.entries) == 0 {
		l.entries = nil
		o.changed.Send()
	}
}

// head returns a channel's oldest entry without removing it, nil if there is none.
func (o *outbox) head(channel string) *entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	if l := o.lanes[channel]; l != nil && len(l.entries) > 0 {
		return l.entries[0]
	}
	return nil
}

// remove removes a channel's oldest entry if it is e, which may have been dropped.
func (o *outbox) remove(e *entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lane(e.channel.Name)
	l.failures, l.problem = 0, nil
	if len(l.entries) > 0 && l.entries[0] == e {
		o.shift(l)
	}
}

// failed records the error of an attempt to send a channel's queue.
func (o *outbox) failed(channel string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lane(channel)
	l.failures++
	l.problem = err
	o.changed.Send()
}

// begin returns the channels whose queues nobody sends, and marks them as being sent.
func (o *outbox) begin() (channels []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, l := range o.lanes {
		if len(l.entries) > 0 && !l.sending {
			l.sending = true
			channels = append(channels, name)
		}
	}
	return channels
}

// end is the opposite of begin.
func (o *outbox) end(channel string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lane(channel)
	l.sending, l.failures = false, 0
	if len(l.entries) > 0 {
		wait.Nudge(o.pushed) // the connection may be back already
	}
}

// waiting returns how many messages of a channel are queued, and the error of the last attempt to send them.
func (o *outbox) waiting(channel string) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lane(channel)
	return len(l.entries), l.problem
}

func (o *outbox) counts() (queued, dropped int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.total, o.dropped
}

// all returns the entries of all queues, those of a channel in their order.
func (o *outbox) all() (entries []*entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.lanes {
		entries = append(entries, l.entries...)
	}
	return entries
}

// drained blocks until every queue is empty, connected is false, or ctx ends. With giveUp it does not wait for a queue whose
// attempts have failed more than once.
func (o *outbox) drained(ctx context.Context, connected func() bool, giveUp bool) {
	o.changed.Until(ctx, nil, func() bool {
		if !connected() {
			return true
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, l := range o.lanes {
			if len(l.entries) > 0 && (!giveUp || l.failures < 2) {
				return false
			}
		}
		return true
	})
}
