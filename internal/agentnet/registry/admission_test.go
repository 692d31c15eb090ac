package registry_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// A registry entry belongs to its holder: another program does not get its secret, and gets its
// GUID only after the holder's connection has ended.
func TestAnAdmissionBelongsToItsHolder(t *testing.T) {
	t.Parallel()
	r := nettest.NewHub(t)
	request := registry.AdmissionRequest{AgentType: "worker", ProjectPath: "/shop"}
	admission, b, err := r.Admit(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	back := request
	back.GUID, back.Secret = admission.GUID, admission.Secret
	if again, _, err := r.Operator.Admit(t.Context(), back, r.State); err != nil || again.GUID != admission.GUID || again.Control != admission.Control || !again.Reused {
		t.Errorf("%+v, %v", again, err)
	}
	back.Secret = "guessed"
	_, _, err = r.Operator.Admit(t.Context(), back, r.State)
	nettest.Wants(t, err, store.NotRegisteredError, "taken over")
	if next, _, err := r.Operator.Admit(t.Context(), request, r.State); err != nil || next.GUID == admission.GUID {
		t.Errorf("%+v, %v", next, err)
	}
	// The holder's process is killed: it does not release the entry.
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the end of the connection", func() bool { return r.State(admission.GUID) == registry.Disconnected })
	if heir, _, err := r.Operator.Admit(t.Context(), request, r.State); err != nil || heir.GUID != admission.GUID || heir.Secret == admission.Secret {
		t.Errorf("%+v, %v", heir, err)
	}
	// The bus has lost the entry; the agent still has its GUID and secret.
	lost := registry.AdmissionRequest{AgentType: "reviewer", ProjectPath: "/shop", GUID: "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11", Secret: "its own"}
	if p, _, err := r.Operator.Admit(t.Context(), lost, r.State); err != nil || p.GUID != lost.GUID || p.Secret != lost.Secret {
		t.Errorf("%+v, %v", p, err)
	}
	_, _, err = r.Operator.Admit(t.Context(), registry.AdmissionRequest{AgentType: "*"}, r.State)
	nettest.Wants(t, err, store.ValidationError, "agent type")
}

// Property of REQ-HEARTBEAT-001 and REQ-HEARTBEAT-005 on a hub's bus: an agent sends a pulse and
// the hub records the time. Other changes, and an entry that was lost, are written by the agent
// itself.
func TestTheHubRecordsHeartbeatsOfItsAgents(t *testing.T) {
	r := nettest.NewHub(t)
	l := agentnet.NewMemberships(nettest.WithBeat(agentnet.Config{BusConfig: store.Config{ProjectPath: "/shop", Logger: slog.New(slog.DiscardHandler)}}, 20*time.Millisecond), r.Admit)
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	b, err := bus.Join(t.Context(), bus.Config{}, func(ctx context.Context) (bus.Grant, error) {
		return r.Bus.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background())
	pulses, err := b.Conn().SubscribeSync("global.hub.desk.*.*.pulse")
	if err != nil {
		t.Fatal(err)
	}
	kv, err := b.JetStream().KeyValue(t.Context(), "agent-registry")
	if err != nil {
		t.Fatal(err)
	}
	a := nettest.Enter(t, l, nettest.Worker("go"))
	entry := func() (e registry.Entry) {
		v, err := kv.Get(t.Context(), a.GUID())
		if err == nil && json.Unmarshal(v.Value(), &e) != nil {
			t.Errorf("%s", v.Value())
		}
		return e
	}
	awaitBeats := func() {
		t.Helper()
		for range 3 {
			before := entry().LastHeartbeat
			if _, err := pulses.NextMsgWithContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			wait.Eventually(t, "a heartbeat", func() bool { now := entry().LastHeartbeat; return now != "" && now != before })
		}
	}
	awaitBeats()
	if err := a.SetHandle("another"); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "what has changed", func() bool { return entry().Handle == "another" })
	awaitBeats()
	for _, lose := range []func() error{
		func() error { return kv.Purge(t.Context(), a.GUID()) },
		func() error { _, err := kv.PutString(t.Context(), a.GUID(), "no entry"); return err },
	} {
		if err := lose(); err != nil {
			t.Fatal(err)
		}
		wait.Eventually(t, "the entry again", func() bool {
			v, err := kv.Get(t.Context(), a.GUID())
			return err == nil && json.Valid(v.Value()) && entry().Handle == "another"
		})
	}
	awaitBeats()
	if e := entry(); e.GUID != a.GUID() || e.Status != registry.Active {
		t.Errorf("%+v", e)
	}
	// A pulse in another agent's name must not make the hub answer to a foreign subject.
	elsewhere, err := b.Conn().SubscribeSync("elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	m, err := pulses.NextMsgWithContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nobody := strings.Replace(m.Subject, a.GUID(), "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11", 1)
	if err := b.Conn().PublishRequest(nobody, "elsewhere", nil); err != nil {
		t.Fatal(err)
	}
	mine := store.InboxPrefix("7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11") + ".pulse"
	answers, err := b.Conn().SubscribeSync(mine)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Conn().PublishRequest(nobody, mine, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := answers.NextMsgWithContext(t.Context()); err != nil {
		t.Error(err)
	}
	if n, _, err := elsewhere.Pending(); err != nil || n != 0 {
		t.Errorf("%d answers on the foreign subject: %v", n, err)
	}
}
