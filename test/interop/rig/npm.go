//go:build interop

// This file finds what test/interop/package.json names: JavaScript modules, and
// programs that run on the Node that is among them.
//
// PARLEY_INTEROP_NODE_MODULES names the node_modules directory if it is not the
// one beside package.json; then nothing may be missing.
package rig

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const modulesVariable = "PARLEY_INTEROP_NODE_MODULES"

// Modules returns the node_modules directory. A test whose modules are not there
// is skipped, or fails where they are said to be there.
func Modules(t *testing.T, names ...string) string {
	t.Helper()
	dir := os.Getenv(modulesVariable)
	if dir == "" {
		dir = beside(t)
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(name))); err == nil {
			continue
		}
		const why = "npm install --prefix test/interop has not been run: there is no "
		if os.Getenv(modulesVariable) != "" {
			t.Fatal(why + name)
		}
		t.Skip(why + name)
	}
	return dir
}

// beside is the node_modules directory beside package.json, which is in one of the directories above the test's.
func beside(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "package.json")); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return filepath.Join(dir, "node_modules")
}

// Scripts returns a directory with copies of the test's scripts beside the
// modules that they import: Node looks nowhere else.
func Scripts(t *testing.T, scripts []string, modules ...string) string {
	t.Helper()
	all := Modules(t, modules...)
	dir := t.TempDir()
	if err := os.Symlink(all, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	for _, script := range scripts {
		text, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(script)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Node returns the command that runs a script with the pinned Node.
func Node(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	node := filepath.Join(Modules(t, "node"), ".bin", "node")
	return exec.CommandContext(ctx, node, args...)
}
