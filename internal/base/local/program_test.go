package local_test

import (
	"testing"

	"github.com/parleyhub/parley/internal/base/local"
)

func TestTheProgramIsNamedByItsFile(t *testing.T) {
	for path, want := range map[string]string{
		"parley": "parley", "/usr/bin/a2a-hub": "a2a-hub", "./nats-mcp-server": "nats-mcp-server", "Nats-MCP-Server.EXE": "nats-mcp-server",
		"parley-1.2": "parley", "cli.test": "parley", "": "parley",
	} {
		if got := local.ProgramOf(path); got != want {
			t.Errorf("%q: %s, want %s", path, got, want)
		}
	}
}

// What go run has built is in no directory of PATH.
func TestTheCommandOfGoRun(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/bin/parley": "parley", "a2a-hub": "a2a-hub", "/home/ann/.cache/go-build/7f/7f3c-d/parley": "go run ./cmd/parley",
		"/tmp/go-build17/b001/exe/a2a-hub": "go run ./cmd/a2a-hub", "/tmp/go-build17/b001/cli.test": "parley",
		"/opt/go-builder/bin/parley": "parley",
	} {
		if got := local.CommandOf(path); got != want {
			t.Errorf("%q: %s, want %s", path, got, want)
		}
	}
}

func TestATestIsCalledLikeTheProgram(t *testing.T) {
	if got := local.Program(); got != local.ProgramParley {
		t.Error(got)
	}
}
