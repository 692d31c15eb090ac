//go:build unix

package cli_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
)

// connectedMachines returns two computers whose hubs are paired: alice's, and bob's, whose sessions take tasks of hers.
func connectedMachines(t *testing.T) (alice, bob *machine) {
	t.Helper()
	alice, bob = newMachine(t), newMachine(t)
	at, key := make(map[*machine]string), make(map[*machine]string)
	for _, d := range []*machine{alice, bob} {
		socket, err := net.ListenPacket("udp", "127.0.0.1:0") // the port stays the hub's over its restarts
		if err != nil {
			t.Fatal(err)
		}
		at[d] = socket.LocalAddr().String()
		if err := socket.Close(); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(filepath.Join(d.root, "data", "config.yaml"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(f, "peers: {enabled: true, hyperswarm: {listen: %q, public: %q}}\nsessions: {outside: allow}\n", at[d], at[d])
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		var list struct{ Key string }
		out, err := d.command("parley", "a", "peers", "list", "--format", "json").Output()
		if err != nil || json.Unmarshal(out, &list) != nil || list.Key == "" {
			t.Fatalf("%s, %v", out, err)
		}
		key[d] = list.Key
	}
	alice.parley("peers", "pair", key[bob], "--name", "bob", "--at", at[bob])
	bob.parley("peers", "pair", key[alice], "--name", "alice", "--at", at[alice])
	alice.parley("start")
	return alice, bob
}

// Whatever is killed at whatever moment: the task of a session of another hub is answered once, and its state never goes back.
func TestATaskOfAPeersSessionSurvivesKills(t *testing.T) {
	t.Parallel()
	for _, killed := range []string{"nothing", "alice", "bob", "both"} {
		t.Run(killed, func(t *testing.T) {
			t.Parallel()
			alice, bob := connectedMachines(t)
			s := bob.openSession("reviewer")
			if said := s.say("register_agent", `{"agentType":"reviewer","capabilities":[],"scope":"project","visibility":"public"}`); !strings.Contains(said, "egistered") {
				t.Fatal(said)
			}
			wait.Eventually(t, "the session is an agent", func() bool { return strings.Contains(alice.parley("agents"), "reviewer") })
			kill := func() {
				for name, d := range map[string]*machine{"alice": alice, "bob": bob} {
					if killed == name || killed == "both" {
						d.parley("start") // unless the session has started it
						d.killHub()
					}
				}
				alice.parley("start")
			}
			id := alice.ask("bob.reviewer", "is this safe?")
			kill()
			there, text := s.nextTask()
			if !strings.Contains(text, "is this safe?") {
				t.Fatalf("it got %s", text)
			}
			alice.awaitTask(id, "working")
			kill()
			if state := alice.task(id).Status.State; state != "working" {
				t.Errorf("a task that was working is %s", state)
			}
			s.persist("answer_task", `{"taskId":%q,"text":"Which part?","outcome":"input-required"}`, there)
			if task := alice.awaitTask(id, "input-required"); len(task.History) != 2 {
				t.Errorf("%+v", task)
			}
			kill()
			alice.parley("send", "--scratch", "--detach", "--task", id, "all of it")
			kill()
			if again, text := s.nextTask(); again != there || !strings.Contains(text, "all of it") {
				t.Fatalf("%s was given as %s: %s", there, again, text)
			}
			alice.awaitTask(id, "working")
			kill()
			s.persist("answer_task", `{"taskId":%q,"text":"It is."}`, there)
			kill()
			if task := alice.awaitTask(id, "completed"); len(task.History) != 4 || task.Status.Message == nil || *task.Status.Message.Parts[0].Text != "It is." {
				t.Errorf("%+v", task)
			}
			if again := s.say("answer_task", `{"taskId":%q,"text":"No."}`, there); !strings.HasPrefix(again, "ConflictError") {
				t.Errorf("another answer: %s", again)
			}
			s.end()
		})
	}
}

// persist calls a tool until the hub has taken the call.
func (s *openedSession) persist(tool, format string, args ...any) {
	s.t.Helper()
	wait.Eventually(s.t, tool+" is done", func() bool {
		said := s.say(tool, format, args...)
		return !strings.HasPrefix(said, "ConnectionError") && !strings.HasPrefix(said, "NotRegisteredError")
	})
}

// awaitTask waits until a task has a state.
func (d *machine) awaitTask(id, state string) (task dialect.Task) {
	d.t.Helper()
	wait.Eventually(d.t, "the task is "+state, func() bool {
		task = d.task(id)
		return string(task.Status.State) == state
	})
	return task
}
