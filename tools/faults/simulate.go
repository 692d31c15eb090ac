package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// simulator is what is simulated, by a test: virtual time needs one.
type simulator struct {
	dir, test string
	enough    int                 // simulations that find each mutation that they can find
	finds     func(mutation) bool // whether they can find it
}

var (
	simulatedAgents = simulator{"./tools/faults", "TestSimulatedAgentsKeepThePromises", 200, func(m mutation) bool { return m.simulated }}
	simulatedHubs   = simulator{"./internal/testbed/simlink", "TestFederatedHubsKeepThePromises", 1000, func(m mutation) bool { return m.federated }}
)

// memory is a directory in memory on Linux. A simulation syncs nothing, but it writes many files.
const memory = "/dev/shm"

// tempDir makes a directory for simulations.
func tempDir(pattern string) (string, error) {
	if dir, err := os.MkdirTemp(memory, pattern); err == nil {
		return dir, nil
	}
	return os.MkdirTemp("", pattern)
}

// frugal is the environment of a process that simulates: only one goroutine of a bubble has something to do at most times, the
// heap that is in use is small, so that a collection is worth its time late, and hubs look through their variables in each turn.
func frugal(dir string, mutant int) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=256MiB", "TMPDIR=" + dir, fmt.Sprintf("%s=%d", mutantVariable, mutant)}
}

// runSimulations simulates with n seeds from c.seed on, in as many processes as there are processors, and returns the
// promises that were broken.
func runSimulations(ctx context.Context, out io.Writer, c campaign, of simulator, n int) (broken []string, err error) {
	dir, err := tempDir("parley-simulations-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	program, err := of.build(ctx, dir)
	if err != nil {
		return nil, err
	}
	began, processes := time.Now(), min(runtime.GOMAXPROCS(0), n)
	texts, errs := make([]string, processes), make([]error, processes)
	var wait sync.WaitGroup
	for i := range processes {
		first, next := n*i/processes, n*(i+1)/processes
		wait.Go(func() { texts[i], errs[i] = of.run(ctx, program, c.seed+uint64(first), next-first, 0) })
	}
	wait.Wait()
	for i, text := range texts {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "simulated: ") {
				fmt.Fprint(out, line)
			}
		}
		if _, failed := errors.AsType[*exec.ExitError](errs[i]); failed && ctx.Err() == nil {
			broken, errs[i] = append(broken, text), nil
		}
	}
	took := time.Since(began)
	fmt.Fprintf(out, "%d simulations in %.0f s, %d processes, %.0f in a minute\n", n, took.Seconds(), processes, float64(n)/took.Minutes())
	return broken, errors.Join(errs...)
}

// build builds the simulations.
func (of simulator) build(ctx context.Context, dir string, flags ...string) (program string, err error) {
	program = filepath.Join(dir, "simulations")
	args := append(append([]string{"test", "-c", "-o", program}, flags...), of.dir)
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the simulations, at the top of the repository: %w\n%s", err, out)
	}
	return program, nil
}

// run runs n simulations in a process and returns what it says.
func (of simulator) run(ctx context.Context, program string, seed uint64, n, mutant int) (string, error) {
	cmd := exec.CommandContext(ctx, program, "-test.run", "^"+of.test+"$", "-test.timeout", "0", "-test.failfast",
		fmt.Sprintf("-simulations=%d", n), fmt.Sprintf("-simulation-seed=%d", seed))
	cmd.Env = frugal(filepath.Dir(program), mutant)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	return said.String(), err
}

// simulateMutations simulates with each error that a simulation can find, and returns the errors that were not found.
func simulateMutations(ctx context.Context, out io.Writer, c campaign, of simulator, only string) (unnoticed []string, err error) {
	dir, err := tempDir("parley-mutations-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	overlay, err := writeMutants(dir)
	if err != nil {
		return nil, err
	}
	program, err := of.build(ctx, dir, "-overlay", overlay)
	if err != nil {
		return nil, err
	}
	for i, m := range mutations {
		if !of.finds(m) || !strings.Contains(m.breaks, only) {
			continue
		}
		began := time.Now()
		said, err := of.run(ctx, program, c.seed, of.enough, i+1)
		switch {
		case ctx.Err() != nil:
			return unnoticed, ctx.Err()
		case err == nil:
			unnoticed = append(unnoticed, "unnoticed: "+m.breaks)
			fmt.Fprintf(out, "UNNOTICED  %s\n", m.breaks)
		default:
			fmt.Fprintf(out, "found      %s: %.1f s, %.160q\n", m.breaks, time.Since(began).Seconds(), firstFailure(said))
		}
	}
	return unnoticed, nil
}

// firstFailure returns the first line of a test's failure.
func firstFailure(said string) string {
	_, after, found := strings.Cut(said, "_test.go:")
	if !found {
		return said
	}
	line, _, _ := strings.Cut(after, "\n")
	return line
}
