package documents

import (
	"context"
	"sync"

	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
)

// attachment is the link of a document with another process's replica.
type attachment struct {
	detach func()
}

// Attach links the document with an agent's replica; the agent's role decides what passes. While the store is
// unavailable, the agent's messages wait, which blocks only its own channel. Detach is idempotent.
func (d *Document) Attach(l replica.Link) (detach func(), err error) {
	if err := d.beginEdit(); err != nil {
		return nil, err
	}
	defer d.gate.RUnlock()
	end, err := d.Replica.Attach(bufferedLink{l, d})
	if err != nil {
		return nil, err
	}
	a := new(attachment)
	a.detach = sync.OnceFunc(func() {
		end()
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.attached, a)
	})
	d.mu.Lock()
	d.attached[a] = struct{}{}
	d.mu.Unlock()
	return a.detach, nil
}

// bufferedLink is a link that delivers messages only while the document's queue has room.
type bufferedLink struct {
	replica.Link
	d *Document
}

// Claim implements [replica.Claimer].
func (l bufferedLink) Claim(wants func(*envelope.Envelope) bool, h channel.Handler) (remove func()) {
	return replica.Claim(l.Link, wants, func(ctx context.Context, e *envelope.Envelope) {
		if l.d.changed.Until(ctx, l.d.ctx.Done(), func() bool { return l.d.checkQueue() == nil }) {
			h(ctx, e)
		}
	})
}
