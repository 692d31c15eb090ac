//go:build interop

// Package a2ajs_test meets the hub's A2A server with the official JavaScript
// clients of both protocol generations, @a2a-js/sdk 1.x and 0.3.x:
//
//	npm install --prefix test/interop
//	go test -tags interop ./test/interop/a2ajs
//
// PARLEY_INTEROP_NODE_MODULES names the node_modules directory if it is another;
// then nothing may be missing.
package a2ajs_test

import (
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/conformance"
)

func TestJavaScriptClients(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		unmet(t, "node is not in PATH")
	}
	scripts := install(t)
	suite, err := conformance.New(t.Context(), conformance.Options{DataDir: t.TempDir(), StreamingTimeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(suite.Handler())
	t.Cleanup(func() {
		server.Close()
		if err := suite.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct{ name, script, address string }{
		{"1.x", "client10.mjs", server.URL + "/agents/" + conformance.AgentID + "/a2a"},
		{"0.3.x", "client03.mjs", server.URL},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, node, "--test", c.script)
			cmd.Dir = scripts
			cmd.Env = append(os.Environ(), "A2A_ADDRESS="+c.address)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

const modulesVariable = "PARLEY_INTEROP_NODE_MODULES"

// install returns a directory with the scripts beside the modules that they
// import: node looks nowhere else.
func install(t *testing.T) string {
	t.Helper()
	modules := os.Getenv(modulesVariable)
	if modules == "" {
		modules = filepath.Join("..", "node_modules")
	}
	modules, err := filepath.Abs(modules)
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{"@a2a-js/sdk", "a2a-js-sdk-0.3"} {
		if _, err := os.Stat(filepath.Join(modules, module)); err != nil {
			unmet(t, "npm install --prefix test/interop has not been run: there is no "+module)
		}
	}
	dir := t.TempDir()
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{"client10.mjs", "client03.mjs"} {
		text, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, script), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// unmet skips a test whose requirement is absent, or fails it where the modules
// are said to be there.
func unmet(t *testing.T, why string) {
	t.Helper()
	if os.Getenv(modulesVariable) != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}
