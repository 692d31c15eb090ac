package natslog

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/base/wait"
)

// Pauses between two attempts.
const (
	firstPause     = 50 * time.Millisecond
	maxPause       = 5 * time.Second
	requestTimeout = 5 * time.Second
)

// publish appends changes to the log, one entry at a time; further changes collect for the next entry. So
// the entries of one writer are in order even after failures.
func (d *Document) publish() {
	for n := uint64(1); ; n++ {
		first, epoch, err := d.outbox.next(d.ctx)
		if err != nil {
			return
		}
		if d.deliver(first, epoch, n) {
			d.outbox.confirm(epoch, first[len(first)-1].number)
		}
	}
}

// maxSpoilt is how often an entry that could not be decoded when read back is sent again.
const maxSpoilt = 1

// deliver appends an entry to the log and waits until the follower has read it. It returns false if the
// epoch ended before.
func (d *Document) deliver(first []outgoing, epoch, n uint64) bool {
	body, err := entryBody(first)
	if err != nil {
		return d.deliverBySnapshot(epoch, err)
	}
	entry := newEntry(d.options.subject(d.options.Document, epoch), d.options.Agent, entryID(d.writer, n), kindUpdates, body)
	spoilt := 0
	retry := wait.Backoff{First: firstPause, Most: maxPause}
	for d.ctx.Err() == nil && d.outbox.current(epoch) {
		generation := d.place.generation()
		sequence, err := d.append(entry)
		switch {
		case errors.Is(err, nats.ErrMaxPayload):
			return d.deliverBySnapshot(epoch, err)
		case err == nil:
			switch read, bad := d.place.passed(d.ctx, sequence, generation, func() bool { return !d.outbox.current(epoch) }); {
			case read:
				return true
			case bad:
				// It was altered or exceeds a limit. Under another id it is stored again.
				if spoilt++; spoilt > maxSpoilt {
					return d.deliverBySnapshot(epoch, errSpoilt)
				}
				entry.Header.Set(nats.MsgIdHdr, entryID(d.writer, n)+"/"+nats.NewInbox())
			}
		default:
			d.outbox.fail(err)
			d.log.Warn("changes of a document could not be stored in the log; retrying", "error", err)
		}
		retry.Pause(d.ctx)
	}
	return false
}

// Reasons for storing changes in a snapshot instead of an entry.
var (
	errTooLarge = errors.New("a change is too large for an entry")
	errTooMany  = errors.New("too many changes have waited for the server")
	errSpoilt   = errors.New("the entries cannot be decoded when read back")
)

// entryBody returns the body of an entry.
func entryBody(first []outgoing) (body []byte, err error) {
	for _, x := range first {
		switch {
		case x.message == nil:
			return nil, errTooMany
		case len(x.message.Payload) > maxMessage:
			return nil, errTooLarge
		}
		if body, err = appendMessage(body, x.message); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// deliverBySnapshot stores a snapshot with changes that cannot be in an entry.
func (d *Document) deliverBySnapshot(epoch uint64, why error) bool {
	d.log.Info("changes are stored in a snapshot instead of an entry of the log", "because", why)
	retry := wait.Backoff{First: firstPause, Most: maxPause}
	for d.ctx.Err() == nil && d.outbox.current(epoch) {
		err := d.ask(d.ctx, func(ctx context.Context) error { return d.snapshot(ctx, true, 1) })
		if err == nil {
			return true
		}
		d.outbox.fail(err)
		retry.Pause(d.ctx)
	}
	return false
}

// append appends one entry and returns its sequence.
func (d *Document) append(entry *nats.Msg) (sequence uint64, err error) {
	// Unlike a request, this ends when the connection does.
	future, err := d.js.PublishMsgAsync(entry)
	if err != nil {
		return 0, err
	}
	patience := time.NewTimer(requestTimeout)
	defer patience.Stop()
	select {
	case ack := <-future.Ok():
		return ack.Sequence, nil
	case err := <-future.Err():
		return 0, err
	case <-patience.C:
		return 0, context.DeadlineExceeded
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
}

// place is the follower's position in the log.
type place struct {
	mu       sync.Mutex
	sequence uint64
	times    uint64          // how often reading was restarted
	bad      map[uint64]bool // the latest entries that could not be decoded
	changed  wait.Signal
}

const maxBad = 256

// at returns the sequence of the last entry read.
func (p *place) at() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sequence
}

func (p *place) set(sequence uint64, bad bool) {
	p.mu.Lock()
	p.sequence = sequence
	if bad {
		if len(p.bad) >= maxBad {
			clear(p.bad)
		}
		p.bad[sequence] = true
	}
	p.mu.Unlock()
	p.changed.Send()
}

// restarted records that the log is read after a break; it may be a different log.
func (p *place) restarted() {
	p.mu.Lock()
	p.times++
	clear(p.bad)
	p.mu.Unlock()
	p.changed.Send()
}

func (p *place) generation() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.times
}

// passed waits until an entry is read, or is found bad, or reading restarts, or over reports true.
func (p *place) passed(ctx context.Context, sequence, generation uint64, over func() bool) (read, bad bool) {
	p.changed.Until(ctx, nil, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		bad = p.bad[sequence]
		read = !bad && p.sequence >= sequence
		return read || bad || p.times != generation || over()
	})
	return read, bad
}
