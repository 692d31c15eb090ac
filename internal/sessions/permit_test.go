package sessions_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/senders"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

var (
	outsider = hub.Sender{Kind: hub.SenderA2A, ID: "192.0.2.7", Label: "curl"}
	local    = hub.Sender{Kind: hub.SenderClient, ID: "127.0.0.1"}
)

// policyOffice is a hub with a policy, and a public session.
func policyOffice(t *testing.T, p senders.Policy) (*office, *agentnet.Agent) {
	t.Helper()
	o := &office{t: t, dir: t.TempDir(), net: nettest.StartServer(t), policy: p}
	o.start()
	return o, o.session(registry.Registration{Handle: "reviewer", Visibility: store.Public})
}

func (o *office) sendAs(from hub.Sender, text string) *a2a.Task {
	o.t.Helper()
	task, err := o.hub.Send(o.t.Context(), hub.SendRequest{AgentID: "reviewer", Message: message(text), Sender: from})
	if err != nil {
		o.t.Fatal(err)
	}
	return task
}

func TestAllowedSendersReachASession(t *testing.T) {
	t.Parallel()
	o, a := policyOffice(t, senders.Policy{Outside: senders.Allow, Clients: senders.Allow})
	id := o.sendAs(outsider, "do it").ID
	m := o.read(a)
	frame, rest, _ := strings.Cut(m.Text, "\n\n")
	if !strings.Contains(frame, "a2a 192.0.2.7, not by your user") || rest != "do it" {
		t.Errorf("the session reads %q", m.Text)
	}
	for _, part := range []string{`"kind":"a2a"`, `"id":"192.0.2.7"`, `"label":"curl"`, "not your user"} {
		if !strings.Contains(string(m.Metadata), part) {
			t.Errorf("%s is not in the metadata %s", part, m.Metadata)
		}
	}
	if err := a.AnswerTask(t.Context(), answerTo(id, "done")); err != nil {
		t.Fatal(err)
	}
	o.awaitState(id, a2a.TaskStateCompleted)

	o.sendAs(local, "do it")
	if m := o.read(a); m.Text != "do it" || !strings.Contains(string(m.Metadata), `"kind":"client"`) {
		t.Errorf("the session reads %q, %s", m.Text, m.Metadata)
	}
	o.sendAs(hub.Sender{}, "do it")
	if m := o.read(a); m.Text != "do it" || strings.Contains(string(m.Metadata), "sender") {
		t.Errorf("the session reads %q, %s", m.Text, m.Metadata)
	}
}

func TestDeniedSendersAreRefused(t *testing.T) {
	t.Parallel()
	o, a := policyOffice(t, senders.Policy{Outside: senders.Deny, Clients: senders.Deny})
	for from, key := range map[hub.Sender]string{outsider: "sessions.outside", local: "sessions.clients", {Kind: hub.SenderPeer, ID: "k"}: "sessions.outside"} {
		end := o.awaitState(o.sendAs(from, "do it").ID, a2a.TaskStateRejected)
		about, _ := end.Status.Message.Metadata[hub.MetaError].(map[string]any)
		if !strings.Contains(textOf(end.Status.Message), "takes no tasks of "+from.String()) || about["code"] != "rejected" || !strings.Contains(fmt.Sprint(about["remedy"]), key) {
			t.Errorf("%s: %s, %v", from, textOf(end.Status.Message), about)
		}
	}
	own := o.sendAs(hub.Sender{}, "mine").ID
	if m := o.read(a); m.Text != "mine" || !strings.Contains(string(m.Metadata), string(own)) {
		t.Errorf("the session reads %+v", m) // and nothing before it
	}
}

func TestOutsidersCannotCrowdASession(t *testing.T) {
	t.Parallel()
	o, a := policyOffice(t, senders.Policy{Outside: senders.Allow})
	var first a2a.TaskID
	for i := range 20 {
		if id := o.sendAs(outsider, fmt.Sprint(i)).ID; i == 0 {
			first = id
		}
		o.read(a)
	}
	end := o.awaitState(o.sendAs(outsider, "more").ID, a2a.TaskStateRejected)
	if !strings.Contains(textOf(end.Status.Message), "too many unfinished tasks") {
		t.Errorf("got %s", textOf(end.Status.Message))
	}
	for i := range 30 {
		o.sendAs(hub.Sender{Kind: hub.SenderA2A, ID: fmt.Sprintf("192.0.2.%d", 100+i)}, "x")
		o.read(a)
	}
	o.awaitState(o.sendAs(hub.Sender{Kind: hub.SenderPeer, ID: "k"}, "more").ID, a2a.TaskStateRejected)
	o.sendAs(hub.Sender{}, "mine")
	if m := o.read(a); m.Text != "mine" {
		t.Errorf("the session reads %q", m.Text)
	}
	if err := a.AnswerTask(t.Context(), answerTo(first, "done")); err != nil {
		t.Fatal(err)
	}
	o.sendAs(outsider, "again")
	if m := o.read(a); !strings.HasSuffix(m.Text, "again") {
		t.Errorf("the session reads %q", m.Text)
	}
}
