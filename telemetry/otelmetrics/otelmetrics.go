// Package otelmetrics offers the counters of a telemetry.Recorder to
// OpenTelemetry, as package telemetry/prom does to Prometheus (Req 12.4, 12.5).
//
//	registration, err := otelmetrics.Register(provider, node.Telemetry())
//
// provider is that of the OpenTelemetry SDK, with the reader and exporter, OTLP
// for instance, that the program wants; this package brings none.
package otelmetrics

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
)

// instruments are the counters by what they count. They are read when the SDK
// collects, so that events cost nothing extra.
type instruments struct {
	messages, routed, failed, security, lost, tools, toolErrors metric.Int64ObservableCounter
	routing, toolTime                                           metric.Float64ObservableCounter
}

// Register makes the counters of r instruments of provider's meter
// "github.com/parleyhub/parley", until the registration is unregistered. Times are
// sums in milliseconds: divided by their counts (parley.routing.decisions,
// parley.tool.invocations) they give the averages. r is read from the SDK's
// goroutine; nothing blocks. The error is the SDK's, as for a second registration
// of other instruments under these names.
func Register(provider metric.MeterProvider, r *telemetry.Recorder) (metric.Registration, error) {
	meter := provider.Meter("github.com/parleyhub/parley")
	var in instruments
	var all []metric.Observable
	for _, c := range []struct {
		in              *metric.Int64ObservableCounter
		name, unit, doc string
	}{
		{&in.messages, "parley.messages", "{envelope}", "Envelopes sent and received."},
		{&in.routed, "parley.routing.decisions", "{decision}", "Routing decisions."},
		{&in.failed, "parley.errors", "{error}", "Errors, delivery failures and envelopes that could not be routed."},
		{&in.security, "parley.security.events", "{event}", "Deliveries that policy refused."},
		{&in.lost, "parley.delivery.failures", "{envelope}", "Envelopes that a channel gave up."},
		{&in.tools, "parley.tool.invocations", "{invocation}", "Tool calls."},
		{&in.toolErrors, "parley.tool.errors", "{invocation}", "Tool calls that failed."},
	} {
		counter, err := meter.Int64ObservableCounter(c.name, metric.WithUnit(c.unit), metric.WithDescription(c.doc))
		if err != nil {
			return nil, fmt.Errorf("make the instrument %s: %w", c.name, err)
		}
		*c.in = counter
		all = append(all, counter)
	}
	for _, c := range []struct {
		in        *metric.Float64ObservableCounter
		name, doc string
	}{
		{&in.routing, "parley.routing.time", "Time that routing decisions took."},
		{&in.toolTime, "parley.tool.time", "Time that tool calls took."},
	} {
		counter, err := meter.Float64ObservableCounter(c.name, metric.WithUnit("ms"), metric.WithDescription(c.doc))
		if err != nil {
			return nil, fmt.Errorf("make the instrument %s: %w", c.name, err)
		}
		*c.in = counter
		all = append(all, counter)
	}
	registration, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		in.observe(o, r.Metrics())
		return nil
	}, all...)
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
