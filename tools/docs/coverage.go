package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// coverageDoc lists every clause of the specifications with the tests that verify it.
//
// A file of docs/spec lists the clauses of one specification, one on each line:
//
//   - ID: the requirement
//
// "Status: implemented" or "Status: planned" applies to the clauses below it. A test verifies a clause if its comment,
// body or name contains the id ("Req 4.5", "TestProperty16…"). It is an error if a clause of an implemented
// specification has no test, or if a test names an unknown clause. A clause needs no test if its text ends with the
// reason:
//
//   - ID: a detail of TypeScript. Counterpart: what has its purpose in Go
//   - ID: an impossible requirement. Not applicable: the reason
//   - ID: a future feature. Planned: what exists already
func coverageDoc() ([]byte, error) {
	specs, err := readSpecs("docs/spec/*.md")
	if err != nil {
		return nil, err
	}
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*_test.go", ":!tools/").Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests: %w", err)
	}
	refs := references{}
	for _, file := range strings.Fields(string(out)) {
		source, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted and not committed
		}
		if err != nil {
			return nil, err
		}
		refs.scan(filepath.ToSlash(file), string(source))
	}
	return render(specs, refs), verify(specs, refs)
}

// clause is one requirement of a specification.
type clause struct {
	id, text string
	needs    need
}

// need is whether a clause needs a test.
type need string

const (
	aTest       need = "a test"
	counterpart need = "Counterpart"
	nothing     need = "Not applicable"
	toCome      need = "Planned"
)

// spec is one specification.
type spec struct {
	title   string
	clauses []clause
}

// count returns how many clauses have that need.
func (s spec) count(n need) int {
	sum := 0
	for _, c := range s.clauses {
		if c.needs == n {
			sum++
		}
	}
	return sum
}

// excuse matches the end of a clause that needs no test.
var excuse = regexp.MustCompile(`\. (Counterpart|Not applicable|Planned): \S`)

var clauseLine = regexp.MustCompile(`^- ([A-Z][A-Za-z0-9.-]*(?: [0-9]+(?:\.[0-9]+)?)?): (.+)$`)

func readSpecs(pattern string) ([]spec, error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	var specs []spec
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		s, err := parseSpec(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		specs = append(specs, s)
	}
	return specs, nil
}

func parseSpec(text string) (spec, error) {
	var s spec
	seen := map[string]bool{}
	status := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if title, ok := strings.CutPrefix(line, "# "); ok {
			s.title = title
		}
		if value, ok := strings.CutPrefix(line, "Status: "); ok {
			if value != "implemented" && value != "planned" {
				return s, fmt.Errorf("unknown status %q", value)
			}
			status = value
		}
		m := clauseLine.FindStringSubmatch(line)
		if m == nil {
			if strings.HasPrefix(line, "- ") {
				return s, fmt.Errorf("not a clause: %q", line)
			}
			continue
		}
		if seen[m[1]] {
			return s, fmt.Errorf("%s is there twice", m[1])
		}
		seen[m[1]] = true
		if s.title == "" || status == "" {
			return s, errors.New(`needs a title and a line "Status: implemented" or "Status: planned"`)
		}
		c := clause{m[1], m[2], aTest}
		if status == "planned" {
			c.needs = toCome
		}
		if m := excuse.FindStringSubmatch(c.text); m != nil {
			c.needs = need(m[1])
		}
		s.clauses = append(s.clauses, c)
	}
	if len(s.clauses) == 0 {
		return s, errors.New("no clauses")
	}
	return s, nil
}

// references are the tests by the id that they name.
type references map[string][]string

var (
	reference = regexp.MustCompile(`\b(?:(?:HUB|REQ|WIRE)-[A-Z0-9][A-Z0-9-]*[A-Z0-9]|Req(?:uirement)? ?[0-9]+\.[0-9]+(?:, [0-9]+\.[0-9]+)*|(?:Test|Fuzz)?Property ?0*[0-9]+)`)
	testFunc  = regexp.MustCompile(`^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)
	number    = regexp.MustCompile(`^(Req)(?:uirement)? ?([0-9.]+)$|^(?:Test|Fuzz)?(Property) ?0*([0-9]+)$`)
)

// scan finds the ids in one file. An id in a comment above a test belongs to the test, an id in a function to the last
// test above it.
func (r references) scan(file, source string) {
	var pending []string // ids of the comment above the next function
	current := ""
	for line := range strings.Lines(source) {
		if m := testFunc.FindStringSubmatch(line); m != nil {
			current = m[1]
			for _, id := range pending {
				r.add(id, file, current)
			}
			pending = nil
		} else if strings.HasPrefix(line, "func ") {
			pending = nil // the comment of a helper
		}
		for _, id := range named(line) {
			if strings.HasPrefix(line, "//") {
				pending = append(pending, id)
			} else if current != "" {
				r.add(id, file, current)
			}
		}
	}
}

// named returns the ids in a line, as the lists write them. "Req 9.1, 9.2" has two.
func named(line string) []string {
	var ids []string
	for _, found := range reference.FindAllString(line, -1) {
		first, more, _ := strings.Cut(found, ", ")
		ids = append(ids, canonical(first))
		for _, number := range strings.Split(more, ", ") {
			if number != "" {
				ids = append(ids, "Req "+number)
			}
		}
	}
	return ids
}

func (r references) add(id, file, test string) {
	ref := test + " in " + file
	if !slices.Contains(r[id], ref) {
		r[id] = append(r[id], ref)
	}
}

// canonical returns an id as the lists write it: "Req 4.5", "Property 16".
func canonical(id string) string {
	m := number.FindStringSubmatch(id)
	switch {
	case m == nil:
		return id
	case m[1] != "":
		return "Req " + m[2]
	}
	return "Property " + m[4]
}

func render(specs []spec, refs references) []byte {
	var b bytes.Buffer
	b.WriteString("# Specification coverage\n\nWritten by `go run ./tools/docs` from the lists in [spec](spec) and the ids that tests name.\n")
	for _, s := range specs {
		held := 0
		for _, c := range s.clauses {
			if len(refs[c.id]) > 0 {
				held++
			}
		}
		fmt.Fprintf(&b, "\n## %s\n\n%d of %d clauses are held by tests%s.\n\n| Clause | | Tests |\n|---|---|---|\n", s.title, held, len(s.clauses), others(s))
		for _, c := range s.clauses {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", c.id, c.text, tests(refs[c.id]))
		}
	}
	return b.Bytes()
}

// others counts the clauses that need no test.
func others(s spec) string {
	var b strings.Builder
	for _, o := range []struct {
		need need
		text string
	}{{counterpart, "%d have a counterpart in Go"}, {nothing, "%d do not apply"}, {toCome, "%d are planned"}} {
		if n := s.count(o.need); n > 0 {
			fmt.Fprintf(&b, ", "+o.text, n)
		}
	}
	return b.String()
}

// maxShown bounds the tests that a row shows.
const maxShown = 4

func tests(refs []string) string {
	slices.Sort(refs)
	var shown []string
	for i, ref := range refs {
		if i == maxShown {
			shown = append(shown, fmt.Sprintf("and %d more", len(refs)-maxShown))
			break
		}
		test, file, _ := strings.Cut(ref, " in ")
		shown = append(shown, fmt.Sprintf("[%s](../%s)", test, file))
	}
	return strings.Join(shown, ", ")
}

// verify reports clauses without a test, and tests with an unknown clause of a listed specification.
func verify(specs []spec, refs references) error {
	var errs []error
	known := map[string]bool{}
	families := map[string]bool{} // the prefixes of listed clauses, such as HUB, REQ, Req and Property
	for _, s := range specs {
		for _, c := range s.clauses {
			known[c.id] = true
			families[family(c.id)] = true
			if c.needs == aTest && len(refs[c.id]) == 0 {
				errs = append(errs, fmt.Errorf("%s has no test: %s", c.id, c.text))
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(refs)) {
		if !known[id] && families[family(id)] {
			errs = append(errs, fmt.Errorf("no list has %s, which %s names", id, refs[id][0]))
		}
	}
	return errors.Join(errs...)
}

func family(id string) string {
	if i := strings.IndexAny(id, "- "); i > 0 {
		return id[:i]
	}
	return id
}
