package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// fixed returns a contender that returns the values in turn.
func fixed(name string, values ...float64) contender {
	n := -1
	return contender{name, func(context.Context, time.Duration) (float64, error) {
		n++
		return values[n%len(values)], nil
	}}
}

func TestTheRatioIsThatOfTheRounds(t *testing.T) {
	for _, c := range []struct {
		less bool
		want float64
	}{{false, 2}, {true, 0.5}} {
		r := row{name: "work", less: c.less, ours: []contender{fixed("ours", 1, 20, 40, 60)}, peers: []contender{fixed("theirs", 1, 10, 20, 60)}}
		got, err := measure(t.Context(), r, options{rounds: 3})
		if err != nil {
			t.Fatal(err)
		}
		f := got.Figures[0]
		if f.Ratios["theirs"] != c.want || f.Median != 40 || f.Least != 20 || f.Most != 60 { // the first round does not count
			t.Errorf("less %t: %+v", c.less, f)
		}
	}
}

func TestAPeerThatCannotBeHadIsNamedWithTheReason(t *testing.T) {
	away := contender{"away", func(context.Context, time.Duration) (float64, error) { return 0, absent("npm is not installed") }}
	broken := contender{"broken", func(context.Context, time.Duration) (float64, error) { return 0, errors.New("it crashed") }}
	r := row{name: "work", ours: []contender{fixed("ours", 2)}, peers: []contender{away, broken, fixed("theirs", 1)}}
	got, err := measure(t.Context(), r, options{rounds: 3})
	if err == nil || !strings.Contains(err.Error(), "broken: it crashed") || strings.Contains(err.Error(), "npm") {
		t.Errorf("failures: %v", err)
	}
	if ratios := got.Figures[0].Ratios; len(ratios) != 1 || ratios["theirs"] != 2 {
		t.Errorf("ratios: %v", ratios)
	}
	var out strings.Builder
	if err := printTable(&out, []result{got}); err != nil || !strings.Contains(out.String(), "none: npm is not installed") || !strings.Contains(out.String(), "none: it crashed") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestWorkThatTakesLongHasFewRounds(t *testing.T) {
	for most, want := range map[int]int{0: 6, 3: 4, 1: 1} { // with the round that does not count
		runs := 0
		count := contender{"ours", func(context.Context, time.Duration) (float64, error) { runs++; return 1, nil }}
		if _, err := measure(t.Context(), row{most: most, ours: []contender{count}}, options{rounds: 5}); err != nil || runs != want {
			t.Errorf("at most %d rounds: %d runs, %v", most, runs, err)
		}
	}
}

func TestNothingIsAsGoodAsNothing(t *testing.T) {
	if r := ratio([]float64{0, 0, 0}, []float64{0, 0, 0}, true); r != 1 {
		t.Errorf("none beside none: %v", r)
	}
	if r := ratio([]float64{0}, []float64{3}, true); r != boundless {
		t.Errorf("none beside three: %v", r)
	}
	if r := ratio([]float64{3}, []float64{0}, true); r != 0 {
		t.Errorf("three beside none: %v", r)
	}
}

func TestTheTableOfTheDocumentIsReplacedRowByRow(t *testing.T) {
	document := "before\n" + tableBegin + "\n| | |\n|---|\n| kept | old |\n| work | old |\n| gone | old |\n\n" + tableEnd + "after\n"
	results := []result{{Name: "work", Unit: "ms", Load: "1.0", Figures: []figure{
		{Name: "ours", Median: 2, Least: 1, Most: 3, Ratios: map[string]float64{"theirs": 0.5}}, {Name: "theirs", Median: 1234.5, Least: 1, Most: 2000},
	}}}
	now := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	once, err := replaceTable(document, []string{"work", "kept"}, results, now)
	if err != nil {
		t.Fatal(err)
	}
	const line = "| work | ours: 2 ms (1 to 3) | theirs: 1234 ms (1 to 2000) | ours: 0.50 × theirs (behind) | 2026-11-29, load 1.0 |\n| kept | old |\n"
	if !strings.Contains(once, line) || strings.Contains(once, "gone") || !strings.HasPrefix(once, "before\n") || !strings.HasSuffix(once, "after\n") {
		t.Error(once)
	}
	if twice, err := replaceTable(once, []string{"work", "kept"}, results, now); err != nil || twice != once {
		t.Errorf("%v\n%s", err, twice)
	}
	if _, err := replaceTable("no table", nil, nil, now); err == nil {
		t.Error("a document without a place for the table was changed")
	}
}

func TestTheTableOfTheTreeCanBeReplaced(t *testing.T) {
	text, err := os.ReadFile("../../docs/PERFORMANCE.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := replaceTable(string(text), nil, nil, time.Now()); err != nil {
		t.Error(err)
	}
}

func TestMetricsAreThoseOfTheLastBenchmark(t *testing.T) {
	got := metricsOf([]byte("goos: linux\nBenchmarkA-2 \t 5 \t 1.0 go-ms\nBenchmarkJoin-2 \t 5\t 5.25 go-ms\t 10.5 npm-ms\nPASS\n"))
	if got["go-ms"] != 5.25 || got["npm-ms"] != 10.5 {
		t.Errorf("%v", got)
	}
	if got := metricsOf([]byte("--- SKIP\nPASS\n")); got != nil {
		t.Errorf("of no benchmark: %v", got)
	}
}

func TestRowsHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range newRig(t.Context(), t.TempDir(), "").rows() {
		if seen[r.name] || strings.Contains(r.name, ": ") || strings.Contains(r.name, "|") { // as ratios and the table need them
			t.Errorf("the name %q", r.name)
		}
		seen[r.name] = true
	}
}

func TestARowThatBecameWorseIsNamed(t *testing.T) {
	results := []result{{Name: "work", Figures: []figure{{Name: "ours", Ratios: map[string]float64{"theirs": 0.9}}}}}
	if err := check(results, []byte(`{"work: ours beside theirs": 1.1, "not measured: a beside b": 9}`)); err != nil {
		t.Error(err)
	}
	err := check(results, []byte(`{"work: ours beside theirs": 1.2}`))
	if err == nil || !strings.Contains(err.Error(), "work: ours beside theirs: 0.90, it was 1.20") {
		t.Error(err)
	}
	if err := check(results, committed); err != nil { // which must be readable
		t.Error(err)
	}
}

func TestTheTableSaysWhereParleyIsBehind(t *testing.T) {
	var out strings.Builder
	results := []result{{Name: "work", Unit: "/s", Load: "1.0", Figures: []figure{{Name: "ours", Ratios: map[string]float64{"a": 2, "b": 0.5}}}}}
	if err := printTable(&out, results); err != nil || !strings.Contains(out.String(), "2.00 × a, 0.50 × b (behind)") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
