package natslog

import (
	"context"
	"slices"
	"sync"

	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/base/wait"
)

// maxBacklog bounds the bytes that wait for the server; edits fail beyond it.
const maxBacklog = 32 << 20

// outbox holds changes until the follower has read them in the log.
type outbox struct {
	mu      sync.Mutex
	epoch   uint64
	queue   []outgoing // unconfirmed, in order
	bytes   int
	made    uint64 // messages queued so far
	stored  uint64 // messages in the log before the end of their epoch
	barrier uint64 // stored does not change until this number is confirmed
	lost    uint64 // number up to which some messages were lost with an epoch
	held    bool   // sending is suspended
	changed wait.Signal
	failed  error // the server's last error
}

// outgoing is a numbered message. Without a message it represents all up to its number, which were too many
// for entries and are stored in a snapshot.
type outgoing struct {
	number  uint64
	message *replica.Message
}

// put queues a message; it never blocks. Messages of a former epoch are dropped: their content is carried
// over. Changes received over channels cannot be refused: beyond a limit only the document keeps them.
func (o *outbox) put(m *replica.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turn(m.Epoch)
	o.made++
	o.queue = append(o.queue, outgoing{o.made, m})
	if o.bytes += m.Size(); o.bytes > 2*maxBacklog {
		o.queue, o.bytes = []outgoing{{number: o.made}}, 0
	}
	o.changed.Send()
}

// turn begins an epoch; the lock is held.
func (o *outbox) turn(epoch uint64) {
	if o.epoch == epoch {
		return
	}
	o.epoch, o.queue, o.bytes = epoch, nil, 0
}

// resume continues in an epoch: flush then waits for what was carried over. lost reports that some edits were not.
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
	o.changed.Send()
}

// hold suspends sending until resume.
func (o *outbox) hold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = true
}

// room returns an error if too much is queued.
func (o *outbox) room() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes > maxBacklog {
		return failed(CodeFull, o.failed, "too much waits for the server: %d bytes", o.bytes)
	}
	return nil
}

// next waits for messages to send, and returns as many as fit into an entry.
func (o *outbox) next(ctx context.Context) (first []outgoing, epoch uint64, err error) {
	o.changed.Until(ctx, nil, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		if first, epoch = o.first(), o.epoch; o.held {
			first = nil
		}
		return len(first) > 0
	})
	if ctx.Err() != nil {
		return nil, 0, ctx.Err()
	}
	return first, epoch, nil
}

// first returns the first messages, as many as fit into an entry; the lock is held.
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

// confirm records that the messages of an epoch up to a number are in the log.
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
		o.queue[0] = outgoing{} // free the message
		o.queue = o.queue[1:]
	}
	if len(o.queue) == 0 {
		o.queue = nil
	}
	if upTo >= o.barrier {
		o.stored = upTo
	}
	o.failed = nil
	o.changed.Send()
}

// current reports whether messages of an epoch are still sent.
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

// unsent reports whether any message is not in the log.
func (o *outbox) unsent() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue) > 0
}

// flush blocks until everything queued so far is in the log.
func (o *outbox) flush(ctx, closed context.Context) error {
	o.mu.Lock()
	made := o.made
	o.mu.Unlock()
	var lost bool
	var why error
	stored := o.changed.Until(ctx, closed.Done(), func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		lost, why = o.lost > 0 && made <= o.lost, o.failed
		return lost || o.stored >= made
	})
	switch {
	case lost:
		return failed(CodeLost, nil, "changes were lost with an epoch that is over: the application has them, see Update.Left")
	case stored:
		return nil
	case ctx.Err() == nil:
		return failed(CodeStorage, nil, "the document was closed before all changes were in the log")
	case why != nil:
		return failed(CodeStorage, why, "changes are not in the log")
	}
	return ctx.Err()
}
