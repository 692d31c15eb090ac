package hyperswarm_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/agent"
	hyperswarmcards "github.com/parleyhub/parley/discovery/hyperswarm"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func anybody(identity.PublicKey) bool { return true }

func nobody(identity.PublicKey) bool { return false }

// lasting is how long statements are valid: long, so that none expires on a slow machine.
const lasting = signedcard.MaxLifetime

// hub is a registry with a source.
type hub struct {
	*registry.Registry
	pair   *identity.Pair
	swarm  *swarm.Swarm
	source *hyperswarmcards.Source
}

func newHub(t testing.TB, bootstrap []string, trusted func(identity.PublicKey) bool, change func(*hyperswarmcards.Source)) *hub {
	t.Helper()
	h := &hub{Registry: registry.New(registry.Options{RemoteTTL: lasting}), pair: identity.Generate()}
	h.swarm = newSwarm(t, bootstrap, h.pair, trusted)
	h.source = &hyperswarmcards.Source{
		Swarm: h.swarm, Ledger: &signedcard.Ledger{Author: signedcard.NewAuthor(h.pair, lasting), Trusted: trusted},
	}
	if change != nil {
		change(h.source)
	}
	if err := h.EnableDiscovery("hyperswarm", h.source); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func newSwarm(t testing.TB, bootstrap []string, pair *identity.Pair, allow func(identity.PublicKey) bool) *swarm.Swarm {
	node := hyperswarmtest.Node(t, hyperdht.Options{
		Bootstrap: bootstrap, Pair: pair, Stream: secretstream.Options{MaxMessage: signedcard.MaxSize},
	})
	s := swarm.New(swarm.Options{Node: node, Allow: allow})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (h *hub) key() identity.PublicKey { return h.pair.Public() }

func (h *hub) register(t testing.TB, name, capability string) agent.Card {
	t.Helper()
	card, err := h.Register(agent.Card{
		ID: signedcard.ID(name, h.key()), Name: name, Version: "1", Tier: agent.L3, Capabilities: []agent.Capability{{ID: capability, Name: "Work"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return card
}

// await waits for a change of a card.
func await(t testing.TB, w *registry.Watcher, id string, kind registry.ChangeKind) agent.Card {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		c, err := w.Next(ctx)
		if err != nil {
			t.Fatalf("%s was not %s: %v", id, kind, err)
		}
		if c.Card.ID == id && c.Kind == kind {
			return c.Card
		}
	}
}

func (h *hub) knows(id string) bool {
	_, err := h.Get(id)
	return err == nil
}

// Req 1.7, 1.8: hubs announce their agents under the ids that they have there, and a key tells equal ids apart.
func TestHubsThatKnowEachOther(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 1)
	a, b := newHub(t, bootstrap, anybody, nil), newHub(t, bootstrap, anybody, nil)
	atB, atA := b.Watch(), a.Watch()
	defer atB.Close()
	defer atA.Close()
	b.source.KeepConnected([]identity.PublicKey{a.key()})
	for _, h := range []*hub{a, b} {
		if _, err := h.Register(agent.Card{ID: "venus", Name: "VENUS", Version: "1", Tier: agent.L2, Capabilities: []agent.Capability{{ID: "work"}}}); err != nil {
			t.Fatal(err)
		}
	}
	atAB := map[*hub]*registry.Watcher{a: atA, b: atB}
	for h, other := range map[*hub]*hub{a: b, b: a} {
		got := await(t, atAB[h], signedcard.ID("venus", other.key()), registry.Added)
		if got.Origin != agent.Remote || got.Tier != agent.L2 || len(h.Remote()) != 1 || len(h.Local()) != 1 || len(h.FindByCapability("work")) != 2 {
			t.Errorf("got %+v of %v", got, h.All())
		}
	}
	a.Unregister("venus")
	await(t, atB, signedcard.ID("venus", a.key()), registry.Removed)
	if !b.knows("venus") || !a.knows(signedcard.ID("venus", b.key())) {
		t.Error("an agent of the same id is gone, too")
	}
}

// Req 1.7, 1.8: hubs that know each other's keys discover each other's agents as remote ones, with changes and
// withdrawals, without a topic.
func TestPairedHubsDiscoverEachOther(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 1)
	a, b := newHub(t, bootstrap, anybody, nil), newHub(t, bootstrap, anybody, nil)
	first := a.register(t, "first", "work")
	atB, atA := b.Watch(), a.Watch()
	defer atB.Close()
	defer atA.Close()
	b.source.KeepConnected([]identity.PublicKey{a.key()})
	if got := await(t, atB, first.ID, registry.Added); got.Origin != agent.Remote || got.Name != "first" {
		t.Errorf("got %+v", got)
	}
	later := b.register(t, "later", "work")
	await(t, atA, later.ID, registry.Added)
	first.Description = "changed"
	if _, err := a.Register(first); err != nil {
		t.Fatal(err)
	}
	if got := await(t, atB, first.ID, registry.Updated); got.Description != "changed" {
		t.Errorf("got %+v", got)
	}
	a.Unregister(first.ID)
	await(t, atB, first.ID, registry.Removed)
	if err := b.Close(); err != nil { // a hub that stops withdraws its agents
		t.Fatal(err)
	}
	await(t, atA, later.ID, registry.Removed)
}

// A hub that stops withdraws each of its agents, also if another source with the same ledger has withdrawn them
// before.
func TestStoppingHubWithdrawsItsAgents(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 1)
	a, b := newHub(t, bootstrap, anybody, nil), newHub(t, bootstrap, anybody, nil)
	var ids []string
	for i := range 5 {
		ids = append(ids, b.register(t, fmt.Sprint("worker", i), "work").ID)
	}
	b.source.KeepConnected([]identity.PublicKey{a.key()})
	for _, id := range ids {
		wait.Eventually(t, "the agents are found", func() bool { return a.knows(id) })
	}
	for _, id := range ids {
		if _, err := b.source.Ledger.Withdraw(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		wait.Eventually(t, "the agents are gone", func() bool { return !a.knows(id) })
	}
}

// Hubs with the same network secret find each other without configured peers, but must trust each other.
func TestHubsWithOneNetworkSecret(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 1)
	in := func(network string) func(*hyperswarmcards.Source) {
		return func(s *hyperswarmcards.Source) { s.Network = network }
	}
	a, b := newHub(t, bootstrap, anybody, in("secret")), newHub(t, bootstrap, anybody, in("secret"))
	elsewhere := newHub(t, bootstrap, anybody, in("another secret"))
	stranger := newHub(t, bootstrap, anybody, in("secret"))
	wary := newHub(t, bootstrap, func(k identity.PublicKey) bool { return k != stranger.key() }, in("secret"))
	card := a.register(t, "worker", "work")
	private := elsewhere.register(t, "worker", "work")
	bad := stranger.register(t, "worker", "work")
	for _, h := range []*hub{b, wary} {
		wait.Eventually(t, "the agents are found", func() bool {
			_, _ = h.Resolve(context.Background(), registry.Query{ID: card.ID})
			return h.knows(card.ID)
		})
	}
	wait.Eventually(t, "a hub that trusts everybody finds the untrusted hub's agent", func() bool {
		_, _ = b.Resolve(context.Background(), registry.Query{ID: bad.ID})
		return b.knows(bad.ID)
	})
	if b.knows(private.ID) {
		t.Error("an agent of another network was discovered")
	}
	if wary.knows(bad.ID) {
		t.Error("a card of an untrusted hub was accepted")
	}
}

// Req 4.4: a query for a capability finds a hub that offers it, even if the two were not connected.
func TestHubsAreFoundByCapability(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 1)
	change := func(s *hyperswarmcards.Source) { s.Network, s.Capabilities = "secret", true }
	a := newHub(t, bootstrap, anybody, change)
	card := a.register(t, "worker", "dig")
	// This hub joins only the topics of its queries.
	b := &hub{Registry: registry.New(registry.Options{RemoteTTL: lasting}), pair: identity.Generate()}
	b.swarm = newSwarm(t, bootstrap, b.pair, anybody)
	b.source = &hyperswarmcards.Source{
		Swarm: b.swarm, Ledger: &signedcard.Ledger{Author: signedcard.NewAuthor(b.pair, lasting), Trusted: anybody}, Network: "secret", Capabilities: true,
	}
	if err := b.EnableDiscovery("hyperswarm", b.source); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for i := range 4 { // with the one that matters, more topics than are kept
		if _, err := b.source.Find(t.Context(), registry.Query{Capability: fmt.Sprint("other-", i)}); err != nil {
			t.Error(err)
		}
	}
	wait.Eventually(t, "the agent is found", func() bool {
		cards, err := b.Resolve(context.Background(), registry.Query{Capability: "dig"})
		return err == nil && cards[0].ID == card.ID
	})
}

// A hub that is no longer trusted is disconnected.
//
// WIRE-REMOVED.
func TestRevokedHubIsDisconnected(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 1)
	trust := make(chan bool, 1)
	trust <- true
	trusted := func(identity.PublicKey) bool {
		v := <-trust
		trust <- v
		return v
	}
	a, b := newHub(t, bootstrap, trusted, nil), newHub(t, bootstrap, anybody, nil)
	b.source.KeepConnected([]identity.PublicKey{a.key()})
	wait.Eventually(t, "the hubs are connected", func() bool { return len(a.swarm.Connected()) == 1 })
	<-trust
	trust <- false
	a.source.KeepConnected(nil)
	wait.Eventually(t, "the connection ends", func() bool { return len(a.swarm.Connected()) == 0 })
	card := b.register(t, "worker", "work")
	b.source.KeepConnected(nil)
	b.source.KeepConnected([]identity.PublicKey{a.key()})
	if a.knows(card.ID) {
		t.Error("its statements are still accepted")
	}
}

// peer is a program that sends its own statements.
func peer(t *testing.T, bootstrap []string, pair *identity.Pair, to identity.PublicKey) *secretstream.Conn {
	t.Helper()
	node := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap, Pair: pair})
	c, err := node.Dial(hyperswarmtest.Context(t), to, hyperdht.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Destroy)
	return c
}

func say(t *testing.T, c *secretstream.Conn, messages ...[]byte) {
	t.Helper()
	for _, m := range messages {
		if err := c.WriteMessage(m); err != nil {
			t.Fatal(err)
		}
	}
}

// Forged, replayed, expired and foreign statements change nothing, even many of them. A peer that violates the
// protocol is disconnected.
//
// WIRE-CARD-FORGED, WIRE-FRAME.
func TestHostilePeers(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 1)
	liar, victim := identity.Generate(), identity.Generate()
	a := newHub(t, bootstrap, anybody, nil)
	wait.Eventually(t, "the hub can be dialled", func() bool {
		node := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
		c, err := node.Dial(hyperswarmtest.Context(t), a.key(), hyperdht.DialOptions{})
		if err == nil {
			c.Destroy()
		}
		return err == nil
	})
	state := func(p *identity.Pair, id string, seq uint64, age time.Duration) []byte {
		card := agent.Card{ID: id, Name: "x", Version: "1", Tier: agent.L3, Capabilities: []agent.Capability{}}
		now := time.Now().Add(-age)
		data, err := signedcard.Sign(p, signedcard.Statement{Sequence: seq, IssuedAt: now, ExpiresAt: now.Add(lasting), Card: card})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	mine := signedcard.ID("mine", liar.Public())
	good, stolen := state(liar, mine, 10, 0), state(victim, signedcard.ID("stolen", victim.Public()), 1, 0)
	forged := append([]byte(nil), good...)
	forged[len(forged)-10] ^= 1
	flood := make([][]byte, 3000)
	for i := range flood {
		flood[i] = []byte(`{"signature":"","statement":{}}`)
	}
	c := peer(t, bootstrap, liar, a.key())
	say(t, c, []byte(hyperswarmcards.Greeting), []byte("{"), nil, []byte("."), forged, stolen, state(liar, signedcard.ID("late", liar.Public()), 1, time.Hour), good)
	wait.Eventually(t, "the valid statement is accepted", func() bool { return a.knows(mine) })
	if n := len(a.Remote()); n != 1 {
		t.Errorf("the registry has %d agents", n)
	}
	withdrawal, err := signedcard.Sign(liar, signedcard.Statement{Sequence: 5, IssuedAt: time.Now(), ExpiresAt: time.Now().Add(time.Second), Withdrawn: mine})
	if err != nil {
		t.Fatal(err)
	}
	say(t, c, withdrawal) // with an old sequence number
	say(t, c, flood...)
	after := a.register(t, "after", "work")
	for {
		m, err := c.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		if s, err := signedcard.Open(m, nil); err == nil && s.AgentID() == after.ID {
			break // the hub still works
		}
	}
	if !a.knows(mine) {
		t.Error("an old withdrawal was accepted")
	}

	for name, m := range map[string][]byte{"another protocol": []byte("GET / HTTP/1.1"), "too large": make([]byte, signedcard.MaxSize+1)} {
		c := peer(t, bootstrap, identity.Generate(), a.key())
		if name == "too large" {
			say(t, c, []byte(hyperswarmcards.Greeting))
		}
		_ = c.WriteMessage(m) // the hub may disconnect meanwhile
		for {
			if _, err := c.ReadMessage(); err != nil {
				break
			}
		}
	}
}

// An untrusted peer gets no answer in the handshake, even if it knows the topic.
//
// WIRE-STRANGER.
func TestUntrustedHubsAreRefused(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 1)
	a := newHub(t, bootstrap, nobody, func(s *hyperswarmcards.Source) { s.Network = "secret" })
	a.register(t, "worker", "work")
	s := newSwarm(t, bootstrap, identity.Generate(), anybody)
	topic, err := s.Join(hyperswarmcards.Topic("secret", ""), swarm.Client|swarm.Server)
	if err != nil {
		t.Fatal(err)
	}
	if err := topic.Flushed(hyperswarmtest.Context(t)); err != nil {
		t.Fatal(err)
	}
	node := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	if _, err := node.Dial(hyperswarmtest.Context(t), a.key(), hyperdht.DialOptions{}); err == nil {
		t.Error("an untrusted peer has connected")
	}
	if len(a.swarm.Connected()) != 0 || len(s.Connected()) != 0 {
		t.Error("the hub has a connection to an untrusted peer")
	}
}

// A hub is found by the capabilities of its agents, until none of them has the capability. Queries of its own
// for that capability make no difference.
func TestTopicsFollowCapabilities(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 1)
	h := newHub(t, bootstrap, anybody, func(s *hyperswarmcards.Source) { s.Network, s.Capabilities = "secret", true })
	observer := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	under := func(capability string) bool {
		found := false
		if err := observer.Lookup(hyperswarmtest.Context(t), hyperswarmcards.Topic("secret", capability), func(p hyperdht.Peer) bool {
			found = found || p.Key == h.key()
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return found
	}
	if _, err := h.source.Find(t.Context(), registry.Query{Capability: "dig"}); err != nil {
		t.Fatal(err)
	}
	if under("dig") {
		t.Error("a hub that only searches is found")
	}
	card := h.register(t, "worker", "dig")
	wait.Eventually(t, "the hub is found by its agent's capability", func() bool { return under("dig") })
	other := h.register(t, "other", "dig")
	h.register(t, "worker", "fill")
	wait.Eventually(t, "the hub is found by its agent's new capability", func() bool { return under("fill") })
	if !under("dig") {
		t.Error("the hub is not found by a capability that another agent still has")
	}
	h.Unregister(other.ID)
	wait.Eventually(t, "the hub is not found by the removed capability", func() bool { return !under("dig") })
	h.Unregister(card.ID)
	wait.Eventually(t, "the hub is not found after the agent is withdrawn", func() bool { return !under("fill") })
}

// Req 1.7: a source that can neither find nor announce an agent is not enabled.
func TestAnIncompleteSourceIsRefused(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 1)
	s := newSwarm(t, bootstrap, identity.Generate(), anybody)
	ledger := &signedcard.Ledger{Author: signedcard.NewAuthor(identity.Generate(), time.Minute)}
	r := registry.New(registry.Options{})
	defer r.Close()
	for name, source := range map[string]*hyperswarmcards.Source{"no ledger": {Swarm: s}, "no author": {Swarm: s, Ledger: new(signedcard.Ledger)}, "no swarm": {Ledger: ledger}, "nil": nil} {
		if err := r.EnableDiscovery(name, source); registry.CodeOf(err) != registry.CodeNotConfigured {
			t.Errorf("%s: %v", name, err)
		}
	}
}
