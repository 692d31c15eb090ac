package metrics_test

import (
	"math"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/metrics"
	"github.com/parleyhub/parley/telemetry"
)

var families = []metrics.Family{
	{Name: "b_total", Help: "Texts with \\ and\na second line.", Kind: metrics.Counter, Labels: []string{"from", "what"}, Samples: []metrics.Sample{
		{Labels: []string{"z", "quoted \" and \\ and\n"}, Value: 12345678}, {Labels: []string{"a", "\xff"}, Value: 0.5},
	}},
	{Name: "a", Help: "No labels.", Kind: metrics.Gauge, Samples: []metrics.Sample{{Value: math.Inf(1)}}},
	{Name: "none", Help: "No samples.", Kind: metrics.Gauge},
	{Name: "s", Help: "A summary.", Kind: metrics.Summary, Samples: []metrics.Sample{{Count: 2, Sum: 6}}},
	{Name: "h", Help: "A histogram.", Kind: metrics.Histogram, Labels: []string{"who"}, Samples: []metrics.Sample{
		{Labels: []string{"a"}, Count: 3, Sum: 11.5, Classes: map[float64]uint64{10: 2, 0.5: 1}},
	}},
}

const text = `# HELP a No labels.
# TYPE a gauge
a +Inf
# HELP b_total Texts with \\ and\na second line.
# TYPE b_total counter
b_total{from="a",what="` + "\uFFFD" + `"} 0.5
b_total{from="z",what="quoted \" and \\ and\n"} 1.2345678e+07
# HELP h A histogram.
# TYPE h histogram
h_bucket{who="a",le="0.5"} 1
h_bucket{who="a",le="10"} 2
h_bucket{who="a",le="+Inf"} 3
h_sum{who="a"} 11.5
h_count{who="a"} 3
# HELP s A summary.
# TYPE s summary
s_sum 6
s_count 2
`

func TestWrite(t *testing.T) {
	var got strings.Builder
	if err := metrics.Write(&got, families); err != nil || got.String() != text {
		t.Errorf("%v\n%s", err, got.String())
	}
}

// collector has Prometheus' client collect families.
type collector []metrics.Family

func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, f := range c {
		d := prometheus.NewDesc(f.Name, f.Help, f.Labels, nil)
		for _, s := range f.Samples {
			labels := make([]string, len(s.Labels))
			for i, l := range s.Labels {
				labels[i] = strings.ToValidUTF8(l, "\uFFFD")
			}
			switch f.Kind {
			case metrics.Counter:
				ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, s.Value, labels...)
			case metrics.Gauge:
				ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, s.Value, labels...)
			case metrics.Summary:
				ch <- prometheus.MustNewConstSummary(d, s.Count, s.Sum, nil, labels...)
			case metrics.Histogram:
				ch <- prometheus.MustNewConstHistogram(d, s.Count, s.Sum, s.Classes, labels...)
			}
		}
	}
}

func TestPrometheusReadsWhatIsWritten(t *testing.T) {
	var written strings.Builder
	if err := metrics.Write(&written, families); err != nil {
		t.Fatal(err)
	}
	if err := testutil.CollectAndCompare(collector(families), strings.NewReader(written.String())); err != nil {
		t.Error(err)
	}
}

// The counters of a recorder are metrics: each type of envelope in both directions, averages as sums.
func TestEnvelopesAreMetrics(t *testing.T) {
	var got strings.Builder
	err := metrics.Write(&got, metrics.Envelopes(telemetry.Metrics{
		SentByType:            map[envelope.Type]uint64{envelope.Request: 3},
		ReceivedByType:        map[envelope.Type]uint64{envelope.Response: 2},
		ToolInvocationsByTool: map[string]uint64{"count": 4},
		ErrorCount:            5, SecurityEvents: 6, DeliveryFailures: 7, ToolErrorCount: 8,
		RoutingDecisions: 4, AverageRoutingLatencyMs: 0.25, TotalToolInvocations: 4, AverageToolDurationMs: 1.5,
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`parley_messages_total{direction="sent",type="request"} 3`, `parley_messages_total{direction="received",type="request"} 0`,
		`parley_messages_total{direction="received",type="response"} 2`, `parley_tool_invocations_total{tool="count"} 4`,
		"parley_errors_total 5", "parley_security_events_total 6", "parley_delivery_failures_total 7", "parley_tool_errors_total 8",
		"parley_routing_latency_milliseconds_sum 1", "parley_routing_latency_milliseconds_count 4", "parley_tool_duration_milliseconds_sum 6",
	} {
		if !strings.Contains(got.String(), line+"\n") {
			t.Errorf("there is no %s in\n%s", line, got.String())
		}
	}
}
