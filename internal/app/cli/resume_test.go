//go:build unix

package cli_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
)

// turn calls a tool as Codex does in a thread.
func (s *openedSession) turn(thread string) {
	s.t.Helper()
	s.callIn(thread, "list_channels", "{}")
}

// callIn calls a tool as Codex does in a thread.
func (s *openedSession) callIn(thread, tool, arguments string) (answer string) {
	s.t.Helper()
	s.calls++
	if _, err := fmt.Fprintf(s.in, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"threadId":%q}}}`+"\n", s.calls, tool, arguments, thread); err != nil {
		s.t.Fatal(err)
	}
	line, err := s.out.ReadBytes('\n')
	for err == nil && string(line) == toolsChanged {
		line, err = s.out.ReadBytes('\n')
	}
	if err != nil {
		s.t.Fatalf("%s: %v", line, err)
	}
	return string(line)
}

// threadGUID returns the agent of a thread of Codex, once the hub knows it.
func (d *machine) threadGUID(thread string) (guid string) {
	d.t.Helper()
	wait.Eventually(d.t, "the hub knows the agent of "+thread, func() bool {
		for _, s := range d.openSessions() {
			if s.Session == thread && s.GUID != "" && s.Agent != "" {
				guid = s.GUID
			}
		}
		return guid != ""
	})
	return guid
}

// Two sessions of Codex are closed, and the second is resumed first: it is the agent that it was, with its name and its mail, although
// Codex says only at its first call which thread it is. So is the first.
func TestAResumedThreadIsTheAgentThatItWas(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	begin := func(thread string) (*openedSession, string) {
		s := d.program("codex-mcp-client", "a")
		wait.Eventually(t, "the session is registered", func() bool {
			s.turn(thread)
			for _, x := range d.openSessions() {
				if x.Session == thread && x.GUID != "" {
					return true
				}
			}
			return false
		})
		return s, d.threadGUID(thread)
	}
	first, firstGUID := begin("t1")
	second, secondGUID := begin("t2")
	if firstGUID == secondGUID {
		t.Fatal("two sessions are one agent")
	}
	names := map[string]string{}
	for _, s := range d.openSessions() {
		names[s.GUID] = s.Agent
	}
	first.end()
	second.end()
	for _, c := range []struct{ thread, guid string }{{"t2", secondGUID}, {"t1", firstGUID}} {
		s, guid := begin(c.thread)
		if guid != c.guid {
			t.Errorf("%s is %s, was %s", c.thread, guid, c.guid)
		}
		wait.Eventually(t, "the session has its name", func() bool {
			for _, x := range d.openSessions() {
				if x.GUID == c.guid && x.Agent == names[c.guid] {
					return true
				}
			}
			return false
		})
		defer s.end()
	}
}

// The program of an agent that had made itself public is killed: in the same conversation the agent is public again, without a word of
// its model, so that a hub elsewhere gets its answer. Another conversation of the same agent is not.
func TestAnAgentIsWhatItHasRegisteredItselfAsAfterAKill(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	is := func(what, thread, visibility string, capabilities int) {
		t.Helper()
		s := d.program("codex-mcp-client", "a")
		defer s.crash()
		wait.Eventually(t, what, func() bool {
			s.turn(thread)
			a := d.agents()["codex-a"]
			return a.State == "idle" && a.Visibility == visibility && len(a.Capabilities) == capabilities
		})
	}
	is("the session is registered by itself", "t1", "project-only", 0)
	s := d.program("codex-mcp-client", "a")
	s.callIn("t1", "register_agent", `{"agentType":"codex","capabilities":["review"],"scope":"user","visibility":"public"}`)
	s.crash()
	is("it is public again", "t1", "public", 1)
	is("another conversation is not", "t2", "project-only", 0)
	is("the first one still is", "t1", "public", 1)
	s = d.program("codex-mcp-client", "a")
	if said := s.callIn("t1", "deregister_agent", "{}"); !strings.Contains(said, "You have left") {
		t.Error(said)
	}
	s.crash()
	is("not after it has deregistered itself", "t1", "project-only", 0)
}

// The program of an agent that had registered itself under a role of its own is killed: in the same conversation it is that agent again, with
// its mail. Another conversation of the same program is not public because this one is.
func TestAnAgentHasItsRoleAgainAfterAKill(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	agent := func(thread string) (name string, a *dialect.Agent) {
		for _, x := range d.openSessions() {
			if x.Session != thread {
				continue
			}
			for _, found := range d.agents() {
				if found.ID == x.Agent {
					return x.Agent, &found
				}
			}
		}
		return "", nil
	}
	s := d.program("codex-mcp-client", "a")
	wait.Eventually(t, "the session is registered", func() bool {
		s.turn("t1")
		_, a := agent("t1")
		return a != nil
	})
	s.callIn("t1", "register_agent", `{"agentType":"reviewer","capabilities":["review"],"scope":"user","visibility":"public"}`)
	guid, name := "", ""
	wait.Eventually(t, "the agent is public", func() bool {
		n, a := agent("t1")
		if a == nil || a.Visibility != "public" {
			return false
		}
		name = n
		for _, x := range d.openSessions() {
			if x.Session == "t1" {
				guid = x.GUID
			}
		}
		return guid != ""
	})
	s.crash()

	s = d.program("codex-mcp-client", "a")
	defer s.end()
	is := func(what, thread, visibility string, same bool) {
		t.Helper()
		wait.Eventually(t, what, func() bool {
			s.turn(thread)
			n, a := agent(thread)
			return a != nil && a.Visibility == visibility && (n == name) == same
		})
	}
	is("it is the reviewer again", "t1", "public", true)
	if now := d.threadGUID("t1"); now != guid {
		t.Errorf("its GUID is %s, was %s", now, guid)
	}
	is("another conversation of the process is a session of its project", "t2", "project-only", false)
	is("the first one is the reviewer again", "t1", "public", true)
}
