// Package prom exports the counters of a telemetry.Recorder to Prometheus.
package prom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/parleyhub/parley/internal/metrics"
	"github.com/parleyhub/parley/telemetry"
)

// Collector reads a Recorder when Prometheus scrapes. It is safe for concurrent use.
// To Prometheus, [telemetry.Recorder.ResetMetrics] looks like a restart.
type Collector struct {
	recorder *telemetry.Recorder
}

// NewCollector returns a collector to register with a prometheus.Registerer.
func NewCollector(r *telemetry.Recorder) *Collector { return &Collector{recorder: r} }

func desc(f metrics.Family) *prometheus.Desc {
	return prometheus.NewDesc(f.Name, f.Help, f.Labels, nil)
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range metrics.Envelopes(telemetry.Metrics{}) {
		ch <- desc(f)
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, f := range metrics.Envelopes(c.recorder.Metrics()) {
		d := desc(f)
		for _, s := range f.Samples {
			if f.Kind == metrics.Summary {
				ch <- prometheus.MustNewConstSummary(d, s.Count, s.Sum, nil)
			} else {
				ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, s.Value, s.Labels...)
			}
		}
	}
}
