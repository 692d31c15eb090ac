package natslog

import (
	"context"
	"slices"
	"sync"

	"github.com/parleyhub/parley/crdt/replica"
)

// maxBacklog bounds what waits for the server, in bytes; edits are refused beyond it.
const maxBacklog = 32 << 20

// outbox has what goes to the log, until it has come back from there.
type outbox struct {
	mu      sync.Mutex
	epoch   uint64
	queue   []outgoing // not confirmed, in their order
	bytes   int
	made    uint64        // messages that were queued so far
	stored  uint64        // of them, that are in the log before the end of their epoch
	barrier uint64        // stored does not move until it gets there
	lost    uint64        // of them, up to which some were left behind with an epoch
	held    bool          // nothing is sent at the moment
	changed chan struct{} // closed and made anew at each change
	failed  error         // why the server does not take entries
}

// outgoing is a message and its number. Without a message it stands for all up to that number, which have become
// too many for entries: a snapshot takes them.
type outgoing struct {
	number  uint64
	message *replica.Message
}

func newOutbox(epoch uint64) *outbox { return &outbox{epoch: epoch, changed: make(chan struct{})} }

// signal wakes who waits; the lock is held.
func (o *outbox) signal() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// put queues a message; it never blocks. Those of a former epoch make room: what they have was carried over, and
// follows. What comes by channels cannot be refused: beyond a bound it is not kept a second time beside the document.
func (o *outbox) put(m *replica.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turn(m.Epoch)
	o.made++
	o.queue = append(o.queue, outgoing{o.made, m})
	if o.bytes += m.Size(); o.bytes > 2*maxBacklog {
		o.queue, o.bytes = []outgoing{{number: o.made}}, 0
	}
	o.signal()
}

// turn goes on to an epoch; the lock is held.
func (o *outbox) turn(epoch uint64) {
	if o.epoch == epoch {
		return
	}
	o.epoch, o.queue, o.bytes = epoch, nil, 0
}

// resume goes on in an epoch: who waits for what was made so far waits for what was carried over. lost says that
// not all was.
func (o *outbox) resume(epoch uint64, lost bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turn(epoch)
	o.held = false
	o.barrier = o.made
	if lost {
		o.lost = o.made
	}
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

// next waits for something to send, and returns the first that fit into an entry.
func (o *outbox) next(ctx context.Context) (first []outgoing, epoch uint64, err error) {
	for ctx.Err() == nil {
		o.mu.Lock()
		changed := o.changed
		if first, epoch = o.first(), o.epoch; o.held {
			first = nil
		}
		o.mu.Unlock()
		if len(first) > 0 {
			return first, epoch, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil, 0, ctx.Err()
}

// first returns the first that fit into an entry; the lock is held.
func (o *outbox) first() []outgoing {
	size := 0
	for i, x := range o.queue {
		if x.message == nil {
			return o.queue[:max(i, 1):max(i, 1)]
		}
		if size += x.message.Size(); i > 0 && (size > maxEntry || i == maxEntryMessages) {
			return o.queue[:i:i]
		}
	}
	return slices.Clip(o.queue)
}

// confirm says that what was made in an epoch up to a number is in the log.
func (o *outbox) confirm(epoch, upTo uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if epoch != o.epoch || len(o.queue) == 0 || o.queue[0].number > upTo {
		return
	}
	for len(o.queue) > 0 && o.queue[0].number <= upTo {
		if m := o.queue[0].message; m != nil {
			o.bytes -= m.Size()
		}
		o.queue[0] = outgoing{} // the array outlives it
		o.queue = o.queue[1:]
	}
	if len(o.queue) == 0 {
		o.queue = nil
	}
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
		stored, lost, changed, why := o.stored, o.lost, o.changed, o.failed
		o.mu.Unlock()
		switch {
		case lost > 0 && made <= lost:
			return failed(CodeLost, nil, "changes were left behind with an epoch that is over: the application has them, see Update.Left")
		case stored >= made:
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
