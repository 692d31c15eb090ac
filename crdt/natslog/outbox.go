package natslog

import (
	"context"
	"sync"

	"github.com/parleyhub/parley/crdt/replica"
)

// maxBacklog bounds what waits for the server, in bytes; edits are refused beyond it.
const maxBacklog = 32 << 20

// outbox has what goes to the log, until it has come back from there.
type outbox struct {
	mu      sync.Mutex
	epoch   uint64
	queue   []*replica.Message // not confirmed
	bytes   int
	made    uint64        // messages that were queued so far
	stored  uint64        // of them, that are in the log before the end of their epoch
	barrier uint64        // stored does not move until it gets there
	held    bool          // nothing is sent at the moment
	changed chan struct{} // closed and made anew at each change
	failed  error         // why the server does not take entries
}

func newOutbox(epoch uint64) *outbox { return &outbox{epoch: epoch, changed: make(chan struct{})} }

// signal wakes who waits; the lock is held.
func (o *outbox) signal() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// put queues a message; it never blocks. Those of a former epoch make room: what they have was carried over, and
// follows.
func (o *outbox) put(m *replica.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turn(m.Epoch)
	o.queue = append(o.queue, m)
	o.bytes += m.Size()
	o.made++
	o.signal()
}

// turn goes on to an epoch; the lock is held.
func (o *outbox) turn(epoch uint64) {
	if o.epoch == epoch {
		return
	}
	o.epoch, o.queue, o.bytes = epoch, nil, 0
}

// resume goes on in an epoch: who waits for what was made so far waits for what was carried over.
func (o *outbox) resume(epoch uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turn(epoch)
	o.held = false
	o.barrier = o.made
	if len(o.queue) == 0 {
		o.stored = o.made
	}
	o.signal()
}

// hold ends sending until resume.
func (o *outbox) hold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = true
}

// room reports why nothing more is to be made, nil if it may.
func (o *outbox) room() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes > maxBacklog {
		return failed(CodeFull, o.failed, "too much waits for the server: %d bytes", o.bytes)
	}
	return nil
}

// next returns the first messages that fit into an entry, and how many were made up to the last of them.
func (o *outbox) next(ctx context.Context) (messages []*replica.Message, epoch, upTo uint64, err error) {
	for {
		o.mu.Lock()
		changed := o.changed
		if len(o.queue) > 0 && !o.held {
			size := 0
			for _, m := range o.queue {
				size += m.Size()
				if len(messages) > 0 && (size > maxEntry || len(messages) == maxEntryMessages) {
					break
				}
				messages = append(messages, m)
			}
			epoch, upTo = o.epoch, o.made-uint64(len(o.queue)-len(messages))
		}
		o.mu.Unlock()
		if len(messages) > 0 {
			return messages, epoch, upTo, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, 0, ctx.Err()
		}
	}
}

// confirm says that messages of an epoch are in the log, up to a number.
func (o *outbox) confirm(epoch, upTo uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := o.made - uint64(len(o.queue)) // made before those in the queue
	if epoch != o.epoch || upTo <= first {
		return
	}
	n := int(upTo - first)
	for _, m := range o.queue[:n] {
		o.bytes -= m.Size()
	}
	o.queue = o.queue[n:]
	if upTo >= o.barrier {
		o.stored = upTo
	}
	o.failed = nil
	o.signal()
}

// current reports whether an epoch is still written to.
func (o *outbox) current(epoch uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.epoch == epoch && !o.held
}

func (o *outbox) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = err
}

// unsent reports whether something is not in the log.
func (o *outbox) unsent() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue) > 0
}

// flush waits until all that was made so far is in the log.
func (o *outbox) flush(ctx, closed context.Context) error {
	o.mu.Lock()
	made := o.made
	o.mu.Unlock()
	for {
		o.mu.Lock()
		stored, changed, why := o.stored, o.changed, o.failed
		o.mu.Unlock()
		if stored >= made {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if why != nil {
				return failed(CodeStorage, why, "changes are not in the log")
			}
			return ctx.Err()
		case <-closed.Done():
			return failed(CodeStorage, nil, "the document was closed before all changes were in the log")
		}
	}
}
