package bus

import (
	"context"
	"sync"
)

// A syncer makes everything that was written below a directory durable.
type syncer interface {
	Sync() error
	Close() error
}

// A committer lets all who wait at the same time share one sync: one is in
// flight, whoever comes meanwhile gets the next. The sync that serves a caller
// always starts after the call, so it covers whatever was written before it.
type committer struct {
	syncer syncer

	mu     sync.Mutex
	next   *commitBatch // waits for its sync; nil when nobody waits
	failed error        // set once, see run
	closed bool

	wake chan struct{}
	done chan struct{}
}

type commitBatch struct {
	done chan struct{} // closed when err is set
	err  error
}

func newCommitter(s syncer) *committer {
	c := &committer{syncer: s, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go c.run()
	return c
}

// commit returns after a sync that began after the call. The end of ctx ends
// the wait, not the sync.
func (c *committer) commit(ctx context.Context) error {
	b, err := c.join()
	if err != nil {
		return err
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *committer) join() (*commitBatch, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return nil, c.failed
	}
	if c.closed {
		return nil, errClosed
	}
	if c.next == nil {
		c.next = &commitBatch{done: make(chan struct{})}
		c.wake <- struct{}{} // never blocks: one token a batch, and run took the last one with its batch
	}
	return c.next, nil
}

func (c *committer) run() {
	defer close(c.done)
	for range c.wake {
		c.mu.Lock()
		b := c.next
		c.next = nil
		err := c.failed
		c.mu.Unlock()

		if err == nil {
			err = c.sync()
		}
		b.err = err
		close(b.done)
	}
}

// sync syncs once. An error is final: the kernel marks pages that it could not
// write as clean, so that a later sync would succeed without their data.
func (c *committer) sync() error {
	err := c.syncer.Sync()
	if err == nil {
		return nil
	}
	failure := &Error{
		Code:    CodeStorage,
		Message: "the disk did not store the bus's data",
		Remedy:  "check the disk's health and free space, then restart the hub",
		Err:     err,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = failure
	return failure
}

// err returns the failure that ended syncing, nil if there was none.
func (c *committer) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// close serves who waits, then closes the syncer.
func (c *committer) close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	close(c.wake)
	c.mu.Unlock()
	<-c.done
	return c.syncer.Close()
}
