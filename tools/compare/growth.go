package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// cost is a kind of work of which it is known how its time grows with the size of what is stored. It is measured in one process,
// by a benchmark of the package whose cases end with the size.
type cost struct {
	name, pkg, bench string
	at               string // the part of the case's name before the size, "" for none
	of               string // what the size counts
	most             float64
}

// costs are those that should not grow, with the exponent that is accepted: 0 for none, 1 where the result grows with the size.
// A quarter is for the load of the machine.
var costs = []cost{
	{"read 100 messages of a channel", "./internal/chat", "BenchmarkRead", "", "messages", 0.25},
	{"wait for a message", "./internal/chat", "BenchmarkWait", "", "channels", 0.25},
	{"list 50 tasks by state", "./internal/hub", "BenchmarkStored", "list/", "tasks", 0.25},
	{"start with stored tasks", "./internal/hub", "BenchmarkStored", "start/", "tasks", 1.25},
	{"list the directory", "./internal/hub", "BenchmarkDirectory", "list/", "agents", 1.25},
	{"find an agent by its name", "./internal/hub", "BenchmarkDirectory", "find/", "agents", 1.25},
	{"100 events to all viewers", "./internal/hub", "BenchmarkSubscribers", "", "viewers", 1.25},
	{"discover 50 agents", "./internal/agentnet", "BenchmarkDiscovery", "", "agents", 1.25},
	{"claim and release a file", "./internal/agentnet", "BenchmarkClaims", "", "claims", 1.25},
	{"list 50 dead letters", "./internal/agentnet", "BenchmarkDeadLetters", "", "letters", 0.25},
}

// growth is how the time of a cost grows: as the size to the power of Exponent.
type growth struct {
	Name     string    `json:"name"`
	Of       string    `json:"of"`
	Sizes    []float64 `json:"sizes"`
	Micros   []float64 `json:"microseconds"`
	Exponent float64   `json:"exponent"`
	Most     float64   `json:"accepted"`
	Load     string    `json:"load"`
}

// measureGrowth runs the benchmarks of costs.
func measureGrowth(ctx context.Context, only string) ([]growth, error) {
	outputs := map[string][]byte{} // by benchmark: several costs may be cases of one
	var all []growth
	for _, c := range costs {
		if !strings.Contains(c.name, only) {
			continue
		}
		out, done := outputs[c.bench]
		if !done {
			fmt.Fprintf(os.Stderr, "%s …\n", c.bench)
			var err error
			if out, err = exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^"+c.bench+"$", "-benchtime", "20x", c.pkg).CombinedOutput(); err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", c.bench, err, out)
			}
			outputs[c.bench] = out
		}
		g := growth{Name: c.name, Of: c.of, Most: c.most, Load: load()}
		g.Sizes, g.Micros = cases(out, c.bench+"/"+c.at)
		if len(g.Sizes) < 2 {
			return nil, fmt.Errorf("%s has %d sizes of %q", c.bench, len(g.Sizes), c.at)
		}
		g.Exponent = exponent(g.Sizes, g.Micros)
		all = append(all, g)
	}
	return all, nil
}

// cases reads the cases of a benchmark whose names are a prefix and a size.
func cases(output []byte, prefix string) (sizes, micros []float64) {
	lines := bufio.NewScanner(bytes.NewReader(output))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		at := slices.Index(fields, "ns/op")
		if at < 2 {
			continue
		}
		rest, found := strings.CutPrefix(fields[0], prefix)
		name, _, _ := strings.Cut(rest, "-") // the number of processors
		size, err := strconv.ParseFloat(name, 64)
		took, tookErr := strconv.ParseFloat(fields[at-1], 64)
		if found && err == nil && tookErr == nil {
			sizes, micros = append(sizes, size), append(micros, took/1000)
		}
	}
	return sizes, micros
}

// exponent returns that of the power law that fits best: the slope of the line through the logarithms.
func exponent(sizes, values []float64) float64 {
	var x, y, xx, xy float64
	for i := range sizes {
		a, b := math.Log(sizes[i]), math.Log(values[i])
		x, y, xx, xy = x+a, y+b, xx+a*a, xy+a*b
	}
	n := float64(len(sizes))
	return (n*xy - x*y) / (n*xx - x*x)
}

func printGrowth(out io.Writer, all []growth, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "work\tsizes\tmicroseconds\texponent\taccepted\tload")
	for _, g := range all {
		mark := ""
		if g.Exponent > g.Most {
			mark = " (grows)"
		}
		fmt.Fprintf(w, "%s\t%s %s\t%s\t%.2f%s\t%.2f\t%s\n", g.Name, list("%.0f", g.Sizes), g.Of, list("%.3g", g.Micros), g.Exponent, mark, g.Most, g.Load)
	}
	return w.Flush()
}

func list(format string, values []float64) string {
	var parts []string
	for _, v := range values {
		parts = append(parts, fmt.Sprintf(format, v))
	}
	return strings.Join(parts, ", ")
}

// checkGrowth returns an error that names the costs that grow more than is accepted.
func checkGrowth(all []growth) error {
	var worse []string
	for _, g := range all {
		if g.Exponent > g.Most {
			worse = append(worse, fmt.Sprintf("%s: exponent %.2f, accepted %.2f", g.Name, g.Exponent, g.Most))
		}
	}
	if len(worse) == 0 {
		return nil
	}
	return fmt.Errorf("costs that grow with the size:\n  %s", strings.Join(worse, "\n  "))
}
