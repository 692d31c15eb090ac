// Package clock tells the time at the price of the cheapest clock there is, for
// what happens a million times a second.
package clock

import (
	"sync/atomic"
	"time"
)

// Nano returns a monotonic time in nanoseconds, for durations.
func Nano() int64 { return int64(time.Since(base)) }

var base = time.Now()

// mark is a moment on both clocks.
type mark struct{ nano, unixMicro int64 }

var last atomic.Pointer[mark]

// stale is how long the wall clock is carried on by the monotonic one.
const stale = 5 * int64(time.Millisecond)

// UnixMilli returns the wall clock's time in Unix milliseconds. A change of the
// wall clock shows after 5 ms at the latest.
func UnixMilli() int64 { return UnixMilliAt(Nano()) }

// UnixMilliAt is UnixMilli for one who has just called Nano.
func UnixMilliAt(nano int64) int64 {
	m := last.Load()
	// Between bubbles of testing/synctest, which have clocks of their own, the
	// difference is large, either way.
	if m == nil || nano < m.nano || nano-m.nano > stale {
		now := time.Now()
		m = &mark{nano: int64(now.Sub(base)), unixMicro: now.UnixMicro()}
		last.Store(m)
		nano = m.nano
	}
	return (m.unixMicro + (nano-m.nano)/1000) / 1000
}
