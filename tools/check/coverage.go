package main

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// leastCoverage is the percentage of its statements that each package's own tests must cover.
const leastCoverage = 80

// uncovered are the packages whose tests run them as separate processes, or that are tools of the tests, or other
// projects' code, by their path in the module.
var uncovered = []string{"cmd/", "examples/", "tools/", "test/", "internal/testbed/", thirdParty}

const module = "github.com/parleyhub/parley/"

// checkCoverage reads a profile of go test and returns an error for packages below leastCoverage.
func checkCoverage(profile string) error {
	covered, err := readCoverage(profile)
	if err != nil {
		return err
	}
	var low []string
	for _, pkg := range slices.Sorted(maps.Keys(covered)) {
		percent := covered[pkg].percent()
		if percent < leastCoverage && !exempt(pkg) {
			low = append(low, fmt.Sprintf("%s: %.1f %%", pkg, percent))
		}
	}
	if len(low) > 0 {
		return fmt.Errorf("less than %d %% of the statements are covered in\n  %s", leastCoverage, strings.Join(low, "\n  "))
	}
	return nil
}

func exempt(pkg string) bool {
	rest := strings.TrimPrefix(pkg, module)
	return slices.ContainsFunc(uncovered, func(prefix string) bool {
		return strings.HasPrefix(rest+"/", prefix) || rest == prefix
	}) || strings.HasSuffix(pkg, "test") // test helpers, such as agenttest
}

// coverage counts statements.
type coverage struct{ all, run int }

func (c coverage) percent() float64 {
	if c.all == 0 {
		return 100
	}
	return 100 * float64(c.run) / float64(c.all)
}

// readCoverage counts a profile's statements by package. A block may occur more than once; it is covered if one
// occurrence was run.
func readCoverage(profile string) (map[string]coverage, error) {
	text, err := os.ReadFile(profile)
	if err != nil {
		return nil, err
	}
	type block struct {
		statements int
		run        bool
	}
	blocks := map[string]block{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // FILE:FROM,TO STATEMENTS COUNT
		if len(fields) != 3 {
			continue // the line of the mode
		}
		statements, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", profile, line, err)
		}
		blocks[fields[0]] = block{statements, blocks[fields[0]].run || fields[2] != "0"}
	}
	covered := map[string]coverage{}
	for place, b := range blocks {
		file, _, _ := strings.Cut(place, ":")
		c := covered[path.Dir(file)]
		c.all += b.statements
		if b.run {
			c.run += b.statements
		}
		covered[path.Dir(file)] = c
	}
	return covered, nil
}
