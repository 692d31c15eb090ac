// Package prom exports the counters of a telemetry.Recorder to Prometheus.
package prom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
)

// Collector reads a Recorder when Prometheus scrapes. It is safe for concurrent use.
// To Prometheus, [telemetry.Recorder.ResetMetrics] looks like a restart.
type Collector struct {
	recorder *telemetry.Recorder
}

// NewCollector returns a collector to register with a prometheus.Registerer.
func NewCollector(r *telemetry.Recorder) *Collector { return &Collector{recorder: r} }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("parley_"+name, help, labels, nil)
}

var (
	messages = desc("messages_total", "Envelopes sent and received.", "direction", "type")
	routing  = desc("routing_latency_milliseconds", "Time that routing decisions took.")
	failed   = desc("errors_total", "Errors, delivery failures and envelopes that could not be routed.")
	security = desc("security_events_total", "Deliveries that policy refused.")
	lost     = desc("delivery_failures_total", "Envelopes that a channel gave up.")
	tools    = desc("tool_invocations_total", "Tool calls.", "tool")
	toolTime = desc("tool_duration_milliseconds", "Time that tool calls took.")
	toolErr  = desc("tool_errors_total", "Tool calls that failed.")
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{messages, routing, failed, security, lost, tools, toolTime, toolErr} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	m := c.recorder.Metrics()
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for _, t := range envelope.Types() {
		count(messages, m.SentByType[t], "sent", string(t))
		count(messages, m.ReceivedByType[t], "received", string(t))
	}
	count(failed, m.ErrorCount)
	count(security, m.SecurityEvents)
	count(lost, m.DeliveryFailures)
	count(toolErr, m.ToolErrorCount)
	for name, n := range m.ToolInvocationsByTool {
		count(tools, n, name)
	}
	summary := func(d *prometheus.Desc, n uint64, average float64) {
		ch <- prometheus.MustNewConstSummary(d, n, average*float64(n), nil)
	}
	summary(routing, m.RoutingDecisions, m.AverageRoutingLatencyMs)
	summary(toolTime, m.TotalToolInvocations, m.AverageToolDurationMs)
}
