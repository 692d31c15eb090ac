// Package wait has what goroutines wait with: pauses that a context ends, growing pauses between the attempts of a
// retry, a signal for all who wait, groups of goroutines, the backlog of a listener, and Eventually for tests.
package wait

import (
	"cmp"
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Pause blocks for d, and reports false if ctx ended before.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// Backoff gives the pauses between attempts: each is twice as long as the one
// before, up to Most. A Backoff belongs to one goroutine.
type Backoff struct {
	Most   time.Duration
	First  time.Duration // 0 means 50 ms
	Jitter float64       // the part by which a pause may be longer or shorter; 0 means a tenth

	pauses *backoff.ExponentialBackOff
}

// Next returns how long to wait before the next attempt.
func (b *Backoff) Next() time.Duration {
	if b.pauses == nil {
		first := min(cmp.Or(b.First, 50*time.Millisecond), b.Most)
		b.pauses = &backoff.ExponentialBackOff{InitialInterval: first, MaxInterval: b.Most, Multiplier: 2, RandomizationFactor: cmp.Or(b.Jitter, 0.1)}
		b.pauses.Reset()
	}
	return min(b.Most, b.pauses.NextBackOff())
}

// Pause blocks for the next pause, and reports false if ctx ended before.
func (b *Backoff) Pause(ctx context.Context) bool { return Pause(ctx, b.Next()) }

// Reset makes the next pause as short as the first, after a success.
func (b *Backoff) Reset() { b.pauses = nil }

// patience is how long Eventually waits.
const patience = 2 * time.Minute

// TB is the part of testing.TB that Eventually needs.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Eventually blocks until the condition holds, and fails the test if it does not within two minutes.
func Eventually(t TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
