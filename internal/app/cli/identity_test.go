//go:build unix

package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed"
)

var guidPattern = regexp.MustCompile(`Your GUID is ([0-9a-f-]{36})`)

// join starts an MCP server in project a and registers its agent, once: who comes back neither waits nor is refused.
func (d *machine) join(handle string) (s *openedSession, guid string) {
	d.t.Helper()
	s = &openedSession{mcpChild: d.serve(d.command("parley", "a", "mcp"))}
	s.ask(1, "initialize", initializeParams)
	s.calls = 1
	s.say("set_handle", `{"handle":"%s"}`, handle)
	answer := s.say("register_agent", `{"agentType":"worker","capabilities":["go"],"scope":"project"}`)
	match := guidPattern.FindStringSubmatch(answer)
	if match == nil {
		d.t.Fatalf("%s is not registered: %s\n%s", handle, answer, s.stderr.String())
	}
	return s, match[1]
}

// crash kills the MCP server.
func (s *openedSession) crash() {
	_ = s.Process.Kill() // it fails if it has ended
	_ = s.Wait()
}

// crashHub kills the hub and waits for the lock's end; without a running hub it does nothing.
func (d *machine) crashHub() {
	d.t.Helper()
	dir := filepath.Join(d.root, "data")
	info, running, err := daemon.Running(dir)
	if err != nil || !running {
		return
	}
	if p, err := os.FindProcess(info.PID); err == nil && info.PID != 0 {
		_ = p.Kill()
	}
	wait.Eventually(d.t, "the hub has ended", func() bool { _, running, err := daemon.Running(dir); return err == nil && !running })
}

// Agents keep their GUIDs, and with them their mail and the results of their work, through every order in which they and
// the hub end and come back. Two of the same type in one project come back as themselves, by their handles.
func TestAnAgentIsTheSameAfterEveryCrash(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	start := func() { d.parley("start") }
	start()
	d.parley("stop")
	data, older := filepath.Join(d.root, "data"), filepath.Join(d.root, "older")
	if err := os.CopyFS(older, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	var ann, bob *openedSession
	var annID, bobID string
	enter := func(handles ...string) {
		t.Helper()
		for _, handle := range handles {
			s, guid := d.join(handle)
			agent, id := &ann, &annID
			if handle == "bob" {
				agent, id = &bob, &bobID
			}
			if *id != "" && *id != guid {
				t.Errorf("%s was %s and is %s", handle, *id, guid)
			}
			*agent, *id = s, guid
		}
	}
	send := func(text string) {
		t.Helper()
		if got := bob.say("send_direct_message", `{"recipientGuid":%q,"message":%q}`, annID, text); !strings.Contains(got, "Message sent") {
			t.Fatal(got)
		}
	}
	agents := func() { ann.crash(); bob.crash() }
	bothAtOnce := func() {
		killed := make(chan struct{})
		go func() { defer close(killed); agents() }()
		d.crashHub()
		<-killed
	}
	back := func() { enter("bob", "ann") } // the first of them starts the hub if it is not running
	enter("ann", "bob")
	bob.say("submit_work_item", `{"capability":"go","taskDescription":"work","taskId":"W"}`)
	token := regexp.MustCompile(`claimToken (\d+)`).FindStringSubmatch(ann.say("claim_work_item", `{"capabilities":["go"]}`))
	if token == nil {
		t.Fatal("the item was not claimed")
	}
	for i, order := range []struct {
		name string
		do   []func()
	}{
		{"agents die", []func(){agents, back}},
		{"hub dies, agents live", []func(){d.crashHub, func() {
			wait.Eventually(t, "both are connected again", func() bool {
				return !strings.Contains(ann.say("discover_agents", `{}`)+bob.say("discover_agents", `{}`), "interrupted")
			})
		}}},
		{"agents, hub; agents come first", []func(){agents, d.crashHub, back}},
		{"hub, agents; hub comes first", []func(){d.crashHub, agents, start, back}},
		{"both at once; both come at once", []func(){bothAtOnce, func() {
			started := make(chan struct{})
			go func() { defer close(started); start() }()
			back()
			<-started
		}}},
		{"reboot", []func(){bothAtOnce, func() { _ = os.Remove(filepath.Join(d.root, "s")) }, start, back}},
	} {
		send(fmt.Sprintf("before %d", i))
		for _, do := range order.do {
			do()
		}
		if got := ann.say("wait_for_direct_messages", `{"timeout_seconds":20}`); !strings.Contains(got, fmt.Sprintf("before %d", i)) {
			t.Errorf("%s: the mail from before is not there: %s", order.name, got)
		}
		if t.Failed() {
			t.Fatalf("after: %s", order.name)
		}
	}
	if got := ann.say("complete_work_item", `{"taskId":"W","claimToken":%s,"success":true,"resultSummary":"all done"}`, token[1]); !strings.Contains(got, "is completed") {
		t.Errorf("the item that was claimed before the crashes: %s", got)
	}
	if got := bob.say("get_work_item", `{"taskId":"W"}`); !strings.Contains(got, "all done") {
		t.Errorf("the result is not visible to who asked for it: %s", got)
	}
	// The hub's store is from before the agents' first registration.
	bothAtOnce()
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(older, data); err != nil {
		t.Fatal(err)
	}
	back()
	send("to the former address")
	if got := ann.say("wait_for_direct_messages", `{"timeout_seconds":20}`); !strings.Contains(got, "to the former address") {
		t.Error(got)
	}
	agents()
}

// With a NATS server instead of the hub.
func TestAnAgentIsTheSameAfterACrashOfItsNATSServer(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	n := testbed.StartNATS(t)
	settings := fmt.Sprintf(`{"namespace":"shop","crossComputer":{"enabled":true,"natsClusterUrls":[%q],"acknowledgment":"I understand the security implications","tlsRequired":false}}`, n.URL())
	if err := os.WriteFile(filepath.Join(d.root, "a", ".mcp-config.json"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	s, first := d.join("ann")
	for _, order := range [][]func(){{s.crash}, {n.Stop, s.crash, func() { n.Start() }}, {s.crash, n.Stop, func() { n.Start() }}} {
		for _, do := range order {
			do()
		}
		again, guid := d.join("ann")
		if guid != first {
			t.Errorf("%s came back as %s", first, guid)
		}
		s.mcpChild = again.mcpChild
		s.calls = again.calls
	}
	s.crash()
}
