package metrics

import (
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
)

// Envelopes returns the counters of a telemetry.Recorder.
func Envelopes(m telemetry.Metrics) []Family {
	messages := Family{Name: "parley_messages_total", Help: "Envelopes sent and received.", Kind: Counter, Labels: []string{"direction", "type"}}
	for _, t := range envelope.Types() {
		messages.Add(float64(m.SentByType[t]), "sent", string(t))
		messages.Add(float64(m.ReceivedByType[t]), "received", string(t))
	}
	tools := Family{Name: "parley_tool_invocations_total", Help: "Tool calls.", Kind: Counter, Labels: []string{"tool"}}
	for name, n := range m.ToolInvocationsByTool {
		tools.Add(float64(n), name)
	}
	count := func(name, help string, n uint64) Family {
		return Family{Name: name, Help: help, Kind: Counter, Samples: []Sample{{Value: float64(n)}}}
	}
	summary := func(name, help string, n uint64, average float64) Family {
		return Family{Name: name, Help: help, Kind: Summary, Samples: []Sample{{Count: n, Sum: average * float64(n)}}}
	}
	return []Family{
		messages, tools,
		count("parley_errors_total", "Errors, delivery failures and envelopes that could not be routed.", m.ErrorCount),
		count("parley_security_events_total", "Deliveries that policy refused.", m.SecurityEvents),
		count("parley_delivery_failures_total", "Envelopes that a channel gave up.", m.DeliveryFailures),
		count("parley_tool_errors_total", "Tool calls that failed.", m.ToolErrorCount),
		summary("parley_routing_latency_milliseconds", "Time that routing decisions took.", m.RoutingDecisions, m.AverageRoutingLatencyMs),
		summary("parley_tool_duration_milliseconds", "Time that tool calls took.", m.TotalToolInvocations, m.AverageToolDurationMs),
	}
}
