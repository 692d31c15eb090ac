package senders_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/senders"
	"github.com/parleyhub/parley/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// guarded is an agent behind a gate, which completes each task that it gets.
type guarded struct{ gate *senders.Gate }

func (*guarded) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageAuthenticated, AuthKnown: true}
}

func (g *guarded) Open(runner.SessionSpec) (runner.Session, error) { return g, nil }

func (*guarded) Close(context.Context) error { return nil }

func (g *guarded) Turn(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
	v := senders.Visit{Agent: "venus", Task: a2a.TaskID(turn.TaskID), Turn: turn.Number, Prompt: "do it"}
	defer v.Leave()
	if err := g.gate.Permit(ctx, &v, h); err != nil {
		return senders.Refused(ctx, err)
	}
	return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done for " + v.Sender.String()}, nil
}

// office is a hub with a guarded agent.
type office struct {
	t    *testing.T
	path string
	hub  *hub.Hub
	gate *senders.Gate
}

func newOffice(t *testing.T, p senders.Policy) *office {
	t.Helper()
	dir := t.TempDir()
	b, err := bus.Open(t.Context(), bus.Config{DataDir: dir, Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	o := &office{t: t, path: filepath.Join(dir, "senders.json")}
	if o.hub, err = hub.New(t.Context(), hub.Config{Bus: b}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(o.hub.Close(ctx), b.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	if o.gate, err = senders.Open(senders.Options{Hub: o.hub, Path: o.path, Policy: p}); err != nil {
		t.Fatal(err)
	}
	def := runner.Definition{ID: "venus", Driver: runner.DriverLibrary, Limits: runner.Limits{Run: time.Hour, Idle: time.Hour, Concurrency: 100, Queue: 100}}
	if err := o.hub.Register(hub.Agent{Definition: def, Runner: &guarded{o.gate}, Durable: true, Reported: true}); err != nil {
		t.Fatal(err)
	}
	return o
}

// send gives the agent a task, or answers the question of one.
func (o *office) send(from hub.Sender, to a2a.TaskID, text string) a2a.TaskID {
	o.t.Helper()
	m := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))
	m.TaskID = to
	pending, err := o.hub.Start(o.t.Context(), hub.SendRequest{AgentID: "venus", Message: m, Sender: from})
	if err != nil {
		o.t.Fatal(err)
	}
	return pending.TaskID()
}

// await waits until a task has a state, and returns the text of its status.
func (o *office) await(id a2a.TaskID, state a2a.TaskState) (text string) {
	o.t.Helper()
	wait.Eventually(o.t, "the task is "+string(state), func() bool {
		task, err := o.hub.Task(o.t.Context(), id, nil)
		if err != nil || task.Status.State != state {
			return false
		}
		text = ""
		if m := task.Status.Message; m != nil {
			for _, p := range m.Parts {
				text += p.Text()
			}
		}
		return true
	})
	return text
}

var (
	stranger = hub.Sender{Kind: hub.SenderA2A, ID: "192.0.2.7", Label: "curl"}
	peer     = hub.Sender{Kind: hub.SenderPeer, ID: "key"}
	client   = hub.Sender{Kind: hub.SenderClient, ID: "127.0.0.1"}
)

func TestTheUserIsAskedAboutASender(t *testing.T) {
	t.Parallel()
	o := newOffice(t, senders.Policy{})
	if said := o.await(o.send(hub.Sender{}, "", "mine"), a2a.TaskStateCompleted); said != "done for the hub's user" {
		t.Errorf("the user's own task: %q", said)
	}
	once := o.send(stranger, "", "it")
	o.await(once, a2a.TaskStateAuthRequired)
	o.send(hub.Sender{}, once, "allow")
	if said := o.await(once, a2a.TaskStateCompleted); said != "done for a2a 192.0.2.7 (curl)" {
		t.Errorf("the stranger's task: %q", said)
	}
	if all := o.gate.Allowed(); len(all) != 0 {
		t.Errorf("always allowed are %v", all)
	}
	var waiting []a2a.TaskID
	for range 3 {
		id := o.send(stranger, "", "it")
		o.await(id, a2a.TaskStateAuthRequired)
		waiting = append(waiting, id)
	}
	o.send(hub.Sender{}, waiting[1], "always")
	for _, id := range append(waiting, o.send(stranger, "", "later")) {
		o.await(id, a2a.TaskStateCompleted)
	}
	denied := o.send(peer, "", "it")
	o.await(denied, a2a.TaskStateAuthRequired)
	o.send(hub.Sender{}, denied, "not today")
	if said := o.await(denied, a2a.TaskStateRejected); !strings.Contains(said, "venus takes no tasks of peer key: not today") {
		t.Errorf("the peer's task: %q", said)
	}
	canceled := o.send(peer, "", "it")
	o.await(canceled, a2a.TaskStateAuthRequired)
	if _, err := o.hub.Cancel(t.Context(), canceled); err != nil {
		t.Fatal(err)
	}
	o.await(canceled, a2a.TaskStateCanceled)

	again, err := senders.Open(senders.Options{Hub: o.hub, Path: o.path})
	if err != nil {
		t.Fatal(err)
	}
	all := again.Allowed()
	if len(all) != 1 || !all[0].Sender.Same(stranger) {
		t.Fatalf("always allowed are %v", all)
	}
	for _, bad := range []string{"", "zz"} {
		if _, err := again.Revoke(bad); hub.CodeOf(err) != hub.CodeInvalid {
			t.Errorf("revoke %q: %v", bad, err)
		}
	}
	if x, err := again.Revoke(all[0].ID[:4]); err != nil || x.ID != all[0].ID || len(again.Allowed()) != 0 {
		t.Errorf("revoked %v, %v", x, err)
	}
}

func TestTheConfigurationDecides(t *testing.T) {
	t.Parallel()
	o := newOffice(t, senders.Policy{Outside: senders.Deny, Clients: senders.Allow})
	o.await(o.send(client, "", "it"), a2a.TaskStateCompleted)
	if said := o.await(o.send(stranger, "", "it"), a2a.TaskStateRejected); !strings.Contains(said, "denies") || !strings.Contains(said, "sessions.outside") {
		t.Errorf("the stranger's task: %q", said)
	}
}

func TestSendersOutsideAreBounded(t *testing.T) {
	t.Parallel()
	o := newOffice(t, senders.Policy{Outside: senders.Ask})
	for i := range 50 {
		o.await(o.send(hub.Sender{Kind: hub.SenderA2A, ID: fmt.Sprint("192.0.2.", i/20)}, "", "it"), a2a.TaskStateAuthRequired)
	}
	for _, from := range []string{"192.0.2.0", "192.0.2.9"} { // has twenty itself; others have fifty
		if said := o.await(o.send(hub.Sender{Kind: hub.SenderA2A, ID: from}, "", "it"), a2a.TaskStateRejected); !strings.Contains(said, "too many unfinished tasks") {
			t.Errorf("one more: %q", said)
		}
	}
	o.await(o.send(hub.Sender{}, "", "mine"), a2a.TaskStateCompleted)
}

// Without the file nobody is always allowed, which is noted.
func TestADamagedFileOfSendersIsNoted(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"{", `{"version":2}`, `{"version":1,"senders":[{"id":"x","sender":{}}]}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "senders.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		var noted []statefile.Damage
		g, err := senders.Open(senders.Options{Path: filepath.Join(dir, "senders.json"), Damaged: func(d statefile.Damage) { noted = append(noted, d) }})
		if err != nil || len(g.Allowed()) > 0 || len(noted) != 1 || noted[0].Loss == "" {
			t.Errorf("%s: %v, %+v", content, err, noted)
		}
	}
}
