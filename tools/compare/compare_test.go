package main

import (
	"context"
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
