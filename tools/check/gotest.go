package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// event is a line of go test -json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// goTest runs go test and prints what it prints without -json: one line for each package, and the output of failed
// tests. In continuous integration a skipped test is a failure: it would hide a missing program.
//
// The machines that run this are shared, so tests may fail because of high load. If only a few tests fail, they are run
// again alone. Tests that then pass several times are reported as unsteady, and do not fail the check. Failures that load
// cannot cause always count: a data race, a panic, a leaked goroutine, a timeout, a package that does not build.
func (c *check) goTest(ctx context.Context, env []string, args ...string) error {
	r, err := runTests(ctx, env, args)
	if err != nil && ctx.Err() == nil && r.mayBeUnsteady() {
		err = runAgain(ctx, env, args, r.failures)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", r.passed, r.failed, len(r.skipped))
	if len(r.skipped) > 0 {
		slices.Sort(r.skipped)
		fmt.Printf("skipped:\n  %s\n", strings.Join(r.skipped, "\n  "))
	}
	if err == nil && r.failed > 0 {
		fmt.Printf("unsteady: failed once, passed %d times when run again; to be mended:\n", again)
		for _, pkg := range slices.Sorted(maps.Keys(r.failures)) {
			fmt.Printf("  %s: %s\n", pkg, strings.Join(r.failures[pkg], ", "))
		}
	}
	switch {
	case err != nil:
		return err
	case r.passed == 0:
		return errors.New("no test ran")
	case c.ci && len(r.skipped) > 0:
		return errors.New("tests were skipped")
	}
	return nil
}

const (
	again       = 3 // how often a failed test must pass
	maxUnsteady = 5 // failed tests; load does not explain more
)

// runAgain runs the failed tests of each package alone.
func runAgain(ctx context.Context, env, args []string, failures map[string][]string) error {
	kept := slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return strings.HasPrefix(arg, "-cover") || strings.HasPrefix(arg, "-count") || strings.HasPrefix(arg, "./")
	})
	for _, pkg := range slices.Sorted(maps.Keys(failures)) {
		fmt.Printf("run again: %s: %s\n", pkg, strings.Join(failures[pkg], ", "))
		only := fmt.Sprintf("-run=^(%s)$", strings.Join(failures[pkg], "|"))
		r, err := runTests(ctx, env, append(kept, fmt.Sprintf("-count=%d", again), only, pkg))
		if err != nil {
			return err
		}
		if r.passed == 0 || len(r.skipped) > 0 {
			return fmt.Errorf("%s: the tests that failed did not all run again", pkg)
		}
	}
	return nil
}

// runTests runs go test and returns the results of the tests.
func runTests(ctx context.Context, env, args []string) (results, error) {
	var r results
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := cmd.Start(); err != nil {
		return r, err
	}
	scanner := bufio.NewScanner(out)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var e event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			fmt.Println(scanner.Text()) // not from a test: a build error
			r.grave = true
			continue
		}
		r.take(e)
	}
	return r, errors.Join(scanner.Err(), cmd.Wait())
}

// results are the results of the tests so far.
type results struct {
	output         map[string][]string // by package and test, while it runs
	passed, failed int
	skipped        []string
	failures       map[string][]string // top-level tests that failed, by package
	broken         []string            // packages that failed
	grave          bool                // a failure that high load cannot cause
}

// mayBeUnsteady reports whether only tests failed, and only a few.
func (r *results) mayBeUnsteady() bool {
	count := 0
	for _, pkg := range r.broken {
		if len(r.failures[pkg]) == 0 {
			return false // for example, it leaks goroutines
		}
		count += len(r.failures[pkg])
	}
	return !r.grave && count > 0 && count <= maxUnsteady
}

// grave reports whether the output of a failed test has more than failed expectations, such as a data race.
func grave(output string) bool {
	return slices.ContainsFunc([]string{"WARNING: DATA RACE", "panic: ", "fatal error: ", "goleak: "},
		func(sign string) bool { return strings.Contains(output, sign) })
}

func (r *results) take(e event) {
	key := e.Package + "." + e.Test
	r.grave = r.grave || e.Action == "build-fail"
	switch {
	case e.Action == "output":
		r.print(key, e)
		return
	case e.Action == "build-output":
		fmt.Print(e.Output)
		return
	case e.Test == "":
		if e.Action == "fail" {
			r.broken = append(r.broken, e.Package)
		}
		return
	case e.Action == "pass":
		r.passed++
	case e.Action == "skip":
		r.skipped = append(r.skipped, key)
	case e.Action == "fail":
		r.failed++
		r.fail(e)
		output := strings.Join(r.output[key], "")
		r.grave = r.grave || grave(output)
		fmt.Print(output)
	default: // it is running
		return
	}
	delete(r.output, key)
}

// fail records a top-level test, without its subtests: they run again with it.
func (r *results) fail(e event) {
	if strings.Contains(e.Test, "/") {
		return
	}
	if r.failures == nil {
		r.failures = map[string][]string{}
	}
	r.failures[e.Package] = append(r.failures[e.Package], e.Test)
}

// print prints a package's own lines at once, and a test's lines if it fails.
func (r *results) print(key string, e event) {
	if e.Test == "" {
		r.grave = r.grave || grave(e.Output)
		untested := strings.Contains(e.Output, "[no test files]") || strings.HasPrefix(e.Output, "\t") // with its coverage of 0 %
		if e.Output != "PASS\n" && !strings.HasPrefix(e.Output, "coverage: ") && !untested {
			fmt.Print(e.Output)
		}
		return
	}
	if r.output == nil {
		r.output = map[string][]string{}
	}
	r.output[key] = append(r.output[key], e.Output)
}
