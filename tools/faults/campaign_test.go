//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

var programDir string

func TestMain(m *testing.M) {
	if address := os.Getenv(serverVariable); address != "" {
		os.Exit(serveNATS(address))
	}
	os.Exit(withProgramDir(m.Run))
}

func withProgramDir(run func() int) int {
	var err error
	if programDir, err = os.MkdirTemp("", "parley-faults-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(programDir) //nolint:errcheck // temporary
	return run()
}

// hubProgram returns Parley's program for all tests: PARLEY_FAULTS_PROGRAM, or the built one.
func hubProgram(t *testing.T) string {
	program, err := builtProgram()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

var builtProgram = sync.OnceValues(func() (string, error) {
	if program := os.Getenv("PARLEY_FAULTS_PROGRAM"); program != "" {
		return program, nil
	}
	program := filepath.Join(programDir, "parley")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/parley").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return program, nil
})

// Two short campaigns with real processes.
func TestShortCampaigns(t *testing.T) {
	if testing.Short() {
		t.Skip("it kills hubs")
	}
	t.Setenv("TMPDIR", t.TempDir())
	var out strings.Builder
	c := campaign{seed: 1, length: 2 * time.Second, pace: 100 * time.Millisecond, between: 5, clients: 1, program: hubProgram(t)}
	broken, err := runSeries(t.Context(), &out, &c, 2)
	if err != nil || len(broken) > 0 || c.seed != 2 || !strings.Contains(out.String(), "sum of 2: ") {
		t.Fatalf("%v, broken: %q\n%s", err, broken, out.String())
	}
}

// A hub is replaced while tasks, mail, work and edits of a document go on, and nothing is lost or twice.
func TestAnUpgradeUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("it replaces a hub")
	}
	var out strings.Builder
	broken, err := runUpgrade(t.Context(), &out, upgrade{old: hubProgram(t), tasks: 40, clients: 1, length: 2 * time.Second, later: true})
	if err != nil || len(broken) > 0 || !strings.Contains(out.String(), `"upgraded":true`) {
		t.Fatalf("%v, broken: %q\n%s", err, broken, out.String())
	}
}
