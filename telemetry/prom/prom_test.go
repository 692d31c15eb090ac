package prom_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/telemetry/prom"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCollector(t *testing.T) {
	var r telemetry.Recorder
	r.Emit(telemetry.Event{Type: telemetry.MessageSent, MessageType: envelope.Request})
	r.Emit(telemetry.Event{Type: telemetry.MessageSent, MessageType: envelope.Request})
	r.Emit(telemetry.Event{Type: telemetry.RoutingDecision, Duration: 4})
	r.Emit(telemetry.Event{Type: telemetry.RoutingDecision, Duration: 2, Success: telemetry.Failure})
	r.Emit(telemetry.Event{Type: telemetry.ToolInvocation, ToolName: "a.x", Duration: 3})
	r.Emit(telemetry.Event{Type: telemetry.Security})
	want := `
# HELP parley_errors_total Errors, delivery failures and envelopes that could not be routed.
# TYPE parley_errors_total counter
parley_errors_total 1
# HELP parley_routing_latency_milliseconds Time that routing decisions took.
# TYPE parley_routing_latency_milliseconds summary
parley_routing_latency_milliseconds_sum 6
parley_routing_latency_milliseconds_count 2
# HELP parley_security_events_total Deliveries that policy refused.
# TYPE parley_security_events_total counter
parley_security_events_total 1
# HELP parley_tool_invocations_total Tool calls.
# TYPE parley_tool_invocations_total counter
parley_tool_invocations_total{tool="a.x"} 1
`
	c := prom.NewCollector(&r)
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "parley_errors_total",
		"parley_routing_latency_milliseconds", "parley_security_events_total", "parley_tool_invocations_total"); err != nil {
		t.Error(err)
	}
	problems, err := testutil.CollectAndLint(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems { // the specification measures in milliseconds
		if !strings.Contains(p.Text, "base unit") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func Example() {
	recorder := telemetry.New(telemetry.Options{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(prom.NewCollector(recorder))

	recorder.Emit(telemetry.Event{Type: telemetry.DeliveryFailure})
	families, err := registry.Gather()
	for _, f := range families {
		if f.GetName() == "parley_delivery_failures_total" {
			fmt.Println(f.GetName(), f.GetMetric()[0].GetCounter().GetValue(), err)
		}
	}
	// Output: parley_delivery_failures_total 1 <nil>
}
