package agentnet

import (
	"sync"
	"time"
)

// timestampFormat is ISO 8601 in UTC with milliseconds.
const timestampFormat = "2006-01-02T15:04:05.000Z"

// timestamp writes a time as all records have it.
func timestamp(t time.Time) string { return t.UTC().Format(timestampFormat) }

// parseTime reads any ISO 8601 time; the zero time if it is none.
func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t
}

// clock is the server's time, carried on by the process's monotonic clock:
// computers of one network agree on it whatever their own clocks say. Until it
// is set it is the process's own.
type clock struct {
	own func() time.Time

	mu     sync.Mutex
	server time.Time // at the moment own was measured
	at     time.Time
	unsure time.Duration // how much it may be off
}

// sharp is how unsure a clock may be without being asked again.
const sharp = 100 * time.Millisecond

// set notes that it was server between before and after. An answer that was long
// on its way, as of a server that was suspended, does not replace a better one.
func (c *clock) set(server, before, after time.Time) {
	half := after.Sub(before) / 2
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.server.IsZero() && half > max(c.unsure, sharp) {
		return
	}
	c.server, c.at, c.unsure = server, before.Add(half), half
}

// blurred says that the clock may be off by more than others can bear with.
func (c *clock) blurred() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unsure > sharp
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server.IsZero() {
		return c.own().UTC()
	}
	return c.server.Add(c.own().Sub(c.at)).UTC()
}
