// Check builds and tests everything, as continuous integration does:
//
//	go run ./tools/check
//
// It requires Go and git. It also uses, and reports, a C compiler for the race detector, and npm and Chromium for the
// tests with real agents, clients and pages. In continuous integration (CI=true) all of them are required, a missing
// Chromium is installed with apt-get if possible, and a skipped test is a failure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	var c check
	flag.BoolVar(&c.quick, "quick", false, "leave out the race detector, the other platforms and the real agents")
	only := flag.String("only", "", "run only these steps, separated by commas; the steps fuzz and mutate run only then")
	flag.DurationVar(&c.fuzzTime, "fuzztime", 30*time.Second, "how long the step fuzz runs each target")
	flag.StringVar(&c.property, "property", "", "the `number` of the only property that the step mutate breaks, two digits")
	flag.StringVar(&c.clause, "clause", "", "the `id` of the only clause that the step mutate breaks, such as 10.4")
	flag.Parse()
	c.ci = os.Getenv("CI") == "true"
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	// With -trimpath, checkouts in different directories share the build cache.
	os.Setenv("GOFLAGS", strings.TrimSpace(os.Getenv("GOFLAGS")+" -trimpath"))
	if err := c.run(ctx, *only); err != nil {
		fmt.Fprintf(os.Stderr, "\ncheck: %v\n", err)
		os.Exit(1)
	}
	fmt.Println("\ncheck: all is well")
}

type check struct {
	quick    bool
	ci       bool
	fuzzTime time.Duration
	property string
	clause   string
}

type step struct {
	name string
	run  func(context.Context) error
}

func (c *check) steps() []step {
	return []step{
		{"format", format},
		{"comments", comments},
		{"glossary", glossary},
		{"build", goCommand("build", "./...")},
		{"platforms", c.platforms},
		{"vet", goCommand("vet", "./...")},
		{"staticcheck", goCommand("tool", "-modfile=tools/lint.mod", "staticcheck", "./...")},
		{"generated", goCommand("run", "./tools/docs", "-check")},
		{"test", c.test},
		{"interop", c.interop},
		{"fuzz", c.fuzz},
		{"mutate", c.mutate},
	}
}

func (c *check) run(ctx context.Context, only string) error {
	var failed []string
	for _, s := range c.steps() {
		if only == "" && (s.name == "fuzz" || s.name == "mutate") || only != "" && !slices.Contains(strings.Split(only, ","), s.name) {
			continue
		}
		fmt.Printf("== %s\n", s.name)
		began := time.Now()
		err := s.run(ctx)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			failed = append(failed, s.name)
			fmt.Printf("FAILED %s: %v\n", s.name, err)
		}
		fmt.Printf("-- %s: %s\n", s.name, time.Since(began).Round(100*time.Millisecond))
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// command runs a program and prints its output.
func command(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), env...)
	return cmd.Run()
}

func goCommand(args ...string) func(context.Context) error {
	return func(ctx context.Context) error { return command(ctx, nil, "go", args...) }
}

func format(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "gofmt", "-l", ".").Output()
	if err != nil {
		return err
	}
	if len(out) > 0 {
		return fmt.Errorf("gofmt would change:\n%s", out)
	}
	return nil
}

// test runs all tests, with the race detector if there is a C compiler, and checks the coverage of each package.
func (c *check) test(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "parley-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	profile := filepath.Join(dir, "coverage.out")
	args := []string{"-coverprofile=" + profile, "-timeout=25m", "-vet=off", sideBySide()} // another step vets the tests
	switch {
	case c.quick:
	case hasRace(ctx):
		args = append(args, "-race", "-covermode=atomic")
	case c.ci:
		return errors.New("the race detector needs a C compiler")
	default:
		fmt.Println("without the race detector: there is no C compiler")
	}
	return errors.Join(c.goTest(ctx, collectRarely(), append(args, "./...")...), checkCoverage(profile))
}

// sideBySide returns the flag by which the tests of one package more than there are processors run side by side: many tests
// wait for a disk or for another process.
func sideBySide() string { return fmt.Sprintf("-p=%d", runtime.GOMAXPROCS(0)+1) }

// collectRarely returns the environment in which tests collect garbage rarely, unless the caller's sets it. Many hubs in the
// process of a test would otherwise set the soft memory limit of one, and the collector would take most of the time.
func collectRarely() []string {
	var env []string
	for name, value := range map[string]string{"GOGC": "400", "GOMEMLIMIT": "off"} {
		if os.Getenv(name) == "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func hasRace(ctx context.Context) bool {
	out, err := exec.CommandContext(ctx, "go", "env", "CC").Output()
	if err != nil {
		return false
	}
	_, err = exec.LookPath(strings.TrimSpace(string(out)))
	return err == nil
}
