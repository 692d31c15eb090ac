//go:build unix

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hubProgram is Parley's program for all tests: PARLEY_FAULTS_PROGRAM, or the built one.
var hubProgram string

func TestMain(m *testing.M) { os.Exit(withProgram(m.Run)) }

func withProgram(run func() int) int {
	if hubProgram = os.Getenv("PARLEY_FAULTS_PROGRAM"); hubProgram != "" {
		return run()
	}
	dir, err := os.MkdirTemp("", "parley-faults-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	hubProgram = filepath.Join(dir, "parley")
	if out, err := exec.Command("go", "build", "-o", hubProgram, "../../cmd/parley").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return run()
}

// A short campaign with real processes.
func TestAShortCampaign(t *testing.T) {
	if testing.Short() {
		t.Skip("it kills hubs")
	}
	t.Setenv("TMPDIR", t.TempDir())
	broken, err := run(t.Context(), io.Discard, campaign{seed: 1, length: 2 * time.Second, clients: 1, program: hubProgram})
	if err != nil || len(broken) > 0 {
		t.Fatalf("%v, broken: %q", err, broken)
	}
}

// A hub is replaced while tasks, mail, work and edits of a document go on, and nothing is lost or twice.
func TestAnUpgradeUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("it replaces a hub")
	}
	var out strings.Builder
	broken, err := runUpgrade(t.Context(), &out, upgrade{old: hubProgram, tasks: 40, clients: 1, length: 2 * time.Second, later: true})
	if err != nil || len(broken) > 0 || !strings.Contains(out.String(), `"upgraded":true`) {
		t.Fatalf("%v, broken: %q\n%s", err, broken, out.String())
	}
}
