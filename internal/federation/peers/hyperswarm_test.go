package peers_test

import (
	"net/netip"
	"testing"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/hub"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// meet returns a party that connects over Hyperswarm. A reachable one serves as a bootstrap node.
func meet(t testing.TB, dir string, reachable bool, change func(*peers.Hyperswarm)) *party {
	t.Helper()
	o := peers.Hyperswarm{Listen: loopback}
	if reachable {
		o.Public = loopback
	}
	if change != nil {
		change(&o)
	}
	return openParty(t, dir, nil, peers.Options{Hyperswarm: &o})
}

// Req 1.7, 1.8, 3.6, 4.4: paired hubs without a common server find each other and run tasks on each other's agents.
func TestHubsWithoutAServer(t *testing.T) {
	t.Parallel()
	a, b := meet(t, t.TempDir(), true, nil), meet(t, t.TempDir(), false, nil)
	stranger := meet(t, t.TempDir(), false, nil)
	a.pair(t, "bob", b)
	b.pair(t, "alice", a)
	stranger.pair(t, "alice", a)
	a.awaitAgent(t, "bob.worker")
	b.awaitAgent(t, "alice.worker")
	if task := a.send(t, "bob.worker", "dig"); textOf(task) != "did dig" {
		t.Errorf("got %s %q", task.Status.State, textOf(task))
	}
	if task := b.send(t, "alice.worker", "words"); textOf(task) != "one two three" {
		t.Errorf("got %s %q", task.Status.State, textOf(task))
	}
	if !b.audit.has("~hub-l3@" + a.net.Key().String()) {
		t.Errorf("the audit log has %v", b.audit.senders)
	}
	if n := len(stranger.hub.Agents()); n != 1 {
		t.Errorf("a hub that is not paired sees %d agents", n)
	}

	// A removed hub is disconnected.
	list, err := identity.OpenAllowList(peers.AllowPath(a.dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := list.Remove(b.net.Key()); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the removed hub's agents go", func() bool { return len(a.hub.Agents()) == 1 })
	before := tasks(t, a)
	if _, err := b.hub.Send(deadline(t), hub.SendRequest{AgentID: "alice.worker", Message: message("dig")}); err != nil {
		t.Fatal(err)
	}
	b.end() // it has tried to reconnect before
	if after := tasks(t, a); after != before {
		t.Error("a removed hub runs tasks")
	}
}

func tasks(t testing.TB, p *party) int {
	t.Helper()
	page, err := p.hub.Tasks(deadline(t), hub.TaskQuery{})
	if err != nil {
		t.Fatal(err)
	}
	return page.Total
}

// Hubs that cannot be reached connect through a reachable hub that is paired with neither.
func TestHubsMeetThroughAnother(t *testing.T) {
	t.Parallel()
	c := meet(t, t.TempDir(), true, nil)
	through := func(o *peers.Hyperswarm) { o.Bootstrap = []string{c.address()} }
	a, b := meet(t, t.TempDir(), false, through), meet(t, t.TempDir(), false, through)
	a.pair(t, "bob", b)
	b.pair(t, "alice", a)
	a.awaitAgent(t, "bob.worker")
	if task := a.send(t, "bob.worker", "dig"); textOf(task) != "did dig" {
		t.Errorf("got %s %q", task.Status.State, textOf(task))
	}
	if n := len(c.hub.Agents()); n != 1 {
		t.Errorf("the relaying hub sees %d agents", n)
	}
}

// Paired hubs of a network find each other without a configured address.
func TestHubsOfANetwork(t *testing.T) {
	t.Parallel()
	c := meet(t, t.TempDir(), true, nil)
	in := func(o *peers.Hyperswarm) {
		o.Bootstrap, o.Network, o.Capabilities = []string{c.address()}, "a secret", true
	}
	a, b := meet(t, t.TempDir(), false, in), meet(t, t.TempDir(), false, in)
	a.pair(t, "bob", b)
	b.pair(t, "alice", a)
	a.awaitAgent(t, "bob.worker")
	b.awaitAgent(t, "alice.worker")
}

// A hub that ended without a goodbye is used again after it returns with its key at another address.
func TestAHubThatMoves(t *testing.T) {
	t.Parallel()
	a, b := meet(t, t.TempDir(), true, nil), meet(t, t.TempDir(), false, nil)
	a.pair(t, "bob", b)
	b.pair(t, "alice", a)
	a.awaitAgent(t, "bob.worker")
	b.end()
	wait.Eventually(t, "its agents are unhealthy", func() bool {
		info, err := a.hub.Agent("bob.worker")
		return err == nil && info.Health.Status == hub.Unhealthy
	})
	meet(t, b.dir, false, nil)
	a.awaitAgent(t, "bob.worker")
	if task := a.send(t, "bob.worker", "again"); textOf(task) != "did again" {
		t.Errorf("got %s %q", task.Status.State, textOf(task))
	}
}

// Hubs that are connected over NATS and Hyperswarm use one when the other fails.
func TestOneTransportFails(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	both := func(reachable bool) *party {
		o := peers.Hyperswarm{Listen: loopback}
		if reachable {
			o.Public = loopback
		}
		return openParty(t, t.TempDir(), nil, peers.Options{NATS: connect(t, n), Hyperswarm: &o})
	}
	a, b := both(true), both(false)
	a.pair(t, "bob", b)
	b.pair(t, "alice", a)
	a.awaitAgent(t, "bob.worker")
	n.Stop()
	b.actor.sick.Store(true)
	wait.Eventually(t, "news comes the other way", func() bool {
		info, err := a.hub.Agent("bob.worker")
		return err == nil && info.Health.Status == hub.Unhealthy
	})
	b.actor.sick.Store(false)
	a.awaitAgent(t, "bob.worker")
	if task := a.send(t, "bob.worker", "on"); textOf(task) != "did on" {
		t.Errorf("got %s %q", task.Status.State, textOf(task))
	}
}
