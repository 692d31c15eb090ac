package daemon

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/telemetry/prom"
)

// metricsPath is the path for Prometheus, with the same checks as all paths.
const metricsPath = "GET /metrics"

// metrics returns a handler that serves the metrics of the hub, of its envelopes and of the process to Prometheus.
func metrics(h *hub.Hub, log *events.Log, envelopes *telemetry.Recorder) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister( // panics only for duplicate names, which tests would find
		hubCollector{h, log}, prom.NewCollector(envelopes),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}

// hubCollector collects the hub's metrics when they are read.
type hubCollector struct {
	hub    *hub.Hub
	events *events.Log
}

var (
	tasksActive  = prometheus.NewDesc("parley_tasks_active", "Tasks that have not ended and do not wait for input.", nil, nil)
	tasksStored  = prometheus.NewDesc("parley_tasks", "Tasks in the store.", nil, nil)
	agentHealth  = prometheus.NewDesc("parley_agent_health", "1 for the current health of the agent, else 0.", []string{"agent", "status"}, nil)
	agentRunning = prometheus.NewDesc("parley_agent_running", "Running turns.", []string{"agent"}, nil)
	agentQueued  = prometheus.NewDesc("parley_agent_queued", "Queued turns.", []string{"agent"}, nil)
	tasksEnded   = prometheus.NewDesc("parley_tasks_ended_total", "Tasks that ended, by outcome.", []string{"agent", "outcome"}, nil)
	turnSeconds  = prometheus.NewDesc("parley_turn_duration_seconds", "Durations of the turns that ended.", []string{"agent"}, nil)
	tokens       = prometheus.NewDesc("parley_tokens_total", "Tokens that turns used; kind is input, output or cached.", []string{"agent", "kind"}, nil)
	cost         = prometheus.NewDesc("parley_cost_usd_total", "What turns cost, as far as the agents report it, in US dollars.", []string{"agent"}, nil)
	eventsSeen   = prometheus.NewDesc("parley_events_total", "Events of the hub, by kind; events that were lost have the kind gap.", []string{"kind"}, nil)
	messages     = prometheus.NewDesc("parley_channel_messages_total", "Messages in the channels of all projects.", nil, nil)
	mailSent     = prometheus.NewDesc("parley_mail_total", "Mail in the agents' network on this hub.", nil, nil)
	deadLetters  = prometheus.NewDesc("parley_dead_letters_total", "Work items of the agents' network on this hub that became dead letters.", nil, nil)
	build        = prometheus.NewDesc("parley_build_info", "1, with the hub's version.", []string{"version"}, nil)
)

// Describe implements prometheus.Collector.
func (hubCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{tasksActive, tasksStored, agentHealth, agentRunning, agentQueued, tasksEnded, turnSeconds, tokens, cost, eventsSeen, messages, mailSent, deadLetters, build} {
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
	c.collectMeters(ch)
}

// collectMeters collects what was counted since the hub's start.
func (c hubCollector) collectMeters(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	for _, m := range c.hub.Meters() {
		for outcome, n := range m.Tasks {
			count(tasksEnded, float64(n), m.Agent, outcome)
		}
		ch <- prometheus.MustNewConstHistogram(turnSeconds, m.Turns, m.Seconds, m.Classes, m.Agent)
		count(tokens, float64(m.Usage.InputTokens), m.Agent, "input")
		count(tokens, float64(m.Usage.OutputTokens), m.Agent, "output")
		count(tokens, float64(m.Usage.CachedTokens), m.Agent, "cached")
		count(cost, m.Usage.CostUSD, m.Agent)
	}
	kinds := c.events.Counts()
	for kind, n := range kinds {
		count(eventsSeen, float64(n), string(kind))
	}
	count(messages, float64(kinds[events.ChannelMessage]))
	count(mailSent, float64(kinds[events.MailSent]))
	count(deadLetters, float64(kinds[events.DeadLetterAdded]))
}
