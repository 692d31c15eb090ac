package agentnet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/bus"
)

// reception is a hub's side of a network on an embedded bus, as the daemon has it.
type reception struct {
	t        testing.TB
	hub      *bus.Bus
	operator *agentnet.Network
	users    map[string]string
}

func newReception(t testing.TB) *reception {
	hub, err := bus.Open(t.Context(), bus.Config{DataDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r := &reception{t: t, hub: hub, users: map[string]string{}}
	r.operator = open(t, agentnet.Config{Logger: slog.New(slog.DiscardHandler), Dial: func(ctx context.Context) (*bus.Bus, error) {
		return bus.Join(ctx, bus.Config{}, func(ctx context.Context) (bus.Grant, error) {
			return hub.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
		})
	}})
	return r
}

func (r *reception) attendance(guid string) agentnet.Attendance {
	switch user, known := r.users[guid]; {
	case !known:
		return agentnet.Unknown
	case r.hub.Admitted(user):
		return agentnet.Attends
	}
	return agentnet.Departed
}

func (r *reception) enter(ctx context.Context, a agentnet.Arrival) (agentnet.Place, *bus.Bus, error) {
	place, may, err := r.operator.Receive(ctx, a, r.attendance)
	if err != nil {
		return agentnet.Place{}, nil, err
	}
	b, err := bus.Join(ctx, bus.Config{InboxPrefix: agentnet.InboxPrefix(place.GUID)}, func(ctx context.Context) (bus.Grant, error) {
		g, err := r.hub.Grant(ctx, bus.GrantRequest{Access: bus.AccessAgent, Publish: may.Publish, Subscribe: may.Subscribe})
		r.users[place.GUID] = g.User
		return g, err
	})
	return place, b, err
}

func (r *reception) lobby(project string) *agentnet.Lobby {
	l := agentnet.NewLobby(agentnet.Config{ProjectPath: project, Logger: slog.New(slog.DiscardHandler)}, r.enter)
	r.t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			r.t.Error(err)
		}
	})
	return l
}

func enter(t testing.TB, l *agentnet.Lobby, r agentnet.Registration) *agentnet.Agent {
	t.Helper()
	a, err := l.Register(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// REQ-SEC-CROSS-003, REQ-TOOL-REGISTER-009: agents that the hub lets in one by one
// find each other, and have an identity that is theirs for as long as they are there.
func TestAHubLetsAgentsInOneByOne(t *testing.T) {
	t.Parallel()
	r := newReception(t)
	shop := r.lobby("/shop")
	if err := shop.Usable(t.Context()); err != nil || shop.Notice() != "" {
		t.Error(err, shop.Notice())
	}
	a, twin, other := enter(t, shop, worker("go")), enter(t, shop, worker("go")), enter(t, r.lobby("/blog"), worker("go"))
	if a.GUID() == twin.GUID() || a.GUID() == other.GUID() {
		t.Error("two agents are one")
	}
	if d := discover(t, other, agentnet.Filter{}); d.Total != 3 {
		t.Errorf("%+v", d)
	}
	sendText(t, a, other, "hello")
	if got := readTexts(t, other, agentnet.Selection{}); len(got) != 1 || got[0] != "hello" {
		t.Errorf("%q", got)
	}
	submit(t, a, "T", "go") // the hub makes the queue
	c := claim(t, other)
	if err := other.Complete(t.Context(), "T", c.Token, agentnet.Outcome{Success: true, Summary: "done"}); err != nil {
		t.Error(err)
	}
	if s := shop.Status(); s.Agents != 2 || !s.Connected {
		t.Errorf("%+v", s)
	}
	if err := shop.Leave(t.Context(), a); err != nil {
		t.Error(err)
	}
	if again := enter(t, shop, worker("go")); again.GUID() != a.GUID() || !again.Reused() {
		t.Errorf("%s came back as %s", a.GUID(), again.GUID())
	}
	_, err := shop.Register(t.Context(), agentnet.Registration{AgentType: "No Type"})
	wants(t, err, agentnet.ValidationError, "agent type")
}

// A place is its holder's: another program gets neither it nor, while the holder is
// there, its GUID.
func TestAPlaceIsItsHolders(t *testing.T) {
	t.Parallel()
	r := newReception(t)
	arrival := agentnet.Arrival{AgentType: "worker", ProjectPath: "/shop"}
	place, b, err := r.enter(t.Context(), arrival)
	if err != nil {
		t.Fatal(err)
	}
	back := arrival
	back.GUID, back.Secret = place.GUID, place.Secret
	if again, _, err := r.operator.Receive(t.Context(), back, r.attendance); err != nil || again.GUID != place.GUID || again.Desk != place.Desk || !again.Again {
		t.Errorf("%+v, %v", again, err)
	}
	back.Secret = "guessed"
	_, _, err = r.operator.Receive(t.Context(), back, r.attendance)
	wants(t, err, agentnet.NotRegisteredError, "taken over")
	if next, _, err := r.operator.Receive(t.Context(), arrival, r.attendance); err != nil || next.GUID == place.GUID {
		t.Errorf("%+v, %v", next, err)
	}
	// Its process is killed: nothing was released.
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the end of the connection", func() bool { return r.attendance(place.GUID) == agentnet.Departed })
	if heir, _, err := r.operator.Receive(t.Context(), arrival, r.attendance); err != nil || heir.GUID != place.GUID || heir.Secret == place.Secret {
		t.Errorf("%+v, %v", heir, err)
	}
	// The bus has lost it, the agent has not.
	lost := agentnet.Arrival{AgentType: "reviewer", ProjectPath: "/shop", GUID: "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11", Secret: "its own"}
	if p, _, err := r.operator.Receive(t.Context(), lost, r.attendance); err != nil || p.GUID != lost.GUID || p.Secret != lost.Secret {
		t.Errorf("%+v, %v", p, err)
	}
	_, _, err = r.operator.Receive(t.Context(), agentnet.Arrival{AgentType: "*"}, r.attendance)
	wants(t, err, agentnet.ValidationError, "agent type")
}

// Property of REQ-HEARTBEAT-001 and REQ-HEARTBEAT-005 on a hub's bus: an agent says
// that it lives, and the hub notes the time; what else has changed, and an entry that is
// lost, the agent writes itself.
func TestTheHubNotesTheHeartbeatsOfItsAgents(t *testing.T) {
	r := newReception(t)
	l := agentnet.NewLobby(agentnet.WithBeat(agentnet.Config{ProjectPath: "/shop", Logger: slog.New(slog.DiscardHandler)}, 20*time.Millisecond), r.enter)
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	b, err := bus.Join(t.Context(), bus.Config{}, func(ctx context.Context) (bus.Grant, error) {
		return r.hub.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
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
	a := enter(t, l, worker("go"))
	entry := func() (e agentnet.Entry) {
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
			await(t, "a heartbeat", func() bool { now := entry().LastHeartbeat; return now != "" && now != before })
		}
	}
	awaitBeats()
	if err := a.SetHandle("another"); err != nil {
		t.Fatal(err)
	}
	await(t, "what has changed", func() bool { return entry().Handle == "another" })
	awaitBeats()
	for _, lose := range []func() error{
		func() error { return kv.Purge(t.Context(), a.GUID()) },
		func() error { _, err := kv.PutString(t.Context(), a.GUID(), "no entry"); return err },
	} {
		if err := lose(); err != nil {
			t.Fatal(err)
		}
		await(t, "the entry again", func() bool {
			v, err := kv.Get(t.Context(), a.GUID())
			return err == nil && json.Valid(v.Value()) && entry().Handle == "another"
		})
	}
	awaitBeats()
	if e := entry(); e.GUID != a.GUID() || e.Status != agentnet.Active {
		t.Errorf("%+v", e)
	}
	// Whoever asks in an agent's name does not make the hub answer elsewhere.
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
	mine := agentnet.InboxPrefix("7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11") + ".pulse"
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
		t.Errorf("%d answers elsewhere: %v", n, err)
	}
}

// The agents of one project cannot make all queues that a network has.
func TestOneProjectMakesSomeQueues(t *testing.T) {
	r := newReception(t)
	shop, blog := r.lobby("/shop"), r.lobby("/blog")
	a, twin, other := enter(t, shop, worker("go")), enter(t, shop, dispatcher()), enter(t, blog, worker("go"))
	for i := range agentnet.MaxOwnedQueues {
		submit(t, []*agentnet.Agent{a, twin}[i%2], fmt.Sprint("T-", i), fmt.Sprint("queue-", i))
	}
	for _, one := range []*agentnet.Agent{a, twin} {
		_, err := one.Submit(t.Context(), item("one-more", "another-queue"))
		wants(t, err, agentnet.ConflictError, "The agents of this project have made 64 work queues")
	}
	submit(t, a, "again", "queue-1")
	submit(t, other, "others", "another-queue")
	submit(t, a, "into-others", "another-queue")
}
