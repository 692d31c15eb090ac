package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// propertyPackages are the packages that test each property, separated by spaces.
var propertyPackages = map[string]string{
	"01": "registry", "02": "registry", "03": "registry", "04": "agent", "05": "registry",
	"06": "envelope", "07": "envelope", "08": "envelope", "09": "envelope",
	"10": "channel", "11": "channel", "12": "channel",
	"13": "router", "14": "router", "15": "router", "16": "router", "17": "router",
	"18": "toolbox", "19": "toolbox", "20": "toolbox", "21": "toolbox", "22": "toolbox",
	"23": "negotiation", "24": "negotiation", "25": "swarm", "26": "swarm",
	"27": "crdt/replica", "28": "crdt crdt/replica",
	"29": "router", "30": "router", "31": "router", "32": "telemetry", "33": "toolbox", "34": "telemetry",
}

// patience bounds one run: a mutation may make a test hang, which counts as a failure.
const patience = 3 * time.Minute

// mutate verifies that the property tests can fail. For each mutation of its table it changes one text of the
// coordination library, in a copy that go test reads instead of the file, and runs the property that must fail. It
// returns an error if a property passes, if a text does not occur, or if a property fails without a mutation. The step
// runs only if -only names it.
func (c *check) mutate(ctx context.Context) error {
	only := c.property
	if only == "" {
		if err := complete(); err != nil {
			return err
		}
	}
	if c.clause != "" {
		return c.breakAll(ctx)
	}
	failed, out, err := testProperty(ctx, only)
	if err != nil {
		return err
	}
	if failed {
		return fmt.Errorf("the properties must hold before anything is broken:\n%s", out)
	}
	return c.breakAll(ctx)
}

// breakAll tries the mutations of the properties and of the clauses, or those that the command line selects.
func (c *check) breakAll(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	survived := 0
	attempt := func(name, pattern, pkgs string, m mutation) error {
		noticed, err := try(ctx, dir, pattern, pkgs, m)
		if err != nil {
			return fmt.Errorf("%s, %s (%s): %w", name, m.file, m.breaks, err)
		}
		verdict := "noticed  "
		if !noticed {
			verdict = "UNNOTICED"
			survived++
		}
		fmt.Printf("%s  %s  %-28s %s\n", name, verdict, m.file, m.breaks)
		return nil
	}
	for _, m := range mutations {
		if c.clause == "" && (c.property == "" || c.property == m.property) {
			if err := attempt("property "+m.property, "^TestProperty"+m.property, propertyPackages[m.property], m); err != nil {
				return err
			}
		}
	}
	for _, x := range clauses {
		if c.property == "" && (c.clause == "" || c.clause == x.clause) {
			if err := attempt("clause "+x.clause, "^"+x.test+"$", x.pkg, x.mutation); err != nil {
				return err
			}
		}
	}
	if survived > 0 {
		return fmt.Errorf("%d mutations went unnoticed", survived)
	}
	return nil
}

// complete reports an error unless each property has a mutation.
func complete() error {
	for property := range propertyPackages {
		if !slices.ContainsFunc(mutations, func(m mutation) bool { return m.property == property }) {
			return fmt.Errorf("property %s has no mutation", property)
		}
	}
	return nil
}

// try runs the tests that match a pattern on the mutated source and reports whether one failed.
func try(ctx context.Context, dir, pattern, pkgs string, m mutation) (noticed bool, err error) {
	overlay, err := writeMutated(dir, m)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	noticed, out, err := matching(ctx, pattern, pkgs, "-overlay", overlay)
	switch {
	case err != nil:
		return false, err
	case strings.Contains(out, "no tests to run"):
		return false, fmt.Errorf("there is no test %s in %s", pattern, pkgs)
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return false, fmt.Errorf("the mutated source does not build:\n%s", out)
	}
	return noticed, nil
}

// testProperty runs a property's test, or all for "", in the packages that have property tests, and reports whether it
// failed.
func testProperty(ctx context.Context, property string) (failed bool, out string, err error) {
	pkgs := ""
	for number, p := range propertyPackages {
		if property == "" || property == number {
			pkgs += " " + p
		}
	}
	return matching(ctx, "^TestProperty"+property, pkgs)
}

// rapidImport is part of the tests that have rapid's flags.
const rapidImport = `"pgregory.net/rapid"`

// usesRapid reports whether the tests of a package use rapid.
func usesRapid(pkg string) bool {
	files, err := filepath.Glob(filepath.Join(filepath.FromSlash(pkg), "*_test.go"))
	return err == nil && slices.ContainsFunc(files, func(file string) bool {
		source, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(source), rapidImport)
	})
}

// matching runs the tests that match a pattern. It reports whether one failed.
func matching(ctx context.Context, pattern, pkgs string, flags ...string) (failed bool, out string, err error) {
	var targets, last []string
	for _, p := range strings.Fields(pkgs) {
		if target := "./" + p; !slices.Contains(targets, target) {
			targets = append(targets, target)
		}
		if usesRapid(p) {
			last = []string{"-rapid.nofailfile"}
		}
	}
	args := append([]string{"test", "-count=1", "-timeout=2m", "-run", pattern}, flags...)
	cmd := exec.CommandContext(ctx, "go", slices.Concat(args, targets, last)...)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return true, string(text), nil
	}
	return false, string(text), err
}

// writeMutated writes the mutated copy, and the overlay that replaces the file with it.
func writeMutated(dir string, m mutation) (overlay string, err error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", fmt.Errorf("run it at the top of the repository: %w", err)
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return "", fmt.Errorf("the place to break is there %d times", n)
	}
	broken := filepath.Join(dir, "broken.go")
	if err := os.WriteFile(broken, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o600); err != nil {
		return "", err
	}
	path, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(map[string]any{"Replace": map[string]string{path: broken}})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, data, 0o600)
}
