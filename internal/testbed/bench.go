package testbed

import (
	"slices"
	"testing"
	"time"
)

// ReportP95 measures f for each round of a benchmark, and reports the 95th percentile in milliseconds.
func ReportP95(b *testing.B, f func()) {
	b.Helper()
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		f()
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "p95-ms")
}
