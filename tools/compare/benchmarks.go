package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// benchmarkRows are rows that benchmarks of the tree measure, which start the processes and take turns by themselves, and rows
// whose peer is an aim.
func (r *rig) benchmarkRows() []row {
	swarm := func(name, bench, unit, metric, times string, less bool) row {
		ours, peer := r.pair("./test/interop/hyperswarmjs", bench, []string{"-test.benchtime", times}, "go-"+metric, "npm-"+metric)
		return row{name: name, unit: unit, less: less, most: 3, ours: []contender{{"parley", ours}}, peers: []contender{{"npm hyperswarm", peer}}}
	}
	idle := func(name, kind, idleFor string, aim float64) row {
		ours, _ := r.pair("./internal/agentnet", "BenchmarkIdleAgents/"+kind+"$", []string{"-test.benchtime", "1x", "-idle-for", idleFor}, "MB", "")
		return row{name: "memory of 1,000 idle agents, " + name, unit: "MB", less: true, most: 1, ours: []contender{{"parley", ours}}, peers: []contender{limit(aim)}}
	}
	return []row{
		swarm("hyperswarm, join to connection", "BenchmarkJoin", "ms", "ms", "5x", true),
		swarm("hyperswarm, message there and back", "BenchmarkEcho", "µs", "µs", "5x", true),
		swarm("hyperswarm, 64 MiB on a stream", "BenchmarkThroughput", "MB/s", "MB/s", "2x", false),
		{name: "size of the program", unit: "MB", less: true, most: 1, ours: []contender{{"parley", r.size}}, peers: []contender{limit(35)}},
		idle("a connection and an inbox each", "process-each", "60s", 60),
		idle("shared inboxes", "process-each-shared-inbox", "60s", 60),
		idle("over /mcp", "mcp-over-http", "4m", 60), // after two minutes the hub closes connections without a request
		{name: "start with 100,000 tasks, 1,000,000 messages, 100 documents", unit: "ms", less: true, most: 1, ours: []contender{{"parley", r.restart}}, peers: []contender{limit(300)}},
	}
}

// limit is a peer that does not run: the aim of a row.
func limit(value float64) contender {
	return contender{"aim", func(context.Context, time.Duration) (float64, error) { return value, nil }}
}

// pair returns two contenders that one run of a benchmark measures: the first runs it, the second returns the other metric.
func (r *rig) pair(pkg, bench string, args []string, ours, peers string) (first, second func(context.Context, time.Duration) (float64, error)) {
	program := sync.OnceValues(func() (string, error) { return r.benchmark(pkg) })
	var metrics map[string]float64
	var failed error
	first = func(ctx context.Context, _ time.Duration) (float64, error) {
		metrics, failed = nil, nil
		var test string
		if test, failed = program(); failed == nil {
			metrics, failed = r.runBenchmark(ctx, test, pkg, bench, args)
		}
		return metrics[ours], failed
	}
	return first, func(context.Context, time.Duration) (float64, error) { return metrics[peers], failed }
}

// benchmark builds the tests of a package.
func (r *rig) benchmark(pkg string) (string, error) {
	name := filepath.Base(pkg) + ".test"
	return r.built(name, "test", "-c", "-tags", "interop", "-o", filepath.Join(r.dir, name), pkg)
}

// runBenchmark returns the metrics of a benchmark's last line, by unit.
func (r *rig) runBenchmark(ctx context.Context, program, pkg, bench string, args []string) (map[string]float64, error) {
	modules, err := r.interop()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"-test.run", "^$", "-test.bench", "^" + bench}, args...)...)
	cmd.Dir, cmd.Env = filepath.FromSlash(pkg), append(os.Environ(), "PARLEY_INTEROP_NODE_MODULES="+filepath.Join(modules, "node_modules"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", bench, err, out)
	}
	metrics := metricsOf(out)
	if metrics == nil {
		return nil, fmt.Errorf("%s has no figures:\n%s", bench, out)
	}
	return metrics, nil
}

// metricsOf returns the metrics of the last benchmark in an output, nil if there is none.
func metricsOf(output []byte) map[string]float64 {
	var metrics map[string]float64
	lines := bufio.NewScanner(bytes.NewReader(output))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		metrics = map[string]float64{}
		for pair := range slices.Chunk(fields[2:], 2) {
			if value, err := strconv.ParseFloat(pair[0], 64); err == nil && len(pair) == 2 {
				metrics[pair[1]] = value
			}
		}
	}
	return metrics
}

var sizeLine = regexp.MustCompile(`parley: (\d+) bytes`)

// size returns the size of a release's program, in MB. The command fails if it is too large.
func (r *rig) size(ctx context.Context, _ time.Duration) (float64, error) {
	out, err := exec.CommandContext(ctx, "go", "run", "./tools/release", "-size").CombinedOutput()
	found := sizeLine.FindSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("no size: %w\n%s", err, out)
	}
	bytes, err := strconv.ParseFloat(string(found[1]), 64)
	return bytes / 1e6, err
}

var startSpread = regexp.MustCompile(`in all: \d+ starts, p50 ([^,]+),`)

// restart returns the median of starts after kills and stops under load, in ms. The command fails if starts take too long.
func (r *rig) restart(ctx context.Context, _ time.Duration) (float64, error) {
	out, err := exec.CommandContext(ctx, "go", "run", "./tools/faults", "-starts", "6", "-stored", "big", "-store", filepath.Join(r.dir, "store")).CombinedOutput()
	found := startSpread.FindSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("no starts: %w\n%s", err, out)
	}
	took, err := time.ParseDuration(string(found[1]))
	return took.Seconds() * 1e3, err
}
