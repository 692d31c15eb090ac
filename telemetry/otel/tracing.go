package otel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
)

// Tracer is a [telemetry.Tracer] on OpenTelemetry. The W3C trace context travels in the envelope's metadata, so the
// spans of a conversation form one trace wherever its agents run. It is safe for concurrent use.
type Tracer struct {
	tracer      trace.Tracer
	propagation propagation.TraceContext
}

var _ telemetry.Tracer = (*Tracer)(nil)

// NewTracer returns a Tracer whose spans go to provider.
func NewTracer(provider trace.TracerProvider) *Tracer {
	return &Tracer{tracer: provider.Tracer(scope)}
}

// Send begins a span for the delivery of e. Its parent is the span in ctx or,
// without one, the span in e's metadata. It returns a copy of e with the new span.
func (t *Tracer) Send(ctx context.Context, sender agent.Identity, e *envelope.Envelope) (*envelope.Envelope, func(error)) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = t.propagation.Extract(ctx, carrier{e.Metadata})
	}
	ctx, span := t.tracer.Start(ctx, "parley.send", trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attributes(e)...))
	m := &envelope.Metadata{Tier: sender.Tier, SandboxID: sender.SandboxID}
	if e.Metadata != nil {
		*m = *e.Metadata
	}
	t.propagation.Inject(ctx, carrier{m})
	traced := *e // the payload is shared; it does not change
	traced.Metadata = m
	return &traced, end(span)
}

// Receive begins a span in which agentID handles e, as a child of the span in e's metadata.
func (t *Tracer) Receive(ctx context.Context, agentID string, e *envelope.Envelope) (context.Context, func(error)) {
	ctx = t.propagation.Extract(ctx, carrier{e.Metadata})
	ctx, span := t.tracer.Start(ctx, "parley.receive", trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(append(attributes(e), attribute.String("parley.agent", agentID))...))
	return ctx, end(span)
}

func attributes(e *envelope.Envelope) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("parley.envelope.id", e.ID),
		attribute.String("parley.envelope.type", string(e.Type)),
		attribute.String("parley.sender", e.Sender),
		attribute.String("parley.recipient", e.Recipient),
		attribute.String("parley.thread", e.CorrelationID),
	}
}

func end(span trace.Span) func(error) {
	return func(err error) {
		if err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// carrier reads the trace context from metadata, and writes it there.
type carrier struct{ m *envelope.Metadata }

func (c carrier) Get(key string) string {
	switch {
	case c.m == nil:
		return ""
	case key == "traceparent":
		return c.m.TraceParent
	case key == "tracestate":
		return c.m.TraceState
	}
	return ""
}

func (c carrier) Set(key, value string) {
	switch key {
	case "traceparent":
		c.m.TraceParent = value
	case "tracestate":
		c.m.TraceState = value
	}
}

func (c carrier) Keys() []string { return []string{"traceparent", "tracestate"} }
