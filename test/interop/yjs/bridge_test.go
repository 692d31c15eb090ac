//go:build interop

// Package yjs_test compares the document engine with npm yjs: replicas of both edit one document and must end with
// the same bytes.
//
//	npm install --prefix test/interop
//	go test -tags interop ./test/interop/yjs
//
// PARLEY_INTEROP_NODE_MODULES names another node_modules directory; with it set, a missing module fails the tests
// instead of skipping them.
package yjs_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const modulesVariable = "PARLEY_INTEROP_NODE_MODULES"

// command is one command for bridge.mjs.
type command map[string]any

// bridge is a node process with replicas of npm yjs.
type bridge struct {
	t   testing.TB
	in  io.WriteCloser
	out *bufio.Reader
}

func newBridge(t testing.TB) *bridge {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		unmet(t, "node is not in PATH")
	}
	cmd := exec.Command(node, filepath.Join(install(t, "yjs"), "bridge.mjs"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the node process: %v", err)
		}
	})
	return &bridge{t: t, in: in, out: bufio.NewReaderSize(out, 1<<20)}
}

// do runs commands and returns their results. The error of any command fails the test.
func (b *bridge) do(commands ...command) []json.RawMessage {
	b.t.Helper()
	results, errs := b.try(commands...)
	for i, err := range errs {
		if err != "" {
			b.t.Fatalf("npm yjs: %s: %s", commands[i]["op"], err)
		}
	}
	return results
}

func (b *bridge) try(commands ...command) (results []json.RawMessage, errs []string) {
	b.t.Helper()
	line, err := json.Marshal(commands)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.in.Write(append(line, '\n')); err != nil {
		b.t.Fatal(err)
	}
	answer, err := b.out.ReadBytes('\n')
	if err != nil {
		b.t.Fatalf("the node process: %v", err)
	}
	var list []struct {
		OK    json.RawMessage
		Error string
	}
	if err := json.Unmarshal(answer, &list); err != nil {
		b.t.Fatal(err)
	}
	for _, r := range list {
		results = append(results, r.OK)
		errs = append(errs, r.Error)
	}
	return results, errs
}

func decode[T any](t testing.TB, raw json.RawMessage) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return v
}

// install returns a directory with the scripts next to the modules they import, because node searches only there.
func install(t testing.TB, needed ...string) string {
	t.Helper()
	modules := os.Getenv(modulesVariable)
	if modules == "" {
		modules = filepath.Join("..", "node_modules")
	}
	modules, err := filepath.Abs(modules)
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range needed {
		if _, err := os.Stat(filepath.Join(modules, module)); err != nil {
			unmet(t, "npm install --prefix test/interop has not been run: there is no "+module)
		}
	}
	dir := t.TempDir()
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	scripts, err := filepath.Glob("*.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scripts {
		text, err := os.ReadFile(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, s), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// unmet skips the test for lack of a tool, or fails it if the environment promised the tool.
func unmet(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(modulesVariable) != "" || os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}
