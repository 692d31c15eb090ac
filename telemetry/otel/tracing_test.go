package otel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry/otel"
)

var mars = agent.Identity{ID: "mars", Tier: agent.L2, SandboxID: "box"}

func newEnvelope(t *testing.T, sender, recipient string) *envelope.Envelope {
	t.Helper()
	e, err := envelope.New(sender, recipient, envelope.Request, nil)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// hop sends e and receives it as another process would, decoded from JSON.
func hop(t *testing.T, tr *otel.Tracer, ctx context.Context, e *envelope.Envelope) context.Context {
	t.Helper()
	sent, endSend := tr.Send(ctx, mars, e)
	endSend(nil)
	data, err := envelope.Encode(sent)
	if err != nil {
		t.Fatal(err)
	}
	got, err := envelope.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	ctx, endReceive := tr.Receive(context.Background(), "venus", got)
	endReceive(nil)
	return ctx
}

func TestSpansFollowAnEnvelopeAcrossAgents(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tr := otel.NewTracer(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
	ctx := hop(t, tr, context.Background(), newEnvelope(t, "mars", "venus"))
	hop(t, tr, ctx, newEnvelope(t, "venus", "earth")) // sent by the handler

	ended := spans.Ended()
	if len(ended) != 4 {
		t.Fatalf("%d spans, want 4", len(ended))
	}
	for i, s := range ended {
		if s.SpanContext().TraceID() != ended[0].SpanContext().TraceID() {
			t.Errorf("span %d is in another trace", i)
		}
		if i > 0 && s.Parent().SpanID() != ended[i-1].SpanContext().SpanID() {
			t.Errorf("span %d is no child of the one before", i)
		}
	}
}

func TestSendStatesTierAndLeavesTheOriginal(t *testing.T) {
	tr := otel.NewTracer(sdk.NewTracerProvider())
	e := newEnvelope(t, "mars", "venus")
	sent, end := tr.Send(t.Context(), mars, e)
	end(nil)
	if e.Metadata != nil {
		t.Error("Send changed the original envelope")
	}
	if m := sent.Metadata; m.Tier != agent.L2 || m.SandboxID != "box" || m.TraceParent == "" {
		t.Errorf("metadata %+v", m)
	}
	if err := sent.Validate(); err != nil {
		t.Error(err)
	}
	again, end := tr.Send(t.Context(), mars, sent) // forwarded, without a span in ctx
	end(nil)
	if again.Metadata.TraceParent[:35] != sent.Metadata.TraceParent[:35] {
		t.Errorf("trace parent %s does not continue %s", again.Metadata.TraceParent, sent.Metadata.TraceParent)
	}
}

func TestErrorsMarkTheSpan(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tr := otel.NewTracer(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
	_, end := tr.Send(t.Context(), mars, newEnvelope(t, "mars", "venus"))
	end(errors.New("no such agent"))
	if got := spans.Ended()[0].Status(); got.Code != codes.Error || got.Description != "no such agent" {
		t.Errorf("status %+v", got)
	}
}

func TestHostileTraceContextIsIgnored(t *testing.T) {
	tr := otel.NewTracer(sdk.NewTracerProvider())
	e := newEnvelope(t, "mars", "venus").With(func(e *envelope.Envelope) {
		e.Metadata = &envelope.Metadata{Tier: agent.L2, TraceParent: "00-zz-zz-01", TraceState: ",,,="}
	})
	sent, end := tr.Send(t.Context(), mars, e)
	end(nil)
	if sent.Metadata.TraceParent == e.Metadata.TraceParent {
		t.Error("an invalid trace context was continued")
	}
}

func ExampleTracer() {
	tracer := otel.NewTracer(sdk.NewTracerProvider())
	e, err := envelope.New("mars", "venus", envelope.Request, "hello")
	if err != nil {
		fmt.Println(err)
		return
	}
	traced, end := tracer.Send(context.Background(), agent.Identity{ID: "mars", Tier: agent.L2}, e)
	end(nil)
	fmt.Println(len(traced.Metadata.TraceParent))
	// Output: 55
}
