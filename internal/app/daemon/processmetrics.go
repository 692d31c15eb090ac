package daemon

import (
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"

	"github.com/parleyhub/parley/internal/metrics"
)

// runtimeMetrics returns the state of Go's runtime, under the names that Prometheus' clients use.
func runtimeMetrics() []metrics.Family {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	threads, _ := runtime.ThreadCreateProfile(nil)
	version := metrics.Family{Name: "go_info", Help: "1, with the version of Go.", Kind: metrics.Gauge, Labels: []string{"version"}}
	version.Add(1, runtime.Version())
	all := []metrics.Family{
		version,
		{Name: "go_gc_duration_seconds", Help: "Time for which collections have stopped the process.", Kind: metrics.Summary,
			Samples: []metrics.Sample{{Count: uint64(m.NumGC), Sum: time.Duration(m.PauseTotalNs).Seconds()}}},
		single(metrics.Gauge, "go_goroutines", "Goroutines.", float64(runtime.NumGoroutine())),
		single(metrics.Gauge, "go_threads", "Threads that were created.", float64(threads)),
		single(metrics.Gauge, "go_sched_gomaxprocs_threads", "Threads that may run Go code at the same time.", float64(runtime.GOMAXPROCS(0))),
		single(metrics.Gauge, "go_gc_gomemlimit_bytes", "The soft limit of memory.", float64(debug.SetMemoryLimit(-1))),
		single(metrics.Gauge, "go_memstats_last_gc_time_seconds", "When the last collection ended.", float64(m.LastGC)/1e9),
		single(metrics.Counter, "go_memstats_alloc_bytes_total", "Bytes of objects that were allocated.", float64(m.TotalAlloc)),
		single(metrics.Counter, "go_memstats_mallocs_total", "Objects that were allocated.", float64(m.Mallocs)),
		single(metrics.Counter, "go_memstats_frees_total", "Objects that were freed.", float64(m.Frees)),
	}
	percent := []runtimemetrics.Sample{{Name: "/gc/gogc:percent"}}
	runtimemetrics.Read(percent)
	if percent[0].Value.Kind() == runtimemetrics.KindUint64 {
		all = append(all, single(metrics.Gauge, "go_gc_gogc_percent", "By how much the heap may grow between collections.", float64(percent[0].Value.Uint64())))
	}
	for _, g := range []struct {
		name, help string
		value      uint64
	}{
		{"alloc_bytes", "Bytes of objects in the heap.", m.Alloc},
		{"buck_hash_sys_bytes", "Bytes of the table of profiles.", m.BuckHashSys},
		{"gc_sys_bytes", "Bytes of the collector.", m.GCSys},
		{"heap_alloc_bytes", "Bytes of objects in the heap.", m.HeapAlloc},
		{"heap_idle_bytes", "Bytes of spans without objects.", m.HeapIdle},
		{"heap_inuse_bytes", "Bytes of spans with objects.", m.HeapInuse},
		{"heap_objects", "Objects in the heap.", m.HeapObjects},
		{"heap_released_bytes", "Bytes that were returned to the system.", m.HeapReleased},
		{"heap_sys_bytes", "Bytes of the heap.", m.HeapSys},
		{"mcache_inuse_bytes", "Bytes of caches in use.", m.MCacheInuse},
		{"mcache_sys_bytes", "Bytes of caches.", m.MCacheSys},
		{"mspan_inuse_bytes", "Bytes of descriptors of spans in use.", m.MSpanInuse},
		{"mspan_sys_bytes", "Bytes of descriptors of spans.", m.MSpanSys},
		{"next_gc_bytes", "The size of the heap at which the next collection ends.", m.NextGC},
		{"other_sys_bytes", "Bytes for everything else.", m.OtherSys},
		{"stack_inuse_bytes", "Bytes of stacks in use.", m.StackInuse},
		{"stack_sys_bytes", "Bytes of stacks.", m.StackSys},
		{"sys_bytes", "Bytes from the system.", m.Sys},
	} {
		all = append(all, single(metrics.Gauge, "go_memstats_"+g.name, g.help, float64(g.value)))
	}
	return all
}

// processStart is when this process was started, nearly.
var processStart = time.Now()

func startMetric() metrics.Family {
	return single(metrics.Gauge, "process_start_time_seconds", "When the process was started.", float64(processStart.UnixMilli())/1e3)
}
