// Package clock reads the time faster than package time, for events that happen a million times a second: it reads
// only the monotonic clock, and derives the wall clock from it. It also notices that the wall clock was set.
package clock

import (
	"sync/atomic"
	"time"
)

// Nano returns a monotonic time in nanoseconds since the start of the process, for durations.
func Nano() int64 { return int64(time.Since(base)) }

var base = time.Now()

// mark is one time on both clocks.
type mark struct{ nano, unixMicro int64 }

var last atomic.Pointer[mark]

// stale is how long, in nanoseconds, a mark is used to derive the wall clock.
const stale = 5 * int64(time.Millisecond)

// UnixMilli returns the wall clock's time in Unix milliseconds. It follows a change of
// the wall clock within 5 ms. It is safe for concurrent use.
func UnixMilli() int64 { return UnixMilliAt(Nano()) }

// UnixMilliAt is UnixMilli for callers that have just called Nano.
func UnixMilliAt(nano int64) int64 {
	m := last.Load()
	// Bubbles of testing/synctest have their own clocks: between them, the difference is large and may be negative.
	if m == nil || nano < m.nano || nano-m.nano > stale {
		now := time.Now()
		m = &mark{nano: int64(now.Sub(base)), unixMicro: now.UnixMicro()}
		last.Store(m)
		nano = m.nano
	}
	return (m.unixMicro + (nano-m.nano)/1000) / 1000
}
