package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func profile(t *testing.T, lines string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "coverage.out")
	if err := os.WriteFile(path, []byte("mode: atomic\n"+lines), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLowCoverageIsAnError(t *testing.T) {
	const good, bad = module + "internal/good/a.go", module + "internal/bad/a.go"
	lines := good + ":1.1,2.2 8 1\n" + good + ":3.1,4.2 2 0\n" +
		bad + ":1.1,2.2 7 1\n" + bad + ":3.1,4.2 3 0\n" +
		module + "cmd/x/main.go:1.1,2.2 5 0\n" + module + "agent/agenttest/a.go:1.1,2.2 5 0\n"
	err := checkCoverage(profile(t, lines))
	if err == nil || !strings.Contains(err.Error(), "internal/bad: 70.0 %") {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"good", "cmd", "agenttest"} {
		if strings.Contains(err.Error(), name) {
			t.Errorf("%s is reported: %v", name, err)
		}
	}
}

// A block that tests of several packages run counts once.
func TestABlockCountsOnce(t *testing.T) {
	const file = module + "internal/x/a.go"
	covered, err := readCoverage(profile(t, file+":1.1,2.2 10 0\n"+file+":1.1,2.2 10 3\n"))
	if err != nil || covered[module+"internal/x"] != (coverage{10, 10}) {
		t.Errorf("got %+v, %v", covered, err)
	}
	if _, err := readCoverage(profile(t, "a:1.1,2.2 x 0\n")); err == nil {
		t.Error("an invalid profile was accepted")
	}
}

func TestResultsAreCounted(t *testing.T) {
	var r results
	for _, e := range []event{
		{Action: "pass", Package: "p", Test: "A"}, {Action: "skip", Package: "p", Test: "B"},
		{Action: "output", Package: "p", Test: "C", Output: ""}, {Action: "fail", Package: "p", Test: "C"}, {Action: "pass", Package: "p"},
	} {
		r.take(e)
	}
	if r.passed != 1 || r.failed != 1 || len(r.skipped) != 1 || r.skipped[0] != "p.B" {
		t.Errorf("got %+v", r)
	}
}

func TestOnlyFailuresThatLoadMayCauseAreRunAgain(t *testing.T) {
	failed := func(test string) []event {
		return []event{{Action: "fail", Package: "p", Test: test}, {Action: "fail", Package: "p"}}
	}
	said := func(text string) event { return event{Action: "output", Package: "p", Test: "A", Output: text} }
	for name, tc := range map[string]struct {
		events []event
		want   bool
	}{
		"one test":      {failed("A"), true},
		"nothing":       {[]event{{Action: "pass", Package: "p", Test: "A"}, {Action: "pass", Package: "p"}}, false},
		"a data race":   {append([]event{said("WARNING: DATA RACE\n")}, failed("A")...), false},
		"a panic":       {append([]event{said("panic: no\n")}, failed("A")...), false},
		"a leak":        {[]event{{Action: "fail", Package: "p"}}, false},
		"no build":      {append([]event{{Action: "build-fail"}}, failed("A")...), false},
		"another leaks": {append([]event{{Action: "fail", Package: "q"}}, failed("A")...), false},
		"too many":      {append(append(append(failed("A"), failed("B")...), failed("C")...), append(failed("D"), append(failed("E"), failed("F")...)...)...), false},
	} {
		var r results
		for _, e := range tc.events {
			r.take(e)
		}
		if got := r.mayBeUnsteady(); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	var r results
	for _, e := range []event{{Action: "fail", Package: "p", Test: "A/part"}, {Action: "fail", Package: "p", Test: "A"}} {
		r.take(e)
	}
	if len(r.failures["p"]) != 1 || r.failed != 2 {
		t.Errorf("%+v", r)
	}
}

func TestExportedIdentifiersNeedAComment(t *testing.T) {
	missing, err := undescribed("a.go", `package a

// Good is described.
func Good() {}

func Bad() {}

type (
	// T is described.
	T[K any] struct{}
	U        int
	v        int
)

func (t *T[K]) Method() {}
func (T[K]) Error() string { return "" }
func (v) Hidden() {}
func unseen() {}
`)
	if got := strings.Join(missing, " "); err != nil || got != "a.go:6:6: Bad a.go:11:2: U a.go:15:16: Method" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestOneNameOfAProgramIsEnough(t *testing.T) {
	for there, want := range map[string]string{"google-chrome": "", "chromium": "", "firefox": "chromium"} {
		got := missingPrograms(func(name string) bool { return name == there || !strings.Contains(name, "chrom") })
		if strings.Join(got, " ") != want {
			t.Errorf("with %s installed, %v is missing", there, got)
		}
	}
}

func TestRetiredWordsAreFound(t *testing.T) {
	words, err := retiredWords("# G\n\n## Retired words\n\n| retired | use | comments | only in |\n|---|---|---|---|\n" +
		"| lobby | admission | yes | |\n| roll | registry | no | |\n| fold | session cache | no | internal/mcp |\n")
	if err != nil {
		t.Fatal(err)
	}
	found, err := retiredIn("a/a.go", `package a

// The Lobby is large; payroll is fine, a roll too.
type openLobbies struct{ rollCall, controlled, folds int }

func rolls() { lobbys := 1; _ = lobbys }
`, words)
	want := []string{`a/a.go:4:26: rollCall: not "roll" but registry`, `a/a.go:6:6: rolls: not "roll" but registry`,
		`a/a.go:6:16: lobbys: not "lobby" but admission`, `a/a.go:6:33: lobbys: not "lobby" but admission`, `a/a.go:3:1: comment: not "lobby" but admission`}
	if err != nil || !slices.Equal(found, want) {
		t.Errorf("got %q, %v", found, err)
	}
	found, err = retiredIn("internal/mcp/a.go", "package a\n\nvar fold int\n", words)
	if err != nil || len(found) != 1 {
		t.Errorf("in its folder: got %q, %v", found, err)
	}
	for _, page := range []string{"# G\n", "# G\n\n## Retired words\n"} {
		if _, err := retiredWords(page); err == nil {
			t.Errorf("%q is read as a glossary", page)
		}
	}
}

// Every mutation's text occurs exactly once in its file, so each mutation changes the line that it is meant for.
func TestEveryMutationsTextOccursOnce(t *testing.T) {
	all := slices.Clone(mutations)
	for _, c := range clauses {
		all = append(all, c.mutation)
	}
	for _, m := range all {
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(m.file)))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), m.old); n != 1 {
			t.Errorf("property %s, %s (%s): %q occurs %d times", m.property, m.file, m.breaks, m.old, n)
		}
	}
}
