package sealed

import (
	"context"
	"sync"

	"github.com/parleyhub/parley/transport"
)

// Backlog is a listener's queue of connections that wait for Accept, with the goroutines that open them.
// Create it with [NewBacklog]. It is safe for concurrent use.
type Backlog struct {
	ctx    context.Context
	cancel context.CancelFunc
	queue  chan *Conn

	mu   sync.Mutex
	over bool
	wg   sync.WaitGroup
}

// NewBacklog returns a backlog with room for size connections.
func NewBacklog(size int) *Backlog {
	b := &Backlog{queue: make(chan *Conn, size)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Context returns a context that ends when the listener closes.
func (b *Backlog) Context() context.Context { return b.ctx }

// Go runs f in a goroutine that Close waits for. It reports false, without running f, once the listener has
// closed.
func (b *Backlog) Go(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return false
	}
	b.wg.Go(f)
	return true
}

// Put queues a connection. It blocks while the queue is full. Once the listener has closed it aborts the
// connection.
func (b *Backlog) Put(c *Conn) {
	select {
	case b.queue <- c:
	case <-b.ctx.Done():
		c.Abort()
	}
}

// Accept implements [transport.Listener].
func (b *Backlog) Accept(ctx context.Context) (transport.Conn, error) {
	if b.ctx.Err() != nil {
		return nil, transport.ErrClosed("the listener", nil)
	}
	select {
	case c := <-b.queue:
		return c, nil
	case <-b.ctx.Done():
		return nil, transport.ErrClosed("the listener", nil)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// End unblocks Accept and Put. It does not wait; Close does.
func (b *Backlog) End() {
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	b.cancel()
}

// Close ends the backlog, waits for its goroutines and aborts the connections that were never accepted. It
// may be called more than once.
func (b *Backlog) Close() {
	b.End()
	b.wg.Wait()
	for {
		select {
		case c := <-b.queue:
			c.Abort()
		default:
			return
		}
	}
}
