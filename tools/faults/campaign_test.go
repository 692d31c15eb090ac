//go:build unix

package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A short campaign with real processes.
func TestAShortCampaign(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds and kills hubs")
	}
	t.Chdir(filepath.Join("..", ".."))
	t.Setenv("TMPDIR", t.TempDir())
	broken, err := run(t.Context(), io.Discard, campaign{seed: 1, length: 3 * time.Second, clients: 2, program: os.Getenv("PARLEY_FAULTS_PROGRAM")})
	if err != nil || len(broken) > 0 {
		t.Fatalf("%v, broken: %q", err, broken)
	}
}
