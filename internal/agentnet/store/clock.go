package store

import (
	"sync"
	"time"
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

// Clock is the server's time, advanced by the process's monotonic clock, so that the computers of a network agree on
// it. Until it is set it is the process's own. It is safe for concurrent use.
type Clock struct {
	own func() time.Time

	mu     sync.Mutex
	server time.Time // at the moment own was measured
	at     time.Time
	unsure time.Duration // the largest possible error
}

// maxUnsure is the error of a clock that needs no better measurement.
const maxUnsure = 100 * time.Millisecond

// NewClock returns a clock that own advances.
func NewClock(own func() time.Time) *Clock { return &Clock{own: own} }

// Set notes that it was server between before and after. A slow answer, as of a
// suspended server, does not replace a better one.
func (c *Clock) Set(server, before, after time.Time) {
	half := after.Sub(before) / 2
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.server.IsZero() && half > max(c.unsure, maxUnsure) {
		return
	}
	c.server, c.at, c.unsure = server, before.Add(half), half
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
	return c.server.Add(c.own().Sub(c.at)).UTC()
}
