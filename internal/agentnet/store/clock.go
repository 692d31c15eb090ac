package store

import (
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/clock"
)

// TimestampFormat is ISO 8601 in UTC with milliseconds.
const TimestampFormat = "2006-01-02T15:04:05.000Z"

// Timestamp formats a time as all records have it.
func Timestamp(t time.Time) string { return t.UTC().Format(TimestampFormat) }

// ParseTime reads any ISO 8601 time; it returns the zero time if text is none.
func ParseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t
}

// Clock is the server's time, so that the computers of a network agree on it. The process's monotonic clock advances it;
// for a server on this computer its wall clock does, so that the Clock is set when the server's is. Until it is measured it
// is the process's own. It is safe for concurrent use.
type Clock struct {
	own func() time.Time
	set func() time.Duration // see clock.Set

	mu     sync.Mutex
	local  bool      // the server is on this computer
	server time.Time // at the moment own was measured
	at     time.Time
	setAt  time.Duration // by how much the computer's clock had been set then
	unsure time.Duration // the largest possible error
}

// maxUnsure is the error of a clock that needs no better measurement.
const maxUnsure = 100 * time.Millisecond

// NewClock returns a clock that own advances. set is [clock.Set] where it is nil.
func NewClock(own func() time.Time, set func() time.Duration) *Clock {
	if set == nil {
		set = clock.Set
	}
	return &Clock{own: own, set: set}
}

// Set notes that it was server between before and after, at a server on this computer or another one. A slow answer, as of a
// suspended server, does not replace a better one, unless the server's clock was set since.
func (c *Clock) Set(server, before, after time.Time, local bool) {
	half := after.Sub(before) / 2
	at := before.Add(half)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.server.IsZero() && half > max(c.unsure, maxUnsure) && c.timeAt(at).Sub(server).Abs() <= half+c.unsure {
		return
	}
	c.local, c.server, c.at, c.setAt, c.unsure = local, server, at, c.set(), half
}

// Outdated reports whether this computer's clock was set since the time was measured, or the computer has slept, and the server's
// time has to be measured again for that.
func (c *Clock) Outdated() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.server.IsZero() && !c.local && (c.set()-c.setAt).Abs() >= clock.MinSet
}

// imprecise reports whether the clock should be measured again.
func (c *Clock) imprecise() bool { return c.Unsure() > maxUnsure }

// Unsure returns the largest possible error of the time.
func (c *Clock) Unsure() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unsure
}

// Now returns the server's time, in UTC.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server.IsZero() {
		return c.own().UTC()
	}
	return c.timeAt(c.own()).UTC()
}

// timeAt returns the server's time at one of the process's own. The caller has the lock.
func (c *Clock) timeAt(own time.Time) time.Time {
	at := c.server.Add(own.Sub(c.at))
	if c.local {
		at = at.Add(c.set() - c.setAt)
	}
	return at
}
