package daemon

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/telemetry/prom"
)

// metricsPath is the path for Prometheus, with the same checks as all paths.
const metricsPath = "GET /metrics"

// metrics returns a handler that serves the metrics of the hub, of its envelopes and of the process to Prometheus.
func metrics(h *hub.Hub, envelopes *telemetry.Recorder) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister( // panics only for duplicate names, which tests would find
		hubCollector{h}, prom.NewCollector(envelopes),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}

// hubCollector collects the hub's metrics when they are read.
type hubCollector struct{ hub *hub.Hub }

var (
	tasksActive  = prometheus.NewDesc("parley_tasks_active", "Tasks that have not ended and do not wait for input.", nil, nil)
	tasksStored  = prometheus.NewDesc("parley_tasks", "Tasks in the store.", nil, nil)
	agentHealth  = prometheus.NewDesc("parley_agent_health", "1 for the current health of the agent, else 0.", []string{"agent", "status"}, nil)
	agentRunning = prometheus.NewDesc("parley_agent_running", "Running turns.", []string{"agent"}, nil)
	agentQueued  = prometheus.NewDesc("parley_agent_queued", "Queued turns.", []string{"agent"}, nil)
	build        = prometheus.NewDesc("parley_build_info", "1, with the hub's version.", []string{"version"}, nil)
)

// Describe implements prometheus.Collector.
func (hubCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{tasksActive, tasksStored, agentHealth, agentRunning, agentQueued, build} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c hubCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	s := c.hub.Status()
	gauge(tasksActive, s.ActiveTasks)
	gauge(tasksStored, s.TotalTasks)
	gauge(build, 1, s.Version)
	for _, a := range s.Agents {
		id := a.Definition.ID
		for _, status := range []hub.HealthStatus{hub.Healthy, hub.Degraded, hub.Unhealthy, hub.Unknown} {
			is := 0
			if a.Health.Status == status {
				is = 1
			}
			gauge(agentHealth, is, id, string(status))
		}
		gauge(agentRunning, a.Running, id)
		gauge(agentQueued, a.Queued, id)
	}
}
