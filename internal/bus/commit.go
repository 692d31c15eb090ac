package bus

import (
	"context"
	"sync"
)

// A syncer syncs everything written below a directory.
type syncer interface {
	Sync() error
	Close() error
}

// A committer lets concurrent callers share one sync (group commit): while one sync runs, new callers wait for the
// next one. A caller's sync always starts after the call, so it covers everything written before.
type committer struct {
	syncer syncer

	mu     sync.Mutex
	next   *commitBatch // the callers that wait for the next sync; nil without callers
	failed error        // set once by sync
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

// commit returns after a sync that started after the call. The end of ctx ends the wait and not the sync.
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
		c.wake <- struct{}{} // never blocks: one token per batch, and run has taken that of the last batch
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

// sync syncs once. An error is final: the kernel marks pages that it could not write as clean, so
// a later sync would succeed without their data.
func (c *committer) sync() error {
	err := c.syncer.Sync()
	if err == nil {
		return nil
	}
	failure := errorf(CodeStorage, err, checkDisk,
		"the disk did not store the bus's data")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = failure
	return failure
}

// err returns the final error, nil if there was none.
func (c *committer) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// close completes the waiting commits, then closes the syncer.
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

// openCommitter selects the effective mode. The fast mode has a committer too: new streams and
// the shutdown are synced in every mode.
func (b *Bus) openCommitter(cfg Config) {
	b.asked, b.mode = cfg.Durability, cfg.Durability
	s, err := cfg.openSyncer(b.dir)
	if err == nil {
		b.commits = newCommitter(s)
		return
	}
	if b.mode != DurabilityCommit {
		return
	}
	b.mode, b.degraded = DurabilityAlways, err
	b.log.Warn("the store's filesystem does not support syncfs: the server syncs every write instead, which is slower",
		"asked", b.asked, "durability", b.mode, "reason", err)
}
