package documents

import (
	"context"
	"sync"

	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
)

// seat is the place of another process's replica at a document.
type seat struct {
	d      *Document
	detach func()
	once   sync.Once
}

// Attach links the document with an agent's replica, as far as the agent has a role. What the
// agent sends waits while the store does not take changes, which slows it down
// and nobody else.
func (d *Document) Attach(l replica.Link) (detach func(), err error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.gate.RUnlock()
	s := &seat{d: d}
	s.detach, err = d.Replica.Attach(patient{l, d})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.seats[s] = struct{}{}
	d.mu.Unlock()
	return s.leave, nil
}

// leave ends the link. More calls do nothing.
func (s *seat) leave() {
	s.once.Do(func() {
		s.detach()
		s.d.mu.Lock()
		delete(s.d.seats, s)
		s.d.mu.Unlock()
	})
}

// patient is a link that hands on what arrives only while the store has room.
type patient struct {
	replica.Link
	d *Document
}

// OnMessage implements [replica.Link].
func (p patient) OnMessage(h channel.Handler) (remove func()) {
	return p.Link.OnMessage(func(ctx context.Context, e *envelope.Envelope) {
		if p.d.awaitRoom(ctx) {
			h(ctx, e)
		}
	})
}

// awaitRoom waits until the queue for the log has room. It reports false if ctx or the
// document ends first.
func (d *Document) awaitRoom(ctx context.Context) bool {
	for {
		d.mu.Lock()
		room, changed := d.queued <= maxQueued, d.changed
		d.mu.Unlock()
		if room {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-d.ctx.Done():
			return false
		}
	}
}
