// Compare measures Parley beside its peers: the same work, in separate processes on this computer, in turns.
//
//	go run ./tools/compare                         # all rows, as a table
//	go run ./tools/compare -only 'a2a send' -json  # some rows, as JSON
//	go run ./tools/compare -check                  # also names rows that are 20 % worse than tools/compare/ratios.json
//	go run ./tools/compare -write                  # replaces tools/compare/ratios.json
//	go run ./tools/compare -growth                 # how the time of work in one process grows with what is stored
//
// Each round runs a slice of every contender, so that all see the same load of the machine. A ratio above 1 means that Parley
// is ahead: it is the median of the rounds' ratios. Peers on Node need the modules of test/interop (npm install --prefix
// test/interop, or PARLEY_INTEROP_NODE_MODULES); without them their rows have no figures.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

//go:embed ratios.json
var committed []byte

// ratiosFile is where -write puts what -check reads.
const ratiosFile = "tools/compare/ratios.json"

// tolerance is the part of a committed ratio that -check accepts.
const tolerance = 0.8

func main() {
	serve := flag.Bool("serve-a2a", false, "serve the bare A2A SDK's echo agent; for the command itself")
	o := options{}
	flag.StringVar(&o.only, "only", "", "run only the rows whose names contain this")
	flag.IntVar(&o.rounds, "rounds", 7, "rounds of each row")
	flag.DurationVar(&o.slice, "slice", 500*time.Millisecond, "time of each contender in a round")
	flag.BoolVar(&o.json, "json", false, "print JSON")
	flag.BoolVar(&o.check, "check", false, "fail if a ratio is 20 % below that of "+ratiosFile)
	growing := flag.Bool("growth", false, "measure how costs grow with the size, instead of rows; with -check, fail if one grows more than is accepted")
	flag.BoolVar(&o.write, "write", false, "write the ratios to "+ratiosFile)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := error(nil)
	switch {
	case *serve:
		err = serveSDK(ctx)
	case *growing:
		err = grow(ctx, o, os.Stdout)
	default:
		err = compare(ctx, o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "compare: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	only               string
	rounds             int
	slice              time.Duration
	json, check, write bool
}

// contender is one program in a row. It returns a figure for one slice of time.
type contender struct {
	name string
	run  func(ctx context.Context, slice time.Duration) (float64, error)
}

// row is one kind of work. The first contenders are Parley's; the others are its peers.
type row struct {
	name, unit string
	less       bool // smaller figures are better
	ours       []contender
	peers      []contender
}

// figure is what a contender has reached in a row.
type figure struct {
	Name   string             `json:"name"`
	Median float64            `json:"median"`
	Least  float64            `json:"least"`
	Most   float64            `json:"most"`
	Ratios map[string]float64 `json:"ratios,omitempty"` // of Parley's: by peer
	values []float64
}

// result is the outcome of one row.
type result struct {
	Name    string   `json:"name"`
	Unit    string   `json:"unit"`
	Less    bool     `json:"lessIsBetter"`
	Load    string   `json:"load"` // of the machine, when the row ended
	Figures []figure `json:"figures"`
}

func compare(ctx context.Context, o options, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "compare") // short: a socket's path is limited
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r, err := start(ctx, dir)
	if err != nil {
		return err
	}
	defer r.stop()
	var results []result
	for _, row := range r.rows() {
		if !strings.Contains(row.name, o.only) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s …\n", row.name)
		measured, err := measure(ctx, row, o)
		if err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
		results = append(results, measured)
	}
	if o.json {
		err = printJSON(out, results)
	} else {
		err = printTable(out, results)
	}
	if err == nil && o.write {
		err = writeRatios(results)
	}
	if err == nil && o.check {
		err = check(results, committed)
	}
	return err
}

func grow(ctx context.Context, o options, out io.Writer) error {
	all, err := measureGrowth(ctx, o.only)
	if err == nil {
		err = printGrowth(out, all, o.json)
	}
	if err == nil && o.check {
		err = checkGrowth(all)
	}
	return err
}

// measure runs the rounds of a row, after one that does not count.
func measure(ctx context.Context, r row, o options) (result, error) {
	all := slices.Concat(r.ours, r.peers)
	figures := make([]figure, len(all))
	for round := range o.rounds + 1 {
		for i, c := range all {
			value, err := c.run(ctx, o.slice)
			if err != nil {
				return result{}, fmt.Errorf("%s: %w", c.name, err)
			}
			figures[i].Name = c.name
			if round > 0 {
				figures[i].values = append(figures[i].values, value)
			}
		}
	}
	for i := range figures {
		f := &figures[i]
		f.Median, f.Least, f.Most = median(f.values), slices.Min(f.values), slices.Max(f.values)
		if i >= len(r.ours) {
			continue
		}
		f.Ratios = map[string]float64{}
		for _, peer := range figures[len(r.ours):] {
			f.Ratios[peer.Name] = ratio(f.values, peer.values, r.less)
		}
	}
	return result{Name: r.name, Unit: r.unit, Less: r.less, Load: load(), Figures: figures}, nil
}

// ratio returns how much better ours are than theirs, the median of the rounds.
func ratio(ours, theirs []float64, less bool) float64 {
	var all []float64
	for i := range ours {
		if less {
			all = append(all, theirs[i]/ours[i])
		} else {
			all = append(all, ours[i]/theirs[i])
		}
	}
	return median(all)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// load returns the machine's load, "unknown" where the system does not tell.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

func printJSON(out io.Writer, results []result) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(results)
}

func printTable(out io.Writer, results []result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "work\tprogram\tmedian\tleast to most\tload\tParley is ahead by")
	for _, r := range results {
		for _, f := range r.Figures {
			var ratios []string
			for _, peer := range slices.Sorted(maps.Keys(f.Ratios)) {
				mark := ""
				if f.Ratios[peer] < 1 {
					mark = " (behind)"
				}
				ratios = append(ratios, fmt.Sprintf("%.2f × %s%s", f.Ratios[peer], peer, mark))
			}
			fmt.Fprintf(w, "%s\t%s\t%.4g %s\t%.4g to %.4g\t%s\t%s\n", r.Name, f.Name, f.Median, r.Unit, f.Least, f.Most, r.Load, strings.Join(ratios, ", "))
		}
	}
	return w.Flush()
}

// ratiosOf returns the ratios by row, Parley's contender and peer.
func ratiosOf(results []result) map[string]float64 {
	all := map[string]float64{}
	for _, r := range results {
		for _, f := range r.Figures {
			for peer, v := range f.Ratios {
				all[r.Name+": "+f.Name+" beside "+peer] = v
			}
		}
	}
	return all
}

func writeRatios(results []result) error {
	text, err := json.MarshalIndent(ratiosOf(results), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.FromSlash(ratiosFile), append(text, '\n'), 0o644)
}

// check returns an error that names the rows whose ratio is much worse than the committed one.
func check(results []result, committed []byte) error {
	var before map[string]float64
	if err := json.Unmarshal(committed, &before); err != nil {
		return err
	}
	now := ratiosOf(results)
	var worse []string
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if v, measured := now[name]; measured && v < before[name]*tolerance {
			worse = append(worse, fmt.Sprintf("%s: %.2f, it was %.2f", name, v, before[name]))
		}
	}
	if len(worse) == 0 {
		return nil
	}
	return errors.New("worse than " + ratiosFile + " by more than 20 %:\n  " + strings.Join(worse, "\n  "))
}
