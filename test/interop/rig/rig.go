//go:build interop

// Package rig has what tests with real programs start from: Parley's own
// programs, built, and a home for one user with one hub.
package rig

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// Programs is a directory of built programs.
type Programs string

// programsVariable names a directory of programs that were built before, for campaigns that run for long beside changes.
const programsVariable = "PARLEY_INTEROP_PROGRAMS"

// Build builds packages into the directory, Parley's programs as they are and
// others in the version that go.mod names. A program is called as its package.
func (p Programs) Build(packages ...string) error {
	built := Programs(os.Getenv(programsVariable))
	for _, pkg := range packages {
		if name := path.Base(pkg); built != "" && os.Link(built.Path(name), p.Path(name)) == nil {
			continue
		}
		if out, err := exec.Command("go", "build", "-o", string(p)+string(filepath.Separator), pkg).CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

// Parley are the packages of Parley's programs.
var Parley = []string{"github.com/parleyhub/parley/cmd/parley", "github.com/parleyhub/parley/cmd/nats-mcp-server"}

// Path is where a program is.
func (p Programs) Path(name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(string(p), name)
}

// Home is a user's directory.
type Home struct {
	Dir string
	// Env is the environment in which Parley's programs work there, and nowhere else. Appending to it copies it.
	Env []string
}

// NewHome makes a home. A hub that a program starts there ends with the test.
func (p Programs) NewHome(t *testing.T) Home {
	t.Helper()
	// Not t.TempDir: its long path has no room for a socket's name.
	dir, err := os.MkdirTemp("", "parley-home-")
	if err != nil {
		t.Fatal(err)
	}
	h := Home{dir, slices.Concat(os.Environ(), []string{
		"HOME=" + dir, "XDG_CONFIG_HOME=" + filepath.Join(dir, ".config"),
		"PARLEY_DATA_DIR=" + filepath.Join(dir, "hub"), "PARLEY_SOCKET=" + filepath.Join(dir, "hub.sock"), "PARLEY_HTTP_PORT=0",
	})}
	h.Env = slices.Clip(h.Env)
	t.Cleanup(func() {
		stop := exec.Command(p.Path("parley"), "stop")
		stop.Env = h.Env
		if out, err := stop.CombinedOutput(); err != nil && !bytes.Contains(out, []byte("no hub")) {
			t.Errorf("stop the hub: %v\n%s", err, out)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return h
}

// Project makes the directory of a project, with a .mcp-config.json unless it is empty.
func (h Home) Project(t *testing.T, name, config string) string {
	t.Helper()
	dir := filepath.Join(h.Dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if config != "" {
		if err := os.WriteFile(filepath.Join(dir, ".mcp-config.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
