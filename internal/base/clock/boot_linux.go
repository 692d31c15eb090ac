package clock

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Boot identifies the run of the computer's system, and returns how long it runs, also asleep. ok is false if that is not known.
func Boot() (id string, length time.Duration, ok bool) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", 0, false
	}
	var at unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &at) != nil {
		return "", 0, false
	}
	return strings.TrimSpace(string(data)), time.Duration(at.Nano()), true
}
