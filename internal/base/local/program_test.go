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

func TestATestIsCalledLikeTheProgram(t *testing.T) {
	if got := local.Program(); got != local.ProgramParley {
		t.Error(got)
	}
}
