// Package otel connects telemetry with OpenTelemetry: [RegisterMetrics] exposes the counters of a Recorder as
// instruments, and a [Tracer] follows envelopes across agents and processes as spans.
//
//	registration, err := otel.RegisterMetrics(meterProvider, node.Telemetry())
//	options := router.Options{Tracer: otel.NewTracer(tracerProvider)}
//
// The providers are those of the OpenTelemetry SDK, with the readers and exporters
// (OTLP for instance) that the program chooses; this package has none.
package otel

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
)

// scope is the name of the meter and the tracer.
const scope = "github.com/parleyhub/parley"

// instruments are the counters by what they count. They are read when the SDK
// collects, so that events cost nothing extra.
type instruments struct {
	messages, routed, failed, security, lost, tools, toolErrors metric.Int64ObservableCounter
	routing, toolTime                                           metric.Float64ObservableCounter
}

// RegisterMetrics makes the counters of r instruments of provider's meter "github.com/parleyhub/parley", until the
// registration is unregistered. Times are sums in milliseconds: divided by their counts (parley.routing.decisions,
// parley.tool.invocations) they give the averages. r is read from the SDK's goroutine; nothing blocks. The error is
// the SDK's, as for a second registration of other instruments under these names.
func RegisterMetrics(provider metric.MeterProvider, r *telemetry.Recorder) (metric.Registration, error) {
	meter := provider.Meter(scope)
	var errs []error
	count := func(name, unit, doc string) metric.Int64ObservableCounter {
		c, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(doc))
		errs = append(errs, err)
		return c
	}
	duration := func(name, doc string) metric.Float64ObservableCounter {
		c, err := meter.Float64ObservableCounter(name, metric.WithUnit("ms"), metric.WithDescription(doc))
		errs = append(errs, err)
		return c
	}
	in := instruments{
		messages:   count("parley.messages", "{envelope}", "Envelopes sent and received."),
		routed:     count("parley.routing.decisions", "{decision}", "Routing decisions."),
		failed:     count("parley.errors", "{error}", "Errors, delivery failures and envelopes that could not be routed."),
		security:   count("parley.security.events", "{event}", "Deliveries that policy refused."),
		lost:       count("parley.delivery.failures", "{envelope}", "Envelopes that a channel gave up."),
		tools:      count("parley.tool.invocations", "{invocation}", "Tool calls."),
		toolErrors: count("parley.tool.errors", "{invocation}", "Tool calls that failed."),
		routing:    duration("parley.routing.time", "Time that routing decisions took."),
		toolTime:   duration("parley.tool.time", "Time that tool calls took."),
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("make the instruments: %w", err)
	}
	registration, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		in.observe(o, r.Metrics())
		return nil
	}, in.messages, in.routed, in.failed, in.security, in.lost, in.tools, in.toolErrors, in.routing, in.toolTime)
	if err != nil {
		return nil, fmt.Errorf("register the instruments: %w", err)
	}
	return registration, nil
}

func (in *instruments) observe(o metric.Observer, m telemetry.Metrics) {
	for _, t := range envelope.Types() {
		for direction, n := range map[string]uint64{"sent": m.SentByType[t], "received": m.ReceivedByType[t]} {
			o.ObserveInt64(in.messages, int64(n), metric.WithAttributes(attribute.String("direction", direction), attribute.String("type", string(t))))
		}
	}
	o.ObserveInt64(in.routed, int64(m.RoutingDecisions))
	o.ObserveInt64(in.failed, int64(m.ErrorCount))
	o.ObserveInt64(in.security, int64(m.SecurityEvents))
	o.ObserveInt64(in.lost, int64(m.DeliveryFailures))
	o.ObserveInt64(in.toolErrors, int64(m.ToolErrorCount))
	for name, n := range m.ToolInvocationsByTool {
		o.ObserveInt64(in.tools, int64(n), metric.WithAttributes(attribute.String("tool", name)))
	}
	o.ObserveFloat64(in.routing, m.AverageRoutingLatencyMs*float64(m.RoutingDecisions))
	o.ObserveFloat64(in.toolTime, m.AverageToolDurationMs*float64(m.TotalToolInvocations))
}
