//go:build unix

package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// callsOfHub are calls for which the hub has to be there, of each way to it: its bus, the agents' network on it, and its socket.
var callsOfHub = map[string]string{
	"read_messages":        `{"channel":"parallel-work"}`,
	"discover_agents":      `{}`,
	"list_claims":          `{}`,
	"submit_work_item":     `{"capability":"go","taskDescription":"x"}`,
	"read_direct_messages": `{}`,
	"list_documents":       `{}`,
	"list_agents":          `{}`,
}

// sayAll makes calls at once, and returns their texts.
func (s *openedSession) sayAll(calls map[string]string) map[string]string {
	s.t.Helper()
	tools, said := map[int]string{}, map[string]string{}
	for tool, arguments := range calls {
		s.calls++
		tools[s.calls] = tool
		fmt.Fprintf(s.in, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`+"\n", s.calls, tool, arguments)
	}
	for len(said) < len(calls) {
		line, err := s.out.ReadBytes('\n')
		if err != nil {
			s.t.Fatalf("%v; the log:\n%s", err, s.stderr.String())
		}
		var answer struct {
			ID     int
			Result struct{ Content []struct{ Text string } }
		}
		if err := json.Unmarshal(line, &answer); err != nil {
			s.t.Fatal(err)
		}
		if tool := tools[answer.ID]; tool != "" && len(answer.Result.Content) > 0 {
			said[tool] = answer.Result.Content[0].Text
		} else if !bytes.Contains(line, []byte(`"notifications/`)) {
			s.t.Fatalf("unexpected: %s", line)
		}
	}
	return said
}

// A hub that was killed, and is started again by somebody after a second, delays calls and does not fail them.
func TestCallsWaitForAKilledHub(t *testing.T) {
	t.Parallel()
	testCallsOfKilledHub(t, func(*openedSession) {})
}

func testCallsOfKilledHub(t *testing.T, before func(*openedSession), env ...string) {
	d := newMachine(t)
	d.env = append(d.env, env...)
	d.parley("start")
	cmd := d.command("parley", "a", "mcp")
	cmd.Env = append(cmd.Env, "NATS_MCP_AUTOSTART=0")
	s := &openedSession{mcpChild: d.serve(cmd)}
	s.ask(1, "initialize", strings.Replace(initializeParams, `"name":"t"`, `"name":"claude-code"`, 1))
	s.calls = 1
	s.say("set_handle", `{"handle":"reviewer"}`)
	d.awaitAgent("reviewer", "idle")
	for tool, said := range s.sayAll(callsOfHub) {
		if strings.Contains(said, "Error: ") {
			t.Fatalf("%s with the hub: %s", tool, said)
		}
	}
	before(s)
	d.killHub()
	started := make(chan struct{})
	go func() {
		defer close(started)
		time.Sleep(time.Second)
		d.parley("start")
	}()
	for tool, said := range s.sayAll(callsOfHub) {
		if strings.Contains(said, "Error: ") {
			t.Errorf("%s without the hub: %s", tool, said)
		}
	}
	<-started
	s.end()
}

// Agents notice nothing of an upgrade of the hub.
func TestCallsWaitForAnUpgradedHub(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	d.parley("start")
	s := d.program("claude-code", "a")
	s.say("set_handle", `{"handle":"reviewer"}`)
	d.awaitAgent("reviewer", "idle")
	done := make(chan string, 1)
	go func() { done <- d.parley("upgrade", "--again") }()
	reads := map[string]string{"read_messages": callsOfHub["read_messages"], "list_claims": "{}", "list_documents": "{}"}
	for rounds, said := 2, ""; rounds > 0; {
		for tool, said := range s.sayAll(reads) {
			if strings.Contains(said, "Error: ") {
				t.Errorf("%s: %s", tool, said)
			}
		}
		select {
		case said = <-done:
		default:
		}
		if said != "" {
			rounds--
		}
	}
	s.end()
}
