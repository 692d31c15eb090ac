package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
)

// Agents of other hubs are listed in the order of their names, alone and beside others.
func TestAgentsOfOtherHubsAreInTheOrderOfTheirNames(t *testing.T) {
	peer := func(address string) dialect.Agent {
		a := dialect.Agent{ID: address}
		a.Kind, a.Address = string(hub.KindPeer), address
		return a
	}
	program := dialect.Agent{ID: "echo"}
	program.Kind, program.Address = string(hub.KindProgram), "echo"
	for name, agents := range map[string][]dialect.Agent{
		"alone":         {peer("office.vibe"), peer("office.codex"), peer("away.echo")},
		"beside others": {peer("office.vibe"), program, peer("office.codex"), peer("away.echo")},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			a := &app{name: "parley", stdout: newOutput(io.Discard), stderr: io.Discard, getenv: func(string) string { return "" }}
			a.printAgents(&out, agents, agentsFlags{})
			last := 0
			for _, address := range []string{"away.echo", "office.codex", "office.vibe"} {
				at := strings.Index(out.String(), address)
				if at < last {
					t.Errorf("%s is not in its order:\n%s", address, &out)
				}
				last = at
			}
		})
	}
}
