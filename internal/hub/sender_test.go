package hub_test

import (
	"context"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
)

var (
	outsider = hub.Sender{Kind: hub.SenderA2A, ID: "192.0.2.7", Label: "curl"}
	local    = hub.Sender{Kind: hub.SenderClient, ID: "127.0.0.1"}
)

func TestSendersAreThoseOfTheirAddresses(t *testing.T) {
	for _, tc := range []struct {
		address string
		direct  bool
		want    hub.Sender
	}{
		{"127.0.0.1:9", true, local},
		{"127.0.0.1:9", false, hub.Sender{Kind: hub.SenderA2A, ID: "proxy at 127.0.0.1"}},
		{"[::1]:9", true, hub.Sender{Kind: hub.SenderClient, ID: "::1"}},
		{"[::ffff:127.0.0.1]:9", true, local},
		{"192.0.2.7:9", true, hub.Sender{Kind: hub.SenderA2A, ID: "192.0.2.7"}},
		{"[fe80::1%eth0]:9", true, hub.Sender{Kind: hub.SenderA2A, ID: "fe80::1"}},
		{"localhost:9", true, hub.Sender{Kind: hub.SenderA2A, ID: "unknown"}}, // a name proves nothing
		{"", true, hub.Sender{Kind: hub.SenderA2A, ID: "unknown"}},
	} {
		got := hub.ClientAt(tc.address, tc.direct)
		if got != tc.want || got.Own() || got.Outside() != (got.Kind != hub.SenderClient) {
			t.Errorf("%s, direct is %v: %+v", tc.address, tc.direct, got)
		}
	}
	if s := (hub.Sender{}); !s.Own() || s.Outside() || s.String() != "the hub's user" {
		t.Errorf("the zero sender is %s", s)
	}
	if s := outsider.String(); s != "a2a 192.0.2.7 (curl)" {
		t.Error(s)
	}
}

func TestTheSenderIsStoredWithTheTask(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": echo()})
	forged := map[string]any{hub.MetaSender: map[string]any{"kind": ""}}
	req := request("a", "x")
	req.Metadata, req.Message.Metadata = forged, forged
	ctx := hub.WithSender(t.Context(), hub.Sender{Kind: hub.SenderA2A, ID: "192.0.2.7", Label: " curl\n\x1b[1m" + strings.Repeat("x", 1000)})
	task, err := h.SendAndWait(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	got := hub.SenderOf(task.Metadata)
	if !got.Same(outsider) || !strings.HasPrefix(got.Label, "curl [1mxx") || len(got.Label) > 130 {
		t.Errorf("the sender is %+v", got)
	}
	req = request("a", "x")
	req.Sender = local // wins
	if task, err = h.SendAndWait(ctx, req); err != nil || hub.SenderOf(task.Metadata) != local {
		t.Errorf("the sender is %+v, %v", task, err)
	}
	own := send(t, h, request("a", "x"))
	if _, set := own.Metadata[hub.MetaSender]; set || !hub.SenderOf(own.Metadata).Own() {
		t.Errorf("the metadata is %v", own.Metadata)
	}
	for _, damaged := range []any{7, map[string]any{}, map[string]any{"kind": 1}} {
		if s := hub.SenderOf(map[string]any{hub.MetaSender: damaged}); !s.Outside() || hub.Permitted(map[string]any{hub.MetaSender: damaged}) {
			t.Errorf("%v: %+v", damaged, s)
		}
	}
}

func TestEachTurnHasItsSender(t *testing.T) {
	dir, ann := t.TempDir(), newPerson()
	h, stop := personHub(t, dir)
	ann.register(t, h)
	task, err := h.Send(t.Context(), request("ann", "one"))
	if err != nil {
		t.Fatal(err)
	}
	later := func(text string, from hub.Sender) {
		t.Helper()
		m := message(text)
		m.TaskID = task.ID
		if _, err := h.Send(hub.WithSender(t.Context(), from), hub.SendRequest{Message: m}); err != nil {
			t.Fatal(err)
		}
	}
	sender := func() hub.Sender {
		got, err := h.Task(context.Background(), task.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		return hub.SenderOf(got.Metadata)
	}
	wait.Eventually(t, "the first turn runs", func() bool { return len(ann.asked()) == 1 })
	later("two", outsider)
	if s := sender(); !s.Own() {
		t.Errorf("the first turn is of %+v", s)
	}
	stop() // the second message waits
	h, _ = personHub(t, dir)
	ann.register(t, h)
	wait.Eventually(t, "the first turn runs again", func() bool { return len(ann.asked()) == 2 })
	if s := sender(); !s.Own() {
		t.Errorf("the first turn is of %+v", s)
	}
	ann.answer("one", "?what")
	wait.Eventually(t, "the second turn runs", func() bool { return len(ann.asked()) == 3 })
	if s := sender(); s != outsider {
		t.Errorf("the second turn is of %+v", s)
	}
	ann.answer("two", "?what")
	wait.Eventually(t, "it asks", taskIs(h, task.ID, a2a.TaskStateInputRequired))
	later("three", hub.Sender{})
	if s := sender(); !s.Own() {
		t.Errorf("the third turn is of %+v", s)
	}
}

func TestHiddenAgentsAreNotThereForOutsiders(t *testing.T) {
	h := newHub(t, hub.Config{}, nil)
	if err := h.Register(hub.Agent{Definition: definition("ann"), Runner: newPerson().agent(), Durable: true,
		Residence: hub.Residence{Kind: hub.KindSession, Hidden: true}}); err != nil {
		t.Fatal(err)
	}
	refused := func(m *a2a.Message, from hub.Sender) {
		t.Helper()
		_, err := h.Send(t.Context(), hub.SendRequest{AgentID: "ann", Message: m, Sender: from})
		if hub.CodeOf(err) != hub.CodeAgentNotFound || strings.Contains(err.Error(), "mean") {
			t.Errorf("%s: %v", from, err)
		}
	}
	refused(message("x"), outsider)
	refused(message("x"), hub.Sender{Kind: hub.SenderPeer, ID: "k"})
	refused(message("x"), hub.Sender{Kind: hub.SenderProgram, ID: "p"})
	task, err := h.Send(t.Context(), hub.SendRequest{AgentID: "ann", Message: message("x"), Sender: local})
	if err != nil {
		t.Fatal(err)
	}
	m := message("more")
	m.TaskID = task.ID
	refused(m, outsider)
}
