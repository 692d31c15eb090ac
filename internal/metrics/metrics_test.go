package metrics_test

import (
	"math"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/parleyhub/parley/internal/metrics"
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
