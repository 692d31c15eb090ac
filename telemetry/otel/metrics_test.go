package otel_test

import (
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/telemetry/otel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Req 12.4, 12.5: the SDK collects the counters of the recorder.
func TestTheSDKCollectsTheCounters(t *testing.T) {
	r := telemetry.New(telemetry.Options{})
	reader := metric.NewManualReader()
	registration, err := otel.RegisterMetrics(metric.NewMeterProvider(metric.WithReader(reader)), r)
	if err != nil {
		t.Fatal(err)
	}
	r.Emit(telemetry.Event{Type: telemetry.MessageSent, MessageType: envelope.Request})
	r.Emit(telemetry.Event{Type: telemetry.MessageSent, MessageType: envelope.Request})
	r.Emit(telemetry.Event{Type: telemetry.MessageReceived, MessageType: envelope.Response})
	r.Emit(telemetry.Event{Type: telemetry.RoutingDecision, Duration: 2, Success: telemetry.Failure})
	r.Emit(telemetry.Event{Type: telemetry.RoutingDecision, Duration: 4})
	r.Emit(telemetry.Event{Type: telemetry.Security})
	r.Emit(telemetry.Event{Type: telemetry.DeliveryFailure})
	r.Emit(telemetry.Event{Type: telemetry.ToolInvocation, ToolName: "a.b", Duration: 5, Success: telemetry.Failure})
	got := collect(t, reader)
	for name, want := range map[string]float64{
		"parley.messages direction=sent,type=request":      2,
		"parley.messages direction=received,type=response": 1,
		"parley.messages direction=sent,type=error":        0,
		"parley.routing.decisions ":                        2, "parley.routing.time ": 6, "parley.errors ": 2,
		"parley.security.events ": 1, "parley.delivery.failures ": 1,
		"parley.tool.invocations tool=a.b": 1, "parley.tool.errors ": 1, "parley.tool.time ": 5,
	} {
		if v, there := got[name]; !there || v != want {
			t.Errorf("%s: %v (%v), not %v", name, v, there, want)
		}
	}
	if err := registration.Unregister(); err != nil {
		t.Fatal(err)
	}
	if left := collect(t, reader); len(left) != 0 {
		t.Errorf("after Unregister the SDK still collects %v", left)
	}
}

func collect(t *testing.T, reader metric.Reader) map[string]float64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	key := func(name string, set attribute.Set) string {
		return name + " " + set.Encoded(attribute.DefaultEncoder())
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch sum := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range sum.DataPoints {
					got[key(m.Name, p.Attributes)] = float64(p.Value)
				}
			case metricdata.Sum[float64]:
				for _, p := range sum.DataPoints {
					got[key(m.Name, p.Attributes)] = p.Value
				}
			}
		}
	}
	return got
}
