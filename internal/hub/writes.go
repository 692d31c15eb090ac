package hub

import (
	"context"

	"golang.org/x/sync/semaphore"
)

const (
	// smallWrite is the size of tasks whose writes need no reservation.
	smallWrite = 32 << 10
	// maxWrites bounds the content of the large tasks that are being written at the same time. A write holds several
	// times its size: encoded, in the connection to the store, and in the store.
	maxWrites = 4 << 20
)

// isLarge reports whether the task's writes need a reservation.
func (t *task) isLarge() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes > smallWrite
}

func newWrites() *semaphore.Weighted { return semaphore.NewWeighted(maxWrites) }

// reserveWrite blocks until a task with that many bytes of content may be encoded and written. The caller must call
// written after that. It may hold no task's lock: others need it to complete their writes.
func (h *Hub) reserveWrite(ctx context.Context, size int) (written func(), err error) {
	if size <= smallWrite {
		return func() {}, nil
	}
	held := min(int64(size), maxWrites)
	if err := h.writes.Acquire(ctx, held); err != nil {
		return nil, err
	}
	return func() { h.writes.Release(held) }, nil
}
