package daemon

import (
	"log/slog"
	"net/http"
	"slices"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/metrics"
	"github.com/parleyhub/parley/telemetry"
)

// metricsPath is the path for Prometheus, with the same checks as all paths.
const metricsPath = "GET /metrics"

// serveMetrics returns a handler that serves the metrics of the hub, of its envelopes and of the process to Prometheus.
func serveMetrics(h *hub.Hub, log *events.Log, envelopes *telemetry.Recorder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", metrics.ContentType)
		err := metrics.Write(w, slices.Concat(hubMetrics(h.Status()), meterMetrics(h.Meters()), eventMetrics(log.Counts()),
			metrics.Envelopes(envelopes.Metrics()), runtimeMetrics(), processMetrics()))
		if err != nil {
			slog.Debug("a client did not read the metrics", "error", err)
		}
	})
}

func single(kind metrics.Kind, name, help string, value float64) metrics.Family {
	return metrics.Family{Name: name, Help: help, Kind: kind, Samples: []metrics.Sample{{Value: value}}}
}

// hubMetrics returns the current state of the hub and its agents.
func hubMetrics(s hub.Status) []metrics.Family {
	gauge := func(name, help string, labels ...string) metrics.Family {
		return metrics.Family{Name: name, Help: help, Kind: metrics.Gauge, Labels: labels}
	}
	build := gauge("parley_build_info", "1, with the hub's version.", "version")
	build.Add(1, s.Version)
	health := gauge("parley_agent_health", "1 for the current health of the agent, else 0.", "agent", "status")
	running := gauge("parley_agent_running", "Running turns.", "agent")
	queued := gauge("parley_agent_queued", "Queued turns.", "agent")
	for _, a := range s.Agents {
		id := a.Definition.ID
		for _, status := range []hub.HealthStatus{hub.Healthy, hub.Degraded, hub.Unhealthy, hub.Unknown} {
			is := 0.0
			if a.Health.Status == status {
				is = 1
			}
			health.Add(is, id, string(status))
		}
		running.Add(float64(a.Running), id)
		queued.Add(float64(a.Queued), id)
	}
	return []metrics.Family{
		build, health, running, queued,
		single(metrics.Gauge, "parley_tasks_active", "Tasks that have not ended and do not wait for input.", float64(s.ActiveTasks)),
		single(metrics.Gauge, "parley_tasks", "Tasks in the store.", float64(s.TotalTasks)),
	}
}

// meterMetrics returns what was counted of the agents since the hub's start.
func meterMetrics(meters []hub.Meter) []metrics.Family {
	counter := func(name, help string, labels ...string) metrics.Family {
		return metrics.Family{Name: name, Help: help, Kind: metrics.Counter, Labels: labels}
	}
	ended := counter("parley_tasks_ended_total", "Tasks that ended, by outcome.", "agent", "outcome")
	tokens := counter("parley_tokens_total", "Tokens that turns used; kind is input, output or cached.", "agent", "kind")
	cost := counter("parley_cost_usd_total", "What turns cost, as far as the agents report it, in US dollars.", "agent")
	turns := metrics.Family{Name: "parley_turn_duration_seconds", Help: "Durations of the turns that ended.", Kind: metrics.Histogram, Labels: []string{"agent"}}
	for _, m := range meters {
		for outcome, n := range m.Tasks {
			ended.Add(float64(n), m.Agent, outcome)
		}
		turns.Samples = append(turns.Samples, metrics.Sample{Labels: []string{m.Agent}, Count: m.Turns, Sum: m.Seconds, Classes: m.Classes})
		tokens.Add(float64(m.Usage.InputTokens), m.Agent, "input")
		tokens.Add(float64(m.Usage.OutputTokens), m.Agent, "output")
		tokens.Add(float64(m.Usage.CachedTokens), m.Agent, "cached")
		cost.Add(m.Usage.CostUSD, m.Agent)
	}
	return []metrics.Family{ended, tokens, cost, turns}
}

// eventMetrics returns the counted events.
func eventMetrics(kinds map[events.Kind]uint64) []metrics.Family {
	seen := metrics.Family{Name: "parley_events_total", Help: "Events of the hub, by kind; events that were lost have the kind gap.", Kind: metrics.Counter, Labels: []string{"kind"}}
	for kind, n := range kinds {
		seen.Add(float64(n), string(kind))
	}
	count := func(name, help string, kind events.Kind) metrics.Family {
		return single(metrics.Counter, name, help, float64(kinds[kind]))
	}
	return []metrics.Family{
		seen,
		count("parley_channel_messages_total", "Messages in the channels of all projects.", events.ChannelMessage),
		count("parley_mail_total", "Mail in the agents' network on this hub.", events.MailSent),
		count("parley_dead_letters_total", "Work items of the agents' network on this hub that became dead letters.", events.DeadLetterAdded),
	}
}
