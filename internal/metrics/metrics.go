// Package metrics describes metrics and writes them in Prometheus' text format. The program does not link Prometheus' client,
// whose initialization each start would pay for; the package telemetry/prom is for programs that use it.
package metrics

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ContentType is that of the text format.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Kind is the type of a metric.
type Kind string

// The kinds.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Summary   Kind = "summary" // without quantiles
	Histogram Kind = "histogram"
)

// Family is a metric with its samples.
type Family struct {
	Name, Help string
	Kind       Kind
	Labels     []string // their names
	Samples    []Sample
}

// Sample is a value of a metric.
type Sample struct {
	Labels []string // in the order of the family's
	Value  float64  // of a counter or a gauge
	Count  uint64   // of a summary or a histogram
	Sum    float64
	// Classes are a histogram's: how many values are at most the bound. Every class has those below, too.
	Classes map[float64]uint64
}

// Add adds a sample of a counter or a gauge.
func (f *Family) Add(value float64, labels ...string) {
	f.Samples = append(f.Samples, Sample{Labels: labels, Value: value})
}

// Write writes families, sorted by name. Those without samples are left out.
func Write(w io.Writer, families []Family) error {
	out := bufio.NewWriter(w)
	for _, f := range slices.SortedFunc(slices.Values(families), func(a, b Family) int { return cmp.Compare(a.Name, b.Name) }) {
		if len(f.Samples) == 0 {
			continue
		}
		fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", f.Name, helpText.Replace(f.Help), f.Name, f.Kind)
		for _, s := range slices.SortedFunc(slices.Values(f.Samples), func(a, b Sample) int { return slices.Compare(a.Labels, b.Labels) }) {
			f.write(out, s)
		}
	}
	return out.Flush()
}

func (f *Family) write(out io.Writer, s Sample) {
	labels := make([]string, len(s.Labels))
	for i, value := range s.Labels {
		labels[i] = label(f.Labels[i], value)
	}
	line := func(suffix, value string, more ...string) {
		set := strings.Join(slices.Concat(labels, more), ",")
		if set != "" {
			set = "{" + set + "}"
		}
		fmt.Fprintf(out, "%s%s%s %s\n", f.Name, suffix, set, value)
	}
	if f.Kind == Counter || f.Kind == Gauge {
		line("", number(s.Value))
		return
	}
	count := strconv.FormatUint(s.Count, 10)
	if f.Kind == Histogram {
		for _, bound := range slices.Sorted(maps.Keys(s.Classes)) {
			line("_bucket", strconv.FormatUint(s.Classes[bound], 10), label("le", number(bound)))
		}
		line("_bucket", count, label("le", "+Inf"))
	}
	line("_sum", number(s.Sum))
	line("_count", count)
}

var (
	helpText  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelText = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// label returns a label. The format has no text that is not UTF-8.
func label(name, value string) string {
	return name + `="` + labelText.Replace(strings.ToValidUTF8(value, "\uFFFD")) + `"`
}

func number(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
