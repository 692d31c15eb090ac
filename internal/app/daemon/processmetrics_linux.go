package daemon

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/parleyhub/parley/internal/metrics"
)

// processMetrics returns what the system knows of this process, as far as it tells.
func processMetrics() (all []metrics.Family) {
	add := func(kind metrics.Kind, name, help string, value float64) {
		all = append(all, single(kind, "process_"+name, help, value))
	}
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) == nil {
		add(metrics.Counter, "cpu_seconds_total", "Processor time, user and system.", time.Duration(used.Utime.Nano()+used.Stime.Nano()).Seconds())
	}
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		add(metrics.Gauge, "max_fds", "The limit of open files.", float64(limit.Cur))
	}
	if syscall.Getrlimit(syscall.RLIMIT_AS, &limit) == nil {
		add(metrics.Gauge, "virtual_memory_max_bytes", "The limit of virtual memory.", float64(limit.Cur))
	}
	if open, err := os.ReadDir("/proc/self/fd"); err == nil {
		add(metrics.Gauge, "open_fds", "Open files.", float64(len(open)-1)) // without the directory
	}
	if pages, err := os.ReadFile("/proc/self/statm"); err == nil {
		fields := bytes.Fields(pages)
		for i, name := range []string{"virtual_memory_bytes", "resident_memory_bytes"} {
			if n, err := strconv.ParseUint(string(fields[i]), 10, 64); err == nil {
				add(metrics.Gauge, name, "Memory.", float64(n)*float64(os.Getpagesize()))
			}
		}
	}
	return append(all, startMetric())
}
