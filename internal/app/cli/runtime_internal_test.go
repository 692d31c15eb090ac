package cli

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// Not parallel: it is a setting of the whole process.
func TestAnMCPServerUsesOneProcessorAfterItsStart(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for name, c := range map[string]struct {
		set, stopped bool
		want         int
	}{
		"usually":                          {want: 1},
		"if the environment says how many": {set: true, want: 2},
		"if it has ended before that":      {stopped: true, want: 2},
	} {
		runtime.GOMAXPROCS(2)
		synctest.Test(t, func(t *testing.T) {
			stop := useOneProcessor(func(name string) (string, bool) { return "2", c.set && name == "GOMAXPROCS" })
			defer stop()
			if c.stopped {
				stop()
			}
			time.Sleep(mcpStart - time.Nanosecond)
			if n := runtime.GOMAXPROCS(0); n != 2 {
				t.Errorf("%s: %d processors during the start", name, n)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if n := runtime.GOMAXPROCS(0); n != c.want {
				t.Errorf("%s: %d processors, want %d", name, n, c.want)
			}
		})
	}
}
