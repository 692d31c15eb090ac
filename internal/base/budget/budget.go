// Package budget bounds the memory that concurrent operations hold together. An operation reserves bytes before it uses
// them, waits a moment if others have them, and fails rather than exceeds the bound.
package budget

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// ErrSpent is returned when others hold the bytes for longer than an operation may wait.
var ErrSpent = errors.New("the memory for requests is in use")

// Budget is a number of bytes that operations share. It is safe for concurrent use.
type Budget struct {
	total    int64
	patience time.Duration
	free     *semaphore.Weighted
}

// New returns a budget of total bytes, for which an operation waits at most patience.
func New(total int64, patience time.Duration) *Budget {
	return &Budget{total: total, patience: patience, free: semaphore.NewWeighted(total)}
}

// Total returns the size of the budget in bytes.
func (b *Budget) Total() int64 { return b.total }

// Acquire reserves bytes, the whole budget if it is smaller. It blocks until they are free, in the order of the calls; it
// fails with ErrSpent when that takes too long, and with the context's error when ctx ends first.
func (b *Budget) Acquire(ctx context.Context, bytes int64) (*Share, error) {
	bytes = min(max(bytes, 0), b.total)
	if b.free.TryAcquire(bytes) { // also when the patience would end before the wait begins, on a busy computer
		return &Share{budget: b, bytes: bytes}, nil
	}
	waiting, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	err := b.free.Acquire(waiting, bytes)
	switch {
	case err == nil:
		return &Share{budget: b, bytes: bytes}, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, ErrSpent
}

// Share is what one operation has reserved. Its owner must release it. A nil Share holds nothing.
type Share struct {
	budget *Budget
	mu     sync.Mutex
	bytes  int64
}

// Shrink gives back what exceeds bytes.
func (s *Share) Shrink(bytes int64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes = max(bytes, 0); bytes < s.bytes {
		s.budget.free.Release(s.bytes - bytes)
		s.bytes = bytes
	}
}

// shareKey is the context's key of a held.
type shareKey struct{}

type held struct {
	share   *Share
	remains int64
}

// WithShare returns a context with the share of a request, of which remains bytes stay in use when its content is stored.
func WithShare(ctx context.Context, s *Share, remains int64) context.Context {
	if s == nil {
		return ctx
	}
	return context.WithValue(ctx, shareKey{}, held{s, remains})
}

// Stored gives back what the request of a context needs no longer, because its content is decoded and stored.
func Stored(ctx context.Context) {
	if h, ok := ctx.Value(shareKey{}).(held); ok {
		h.share.Shrink(h.remains)
	}
}

// Release gives back all bytes. Further calls do nothing.
func (s *Share) Release() { s.Shrink(0) }
