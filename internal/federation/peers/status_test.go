package peers_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/testbed"
)

// of returns the status of the party's only peer.
func (p *party) of(t testing.TB) peers.PeerStatus {
	t.Helper()
	all := p.net.Status()
	if len(all) != 1 {
		t.Fatalf("%+v", all)
	}
	return all[0]
}

// The status of a peer has the transports, the time of the last card, the agents, and whether it is connected.
func TestStatusOfAPeer(t *testing.T) {
	t.Parallel()
	a, b := meet(t, t.TempDir(), true, nil), meet(t, t.TempDir(), false, nil)
	a.pair(t, "bob", b)
	wait.Eventually(t, "the list is read", func() bool { return len(a.net.Status()) == 1 })
	if s := a.of(t); s.Name != "bob" || s.Key != b.net.Key() || len(s.Via) != 0 || !s.LastSeen.IsZero() || len(s.Agents) != 0 {
		t.Errorf("before the pairing: %+v", s)
	}
	b.pair(t, "alice", a)
	a.awaitAgent(t, "bob.worker")
	wait.Eventually(t, "the peer is connected", func() bool { // the agent is known slightly earlier
		s := a.of(t)
		return slices.Equal(s.Via, []agent.Transport{agent.TransportHyperswarm}) && time.Since(s.LastSeen) < time.Minute && slices.Equal(s.Agents, []string{"bob.worker"}) && s.Problem == nil
	})
	b.end()
	wait.Eventually(t, "it is seen that it is gone", func() bool {
		s := a.of(t)
		return len(s.Via) == 0 && len(s.Agents) == 0 && !s.LastSeen.IsZero()
	})
}

// Cards of a hub whose clock is one hour wrong are refused, and the status has the reason.
//
// WIRE-CARD-EXPIRED.
func TestAHubWhoseClockIsWrong(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	nc := connect(t, n)
	defer nc.Close()
	asked, err := nc.SubscribeSync("parley.ask")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	a := newParty(t, n, t.TempDir(), nil)
	if _, err := asked.NextMsgWithContext(deadline(t)); err != nil { // it sends requests once it listens
		t.Fatal(err)
	}
	other := identity.Generate()
	list, err := identity.OpenAllowList(peers.AllowPath(a.dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := list.Add(identity.Entry{Key: other.Public(), Name: "bob"}); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the list is read", func() bool { return len(a.net.Status()) == 1 })
	say := func(now time.Time) {
		t.Helper()
		data, err := signedcard.Sign(other, signedcard.Statement{
			Sequence: uint64(now.UnixMilli()), IssuedAt: now, ExpiresAt: now.Add(30 * time.Second),
			Card: agent.Card{ID: signedcard.ID("worker", other.Public()), Name: "worker", Version: "1", Tier: agent.L3, Protocols: []string{"a2a/1.0"}, Capabilities: []agent.Capability{}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Publish("parley.cards."+other.Public().String(), data); err != nil {
			t.Fatal(err)
		}
	}
	for _, wrong := range []time.Duration{time.Hour, -time.Hour} {
		say(time.Now().Add(wrong))
		wait.Eventually(t, "the clocks are blamed", func() bool {
			s := a.of(t)
			return s.Problem != nil && signedcard.CodeOf(s.Problem) == signedcard.CodeExpired && strings.Contains(s.Problem.Error(), "clocks")
		})
		if s := a.of(t); len(s.Agents) != 0 || len(s.Via) != 0 {
			t.Errorf("%v: the card was accepted: %+v", wrong, s)
		}
	}
	say(time.Now().Add(time.Minute)) // the allowed difference of clocks
	wait.Eventually(t, "it is believed once its clock is right", func() bool {
		s := a.of(t)
		return s.Problem == nil && slices.Equal(s.Agents, []string{"bob.worker"})
	})
}

// An agent whose capabilities were all removed still accepts messages, as at its own hub.
func TestAnAgentWithoutCapabilities(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	info, err := b.hub.Agent("worker")
	if err != nil {
		t.Fatal(err)
	}
	d := *info.Definition
	d.Capabilities = nil
	if err := b.hub.Update(d); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the change is known, and the agent is well", func() bool {
		info, err := a.hub.Agent("bob.worker")
		return err == nil && len(info.Definition.Capabilities) == 0 && info.Health.Status == hub.Healthy
	})
	if info, err := a.hub.CheckHealth(deadline(t), "bob.worker"); err != nil || info.Status != hub.Healthy {
		t.Errorf("%+v, %v", info, err)
	}
	if task := a.send(t, "bob.worker", "dig"); textOf(task) != "did dig" {
		t.Errorf("got %s %q", task.Status.State, textOf(task))
	}
}

// documented returns the permissions that docs/peers-operate.md lists for a hub with a key.
func documented(t *testing.T, key identity.PublicKey) *server.Permissions {
	t.Helper()
	page, err := os.ReadFile("../../../docs/peers-operate.md")
	if err != nil {
		t.Fatal(err)
	}
	subjects := func(kind string) *server.SubjectPermission {
		line := regexp.MustCompile(`(?m)^    ` + kind + `: +(\[.*\])$`).FindSubmatch(page)
		if line == nil {
			t.Fatalf("docs/peers-operate.md does not list %s", kind)
		}
		var list []string
		if err := json.Unmarshal(line[1], &list); err != nil {
			t.Fatal(err)
		}
		for i, s := range list {
			list[i] = strings.ReplaceAll(s, "KEY", key.String())
		}
		return &server.SubjectPermission{Allow: list}
	}
	return &server.Permissions{Publish: subjects("publish"), Subscribe: subjects("subscribe")}
}

// The permissions of docs/peers-operate.md suffice for hubs, and do not allow them to publish as another hub or to
// receive its messages.
func TestNATSPermissions(t *testing.T) {
	t.Parallel()
	const people = 3
	var dirs [people]string
	var own [people]identity.PublicKey
	var users []*server.User
	for i := range dirs {
		dirs[i] = t.TempDir()
		pair, err := identity.Load(peers.KeyPath(dirs[i]))
		if err != nil {
			t.Fatal(err)
		}
		own[i] = pair.Public()
		users = append(users, &server.User{Username: own[i].String(), Password: "secret", Permissions: documented(t, own[i])})
	}
	n := testbed.StartNATS(t, testbed.WithoutJetStream, func(o *server.Options) { o.Users = users })
	refused := make(chan error, 64)
	as := func(i int) *nats.Conn {
		nc, err := nats.Connect(n.URL(), nats.UserInfo(own[i].String(), "secret"),
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
		if err != nil {
			t.Fatal(err)
		}
		return nc
	}
	a, b := openParty(t, dirs[0], nil, peers.Options{NATS: as(0)}), openParty(t, dirs[1], nil, peers.Options{NATS: as(1)})
	a.pair(t, "bob", b)
	b.pair(t, "alice", a)
	a.awaitAgent(t, "bob.worker")
	b.awaitAgent(t, "alice.worker")
	if task := a.send(t, "bob.worker", "words"); textOf(task) != "one two three" {
		t.Errorf("got %s %q", task.Status.State, textOf(task))
	}
	if task := b.send(t, "alice.worker", "dig"); textOf(task) != "did dig" {
		t.Errorf("got %s %q", task.Status.State, textOf(task))
	}
	select {
	case err := <-refused:
		t.Errorf("a hub needs more permissions than documented: %v", err)
	default:
	}
	mallory := as(2)
	defer mallory.Close()
	for _, attempt := range []func() error{
		func() error { return mallory.Publish("parley.cards."+own[0].String(), []byte("{}")) },
		func() error { _, err := mallory.SubscribeSync("parley.hub." + own[0].String()); return err },
		func() error { _, err := mallory.SubscribeSync("parley.hub.*"); return err },
		func() error { _, err := mallory.SubscribeSync("parley.>"); return err },
	} {
		if err := attempt(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-refused:
			if !strings.Contains(strings.ToLower(err.Error()), "permissions violation") {
				t.Error(err)
			}
		case <-deadline(t).Done():
			t.Fatal("a hub can subscribe to another hub's address")
		}
	}
}

// A change of a remote agent's health takes effect at once, before the hub's next probe.
func TestHealthFollowsTheCards(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	a, b := openPartyProbing(t, t.TempDir(), nil, peers.Options{NATS: connect(t, n)}, time.Hour), newParty(t, n, t.TempDir(), nil)
	a.pair(t, "bob", b)
	b.pair(t, "alice", a)
	a.awaitAgent(t, "bob.worker")
	is := func(want hub.HealthStatus) func() bool {
		return func() bool {
			info, err := a.hub.Agent("bob.worker")
			return err == nil && info.Health.Status == want
		}
	}
	b.actor.sick.Store(true)
	wait.Eventually(t, "it is known that it cannot work", is(hub.Unhealthy))
	b.actor.sick.Store(false)
	wait.Eventually(t, "it is known that it can", is(hub.Healthy))
	b.end()
	wait.Eventually(t, "it is known that its hub is gone", is(hub.Unhealthy))
	newParty(t, n, b.dir, nil)
	wait.Eventually(t, "it is known that its hub is back", is(hub.Healthy))
}

// A hub that stops announces that, so it is not shown as connected until its last card expires, also over NATS.
func TestAHubThatStopsIsDown(t *testing.T) {
	_, a, b := two(t)
	wait.Eventually(t, "the peer is connected", func() bool { return slices.Equal(a.of(t).Via, []agent.Transport{agent.TransportNATS}) })
	stopped := time.Now()
	b.end()
	wait.Eventually(t, "it is seen that it is gone", func() bool {
		s := a.of(t)
		return len(s.Via) == 0 && len(s.Agents) == 0 && !s.LastSeen.IsZero() || time.Since(stopped) > 25*time.Second
	})
	if s := a.of(t); len(s.Via) != 0 || s.LastSeen.Before(stopped.Add(-time.Minute)) {
		t.Errorf("%+v", s)
	}
}

// If a remote agent would get the name of a local agent, the local one keeps it, and the peer's status has the
// problem.
func TestALocalAgentHasTheNameOfAPeersAgent(t *testing.T) {
	n := startServer(t)
	a := newParty(t, n, t.TempDir(), func(d *runner.Definition) { d.ID = "bob.worker" })
	b := newParty(t, n, t.TempDir(), nil)
	a.pair(t, "bob", b)
	b.pair(t, "alice", a)
	b.awaitAgent(t, "alice.bob.worker")
	wait.Eventually(t, "why one is missing is said", func() bool {
		s := a.of(t)
		return s.Problem != nil && strings.Contains(s.Problem.Error(), "bob.worker") && len(s.Via) == 1
	})
	if s := a.of(t); len(s.Agents) != 0 {
		t.Errorf("%+v", s)
	}
	if task := a.send(t, "bob.worker", "dig"); textOf(task) != "did dig" {
		t.Errorf("the local agent answers %q", textOf(task))
	}
	if b.audit.has(signedcard.ID("~hub-l3", a.net.Key())) {
		t.Error("the other hub received the task")
	}
	a.pair(t, "robert", b) // under another name it is registered
	a.awaitAgent(t, "robert.worker")
	wait.Eventually(t, "the problem is gone", func() bool { return a.of(t).Problem == nil })
}
