//go:build !linux

package clock

import "time"

// Boot identifies the run of the computer's system, and returns how long it runs, also asleep. ok is false: that is not known here.
func Boot() (id string, length time.Duration, ok bool) { return "", 0, false }
