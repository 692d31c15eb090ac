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

// publish brings what is made to the log, one entry after the other: while one is on its way others gather for
// the next. So entries of one writer are in the log in their order, whatever breaks.
func (d *Document) publish() {
	defer d.done.Done()
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

// maxSpoilt is how often an entry that was read back as a bad one is sent again.
const maxSpoilt = 1

// deliver puts an entry into the log and waits until it has come back from there. It returns false if the epoch
// ended before.
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
		sequence, err := d.send(entry)
		switch {
		case errors.Is(err, nats.ErrMaxPayload):
			return d.deliverBySnapshot(epoch, err)
		case err == nil:
			switch d.place.passed(d.ctx, sequence, generation, func() bool { return !d.outbox.current(epoch) }) {
			case passedWell:
				return true
			case passedBad:
				// It is not what was sent, or more than an entry may have. Under another id it is stored again.
				if spoilt++; spoilt > maxSpoilt {
					return d.deliverBySnapshot(epoch, errSpoilt)
				}
				entry.Header.Set(nats.MsgIdHdr, entryID(d.writer, n)+"/"+nats.NewInbox())
			}
		default:
			d.outbox.fail(err)
			d.log.Warn("changes of a document are not in the log yet; trying again", "error", err)
		}
		retry.Pause(d.ctx)
	}
	return false
}

// Why something is not brought by entries.
var (
	errTooLarge = errors.New("it is too large for an entry")
	errTooMany  = errors.New("too much has waited for the server")
	errSpoilt   = errors.New("its entries cannot be read back")
)

// entryBody returns the body of an entry with messages.
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

// deliverBySnapshot is for what no entry can have: the others get it with a snapshot.
func (d *Document) deliverBySnapshot(epoch uint64, why error) bool {
	d.log.Info("changes are not brought by an entry of the log but with a snapshot", "because", why)
	retry := wait.Backoff{First: firstPause, Most: maxPause}
	for d.ctx.Err() == nil && d.outbox.current(epoch) {
		err := d.ask(d.ctx, d.snapshotOf)
		if err == nil {
			return true
		}
		d.outbox.fail(err)
		retry.Pause(d.ctx)
	}
	return false
}

// send stores one entry and returns its sequence.
func (d *Document) send(entry *nats.Msg) (sequence uint64, err error) {
	// Unlike a request's, such a message's wait ends when the connection does.
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

// place is how far the follower has read the log.
type place struct {
	mu       sync.Mutex
	sequence uint64
	times    uint64          // how often it was gone back to
	bad      map[uint64]bool // the newest entries that could not be read
	changed  chan struct{}
}

const maxBad = 256

func newPlace() *place { return &place{bad: map[uint64]bool{}, changed: make(chan struct{})} }

func (p *place) signal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// at returns the sequence of the last entry that was read.
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
	p.signal()
}

// anew says that the log is read after a break, maybe another log.
func (p *place) anew() {
	p.mu.Lock()
	p.times++
	clear(p.bad)
	p.mu.Unlock()
	p.signal()
}

func (p *place) generation() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.times
}

// What became of an entry.
type passage int

const (
	passedNot passage = iota // it may not be in the log any more
	passedWell
	passedBad
)

// passed waits until an entry was read, or the log is read anew, or it is over.
func (p *place) passed(ctx context.Context, sequence, generation uint64, over func() bool) passage {
	var was passage
	// An error says that nobody wants to know any more.
	_ = p.wait(ctx, ctx, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case p.bad[sequence]:
			was = passedBad
		case p.sequence >= sequence:
			was = passedWell
		default:
			return p.times != generation || over()
		}
		return true
	})
	return was
}

// wait returns when a condition holds, which is looked at after each change.
func (p *place) wait(ctx, closed context.Context, holds func() bool) error {
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if holds() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-closed.Done():
			return failed(CodeStorage, nil, "the document is closed")
		}
	}
}
