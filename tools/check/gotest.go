package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// goTest runs go test and shows what it shows without -json: a line a package,
// and the output of tests that fail. In continuous integration a test that
// skips is a failure: it would hide what is missing.
func (c *check) goTest(ctx context.Context, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var r results
	scanner := bufio.NewScanner(out)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var e event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			fmt.Println(scanner.Text()) // not of a test: a build error
			continue
		}
		r.take(e)
	}
	err = errors.Join(scanner.Err(), cmd.Wait())
	fmt.Printf("%d passed, %d failed, %d skipped\n", r.passed, r.failed, len(r.skipped))
	if len(r.skipped) > 0 {
		slices.Sort(r.skipped)
		fmt.Printf("skipped:\n  %s\n", strings.Join(r.skipped, "\n  "))
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

// results are what tests said so far.
type results struct {
	output         map[string][]string // by package and test, while it runs
	passed, failed int
	skipped        []string
}

func (r *results) take(e event) {
	key := e.Package + "." + e.Test
	switch e.Action {
	case "output":
		r.print(key, e)
	case "build-output":
		fmt.Print(e.Output)
	case "pass", "skip", "fail":
		if e.Test == "" {
			return
		}
		switch e.Action {
		case "pass":
			r.passed++
		case "skip":
			r.skipped = append(r.skipped, key)
		case "fail":
			r.failed++
			fmt.Print(strings.Join(r.output[key], ""))
		}
		delete(r.output, key)
	}
}

// print shows a package's own lines at once and keeps a test's until it fails.
func (r *results) print(key string, e event) {
	if e.Test == "" {
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
