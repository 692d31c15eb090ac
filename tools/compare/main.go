// Compare measures Parley beside its peers: the same work, in separate processes on this computer, in turns.
//
//	go run ./tools/compare                         # all rows, as a table
//	go run ./tools/compare -only 'a2a send' -json  # some rows, as JSON
//	go run ./tools/compare -check                  # also names rows that are 20 % worse than tools/compare/ratios.json
//	go run ./tools/compare -write                  # replaces tools/compare/ratios.json and the table of docs/PERFORMANCE.md
//	go run ./tools/compare -growth                 # how the time of work in one process grows with what is stored
//
// Each round runs a slice of every contender, so that all see the same load of the machine. A ratio above 1 means that Parley
// is ahead: it is the median of the rounds' ratios. Peers from npm are installed into the user's cache directory; a peer that
// cannot be had is named with the reason.
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
	"syscall"
	"text/tabwriter"
	"time"
)

//go:embed ratios.json
var committed []byte

// ratiosFile is where -write puts what -check reads.
const ratiosFile = "tools/compare/ratios.json"

// boundless is the ratio to nothing.
const boundless = 100

// tolerance is the part of a committed ratio that -check accepts.
const tolerance = 0.8

func main() {
	serve := flag.Bool("serve-a2a", false, "serve the bare A2A SDK's echo agent; for the command itself")
	o := options{}
	flag.StringVar(&o.only, "only", "", "run only the rows whose names contain this")
	flag.StringVar(&o.programs, "programs", "", "`directory` of programs that are measured as they are, by name (parley, tool, …), instead of built ones")
	flag.IntVar(&o.rounds, "rounds", 7, "rounds of each row")
	flag.DurationVar(&o.slice, "slice", 500*time.Millisecond, "time of each contender in a round")
	flag.BoolVar(&o.json, "json", false, "print JSON")
	flag.BoolVar(&o.check, "check", false, "fail if a ratio is 20 % below that of "+ratiosFile)
	growing := flag.Bool("growth", false, "measure how costs grow with the size, instead of rows; with -check, fail if one grows more than is accepted")
	flag.BoolVar(&o.write, "write", false, "write the ratios to "+ratiosFile+" and the table of "+documentFile)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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
	only, programs     string
	rounds             int
	slice              time.Duration
	json, check, write bool
}

// contender is one program in a row. It returns a figure for one slice of time, which it may exceed. The first call may also
// start programs: its figure does not count.
type contender struct {
	name string
	run  func(ctx context.Context, slice time.Duration) (float64, error)
}

// absent is the error of a contender that cannot be had on this computer.
type absent string

func (a absent) Error() string { return string(a) }

// row is one kind of work. The first contenders are Parley's; the others are its peers.
type row struct {
	name, unit string
	less       bool // smaller figures are better
	most       int  // rounds, of work that takes long; 0 for no limit, 1 also leaves out the one that does not count
	ours       []contender
	peers      []contender
}

// figure is what a contender has reached in a row.
type figure struct {
	Name    string             `json:"name"`
	Median  float64            `json:"median"`
	Least   float64            `json:"least"`
	Most    float64            `json:"most"`
	Ratios  map[string]float64 `json:"ratios,omitempty"`  // of Parley's: by peer
	Problem string             `json:"problem,omitempty"` // why there is no figure
	values  []float64
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
	r := newRig(ctx, dir, o.programs)
	defer r.stop()
	var results []result
	var failed []error
	var names []string
	for _, row := range r.rows() {
		names = append(names, row.name)
		if !strings.Contains(row.name, o.only) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s …\n", row.name)
		measured, err := measure(ctx, row, o)
		r.endRow()
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", row.name, err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		results = append(results, measured)
	}
	if o.json {
		err = printJSON(out, results)
	} else {
		err = printTable(out, results)
	}
	if err == nil && o.write {
		err = errors.Join(writeRatios(names, results), writeDocument(names, results, time.Now()))
	}
	if err == nil && o.check {
		err = check(results, committed)
	}
	return errors.Join(append(failed, err)...)
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

// measure runs the rounds of a row, after one that does not count. A contender that fails is left out of the rest; the error
// has the failures of those that can be had on this computer.
func measure(ctx context.Context, r row, o options) (result, error) {
	all := slices.Concat(r.ours, r.peers)
	figures := make([]figure, len(all))
	rounds, first := o.rounds, 1
	if r.most > 0 {
		rounds = min(rounds, r.most)
	}
	if r.most == 1 {
		first = 0
	}
	var failed []error
	for round := range rounds + first {
		for i, c := range all {
			f := &figures[i]
			f.Name = c.name
			if f.Problem != "" {
				continue
			}
			value, err := c.run(ctx, o.slice)
			switch {
			case err != nil:
				f.Problem = err.Error()
				if !errors.As(err, new(absent)) {
					failed = append(failed, fmt.Errorf("%s: %w", c.name, err))
				}
			case round >= first:
				f.values = append(f.values, value)
			}
		}
	}
	for i := range figures {
		f := &figures[i]
		if f.Problem != "" {
			continue
		}
		f.Median, f.Least, f.Most = median(f.values), slices.Min(f.values), slices.Max(f.values)
		if i >= len(r.ours) {
			continue
		}
		f.Ratios = map[string]float64{}
		for _, peer := range figures[len(r.ours):] {
			if peer.Problem == "" {
				f.Ratios[peer.Name] = ratio(f.values, peer.values, r.less)
			}
		}
	}
	return result{Name: r.name, Unit: r.unit, Less: r.less, Load: load(), Figures: figures}, errors.Join(failed...)
}

// ratio returns how much better ours are than theirs, the median of the rounds.
func ratio(ours, theirs []float64, less bool) float64 {
	if less {
		ours, theirs = theirs, ours
	}
	var all []float64
	for i := range ours {
		switch {
		case ours[i] == theirs[i]: // also where both are 0
			all = append(all, 1)
		case theirs[i] == 0:
			all = append(all, boundless)
		default:
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
			if f.Problem != "" {
				fmt.Fprintf(w, "%s\t%s\tnone: %.100s\t\t%s\t\n", r.Name, f.Name, strings.ReplaceAll(f.Problem, "\n", " "), r.Load)
				continue
			}
			var ratios []string
			for _, peer := range slices.Sorted(maps.Keys(f.Ratios)) {
				ratios = append(ratios, fmt.Sprintf("%.2f × %s%s", f.Ratios[peer], peer, behind(f.Ratios[peer])))
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

// writeRatios replaces the ratios of the rows that were measured; those of rows that no longer exist go.
func writeRatios(names []string, results []result) error {
	all := map[string]float64{}
	before, err := os.ReadFile(filepath.FromSlash(ratiosFile)) // a run before may have replaced what is embedded
	if err == nil {
		err = json.Unmarshal(before, &all)
	}
	if err != nil {
		return err
	}
	maps.DeleteFunc(all, func(name string, _ float64) bool {
		row, _, _ := strings.Cut(name, ": ")
		return !slices.Contains(names, row) || slices.ContainsFunc(results, func(r result) bool { return r.Name == row })
	})
	maps.Copy(all, ratiosOf(results))
	text, err := json.MarshalIndent(all, "", "  ")
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
