package wait

import "context"

// Backlog is a listener's queue of connections that wait for Accept, with the
// goroutines that open them. Create it with [NewBacklog]. It is safe for concurrent use.
type Backlog[C any] struct {
	Group
	ctx    context.Context
	cancel context.CancelFunc
	queue  chan C
	drop   func(C)
	closed func() error
}

// NewBacklog returns a backlog with room for size connections that closes when ctx ends. It calls drop with each
// connection that nobody will accept; closed returns the error of Accept after the end.
func NewBacklog[C any](ctx context.Context, size int, drop func(C), closed func() error) *Backlog[C] {
	b := &Backlog[C]{queue: make(chan C, size), drop: drop, closed: closed}
	b.ctx, b.cancel = context.WithCancel(ctx)
	return b
}

// Context returns a context that ends when the listener closes.
func (b *Backlog[C]) Context() context.Context { return b.ctx }

// Offer queues a connection if there is room, and reports whether there was.
func (b *Backlog[C]) Offer(c C) bool {
	select {
	case b.queue <- c:
		return true
	default:
		return false
	}
}

// Put queues a connection. It blocks while the queue is full. If meanwhile ctx ends, or
// the listener has closed, it drops the connection and reports false. It may be called
// while Close runs: a connection that Close no longer sees is dropped here.
func (b *Backlog[C]) Put(ctx context.Context, c C) bool {
	if b.ctx.Err() != nil {
		b.drop(c)
		return false
	}
	if !b.Offer(c) {
		select {
		case b.queue <- c:
		case <-ctx.Done():
			b.drop(c)
			return false
		case <-b.ctx.Done():
			b.drop(c)
			return false
		}
	}
	if b.ctx.Err() == nil {
		return true
	}
	b.empty() // it may have ended before c was queued
	return false
}

// Accept returns the next connection. It blocks until there is one, ctx ends or the listener closes.
func (b *Backlog[C]) Accept(ctx context.Context) (c C, err error) {
	if b.ctx.Err() != nil {
		return c, b.closed()
	}
	select {
	case c = <-b.queue:
		return c, nil
	case <-b.ctx.Done():
		return c, b.closed()
	case <-ctx.Done():
		return c, ctx.Err()
	}
}

// End unblocks Accept and Put. It does not wait; Close does.
func (b *Backlog[C]) End() {
	b.Stop()
	b.cancel()
}

// Close ends the backlog, waits for its goroutines and drops the connections that were
// never accepted. It may be called more than once.
func (b *Backlog[C]) Close() {
	b.End()
	b.Wait()
	b.empty()
}

// empty drops the connections in the queue.
func (b *Backlog[C]) empty() {
	for {
		select {
		case c := <-b.queue:
			b.drop(c)
		default:
			return
		}
	}
}
