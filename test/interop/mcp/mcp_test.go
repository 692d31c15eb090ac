//go:build interop

// Package mcp_test tests Parley's MCP servers with other projects' software: the official
// conformance suite, the inspector, the TypeScript SDK in both eras of the protocol, and a
// stock NATS server with a foreign client.
//
//	npm install --prefix test/interop
//	go test -tags interop ./test/interop/mcp
package mcp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/test/interop/rig"
)

var programs rig.Programs

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "parley-interop-")
	if err == nil {
		programs = rig.Programs(dir)
		err = programs.Build(append(rig.Parley, "github.com/nats-io/nats-server/v2")...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := errors.Join(os.RemoveAll(dir), goleak.Find()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// patience bounds operations of other processes.
const patience = 2 * time.Minute

// output runs a command to its end and returns its standard output. The error of a failed
// command includes standard error.
func output(t *testing.T, make func(ctx context.Context) *exec.Cmd) (stdout string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := make(ctx)
	var out, rest bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &rest
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w\n%s%s", err, out.String(), rest.String())
	}
	return out.String(), nil
}

var httpAddress = regexp.MustCompile(`http://127\.0\.0\.1:\d+`)

// startHub starts a user's hub in the background and returns its address. The hub ends
// with the home's cleanup.
func startHub(t *testing.T, h rig.Home) string {
	t.Helper()
	out, err := output(t, func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, programs.Path("parley"), "start")
		cmd.Env = h.Env
		return cmd
	})
	address := httpAddress.FindString(out)
	if err != nil || address == "" {
		t.Fatalf("%v\n%s", err, out)
	}
	return address
}
