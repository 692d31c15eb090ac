//go:build unix

package cli_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/base/wait"
)

// openHolder opens a session that claims main.go. The program is the session's own if ofSession is set, and its MCP server else.
func (d *machine) openHolder(ofSession bool) (s *openedSession, guid string) {
	d.t.Helper()
	cmd := d.command("parley", "a", "mcp")
	if ofSession {
		cmd.Env = append(cmd.Env, beParley+"=", beAgent+"=holder")
	}
	s = &openedSession{mcpChild: d.serve(cmd)}
	s.ask(1, "initialize", initializeParams)
	s.calls = 1
	wait.Eventually(d.t, "the holder is registered", func() bool { // three of its signs of life are 30 seconds
		_, registered, _ := s.result("register_agent", `{"agentType":"holder","capabilities":[],"scope":"project","heartbeatInterval":10}`)
		guid, _ = registered["guid"].(string)
		return guid != ""
	})
	if said := s.say("claim_files", `{"paths":["main.go"]}`); !strings.HasPrefix(said, "You have") {
		d.t.Fatal(said)
	}
	return s, guid
}

// Whatever is killed without a warning: a claim counts exactly as long as the registration of its holder, and that ends when its signs of
// life have been missing for three intervals. A hub that is killed and starts again changes nothing while the holder lives.
func TestAClaimEndsWithItsKilledHolder(t *testing.T) {
	t.Parallel()
	for _, killed := range []string{"session", "MCP server", "hub and MCP server"} {
		t.Run(killed, func(t *testing.T) {
			t.Parallel()
			d := newMachine(t)
			holder, guid := d.openHolder(killed == "session")
			other := d.openSession("other")
			if said := other.say("claim_files", `{"paths":["main.go"]}`); !strings.HasPrefix(said, "ConflictError") {
				t.Fatal(said)
			}
			if strings.HasPrefix(killed, "hub") {
				d.killHub()
				wait.Eventually(t, "the hub that starts again knows the claim", func() bool {
					return strings.HasPrefix(other.say("claim_files", `{"paths":["main.go"]}`), "ConflictError")
				})
			}
			if err := holder.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = holder.Wait() // it was killed
			if strings.HasPrefix(killed, "hub") {
				d.killHub()
			}
			wait.Eventually(t, "the claim ends", func() bool {
				before := other.liveness(guid)
				said := other.say("claim_files", `{"paths":["main.go"]}`)
				free, after := strings.HasPrefix(said, "You have"), other.liveness(guid)
				if strings.HasPrefix(said, "ConflictError") && before == "offline" {
					t.Fatalf("the claim outlives the registration of its holder: %s", said)
				}
				if free && after != "offline" && after != "" {
					t.Fatalf("the claim has ended while its holder is %s", after)
				}
				return free
			})
			other.end()
		})
	}
}

// liveness is what the registry says of an agent, "" if the hub does not answer now.
func (s *openedSession) liveness(guid string) string {
	s.t.Helper()
	_, info, _ := s.result("get_agent_info", fmt.Sprintf(`{"guid":%q}`, guid))
	is, _ := info["liveness"].(string)
	return is
}
