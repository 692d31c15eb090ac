package nats_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/agent"
	natscards "github.com/parleyhub/parley/discovery/nats"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startServer(t testing.TB) string {
	t.Helper()
	return testbed.StartNATS(t, testbed.WithoutJetStream).URL()
}

func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func anybody(identity.PublicKey) bool { return true }

// hub is a registry with a source.
type hub struct {
	*registry.Registry
	pair   *identity.Pair
	source *natscards.Source
}

func newHub(t testing.TB, url string, trusted func(identity.PublicKey) bool, o registry.Options) *hub {
	t.Helper()
	h := &hub{Registry: registry.New(o), pair: identity.Generate()}
	nc := connect(t, url)
	listening, err := nc.SubscribeSync("parley.ask")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &natscards.Source{Conn: nc, Ledger: &signedcard.Ledger{Author: signedcard.NewAuthor(h.pair, time.Minute), Trusted: trusted}}
	h.source = s
	if err := h.EnableDiscovery("nats", s); err != nil {
		t.Fatal(err)
	}
	if _, err := listening.NextMsg(time.Minute); err != nil { // the source sends a request once it has subscribed
		t.Fatal(err)
	}
	if err := listening.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *hub) card(name string) agent.Card {
	return agent.Card{ID: signedcard.ID(name, h.pair.Public()), Name: name, Version: "1", Tier: agent.L3, Capabilities: []agent.Capability{{ID: "work", Name: "Work"}}}
}

func (h *hub) register(t testing.TB, name string) agent.Card {
	t.Helper()
	card, err := h.Register(h.card(name))
	if err != nil {
		t.Fatal(err)
	}
	return card
}

// await waits for a change of a card.
func await(t testing.TB, w *registry.Watcher, id string, kind registry.ChangeKind) agent.Card {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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

// Req 1.7, 1.8: hubs discover each other's agents as remote ones, in whichever order they start, with changes and
// withdrawals.
func TestHubsFindEachOther(t *testing.T) {
	url := startServer(t)
	a := newHub(t, url, anybody, registry.Options{})
	first := a.register(t, "first")
	b := newHub(t, url, anybody, registry.Options{})
	atB := b.Watch()
	defer atB.Close()
	if got := await(t, atB, first.ID, registry.Added); got.Origin != agent.Remote || got.Name != "first" {
		t.Errorf("got %+v", got)
	}
	atA := a.Watch()
	defer atA.Close()
	later := b.register(t, "later")
	await(t, atA, later.ID, registry.Added)
	changed := first
	changed.Description = "changed"
	if _, err := a.Register(changed); err != nil {
		t.Fatal(err)
	}
	if got := await(t, atB, first.ID, registry.Updated); got.Description != "changed" {
		t.Errorf("got %+v", got)
	}
	a.Unregister(first.ID)
	await(t, atB, first.ID, registry.Removed)
	if err := b.Close(); err != nil { // withdraws its cards
		t.Fatal(err)
	}
	await(t, atA, later.ID, registry.Removed)
}

// Req 1.7, 1.8, 11.1: hubs announce their agents under the ids that they have there, all planetary agents among them. A
// key tells equal ids of several hubs apart. A registry with the planetary roster refuses what claims another tier.
func TestHubsThatKnowEachOther(t *testing.T) {
	url := startServer(t)
	roster := registry.Options{Tiers: agent.PlanetaryTier}
	a, b := newHub(t, url, anybody, roster), newHub(t, url, anybody, roster)
	liar := newHub(t, url, anybody, registry.Options{})
	atA, atB := a.Watch(), b.Watch()
	defer atA.Close()
	defer atB.Close()
	for _, h := range []*hub{a, b} {
		for _, id := range agent.PlanetaryIDs() {
			if _, err := h.Register(agent.Card{ID: id, Name: strings.ToUpper(id), Version: "1", Tier: agent.PlanetaryTier(id), Capabilities: []agent.Capability{{ID: "work"}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, id := range agent.PlanetaryIDs() {
		got := await(t, atB, signedcard.ID(id, a.pair.Public()), registry.Added)
		if got.Name != strings.ToUpper(id) || got.Tier != agent.PlanetaryTier(id) || got.Origin != agent.Remote {
			t.Errorf("got %+v", got)
		}
		await(t, atA, signedcard.ID(id, b.pair.Public()), registry.Added)
		if own, err := b.Get(id); err != nil || own.Origin != agent.Local {
			t.Errorf("%s is %+v, %v", id, own, err)
		}
	}
	for id, tier := range map[string]agent.Tier{"io": agent.L0, "sun": agent.L3} {
		if _, err := liar.Register(agent.Card{ID: id, Name: id, Version: "1", Tier: tier, Capabilities: []agent.Capability{}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := liar.Register(agent.Card{ID: signedcard.ID("venus", a.pair.Public()), Name: "mine", Version: "1", Tier: agent.L2, Capabilities: []agent.Capability{}}); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "refuse the wrong tiers", func() bool {
		_, refused := b.source.Ledger.LastSeen(liar.pair.Public())
		return registry.CodeOf(refused) == registry.CodeWrongTier
	})
	// A hub that withdraws an agent takes nobody else's of that id with it.
	a.Unregister("venus")
	await(t, atB, signedcard.ID("venus", a.pair.Public()), registry.Removed)
	if _, err := b.Get("venus"); err != nil {
		t.Error(err)
	}
	if got := len(b.Remote()); got != len(agent.PlanetaryIDs())-1 {
		t.Errorf("%d agents are known, of %v", got, b.Remote())
	}
}

// Req 1.8: the cards of a hub that ends without withdrawing them expire.
func TestCardsExpireWithTheirHub(t *testing.T) {
	url := startServer(t)
	a := newHub(t, url, anybody, registry.Options{RemoteTTL: 300 * time.Millisecond})
	w := a.Watch()
	defer w.Close()
	pair := identity.Generate()
	ghost := (&hub{pair: pair}).card("ghost")
	data, err := signedcard.NewAuthor(pair, time.Minute).State(ghost)
	if err != nil {
		t.Fatal(err)
	}
	nc := connect(t, url)
	if err := nc.Publish("parley.cards."+pair.Public().String(), data); err != nil {
		t.Fatal(err)
	}
	await(t, w, ghost.ID, registry.Added)
	await(t, w, ghost.ID, registry.Removed)
}

// Req 4.4: resolving an unknown agent requests the cards of other hubs.
func TestResolveRequestsCards(t *testing.T) {
	url := startServer(t)
	a := newHub(t, url, anybody, registry.Options{})
	b := newHub(t, url, anybody, registry.Options{})
	card := b.register(t, "sought")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		cards, err := a.Resolve(ctx, registry.Query{Capability: "work"})
		if err == nil {
			if len(cards) != 1 || cards[0].ID != card.ID {
				t.Errorf("got %+v", cards)
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// Statements that are forged, replayed, sent for another hub or by an unpaired hub change nothing.
//
// WIRE-CARD-FORGED, WIRE-CARD-REPLAYED.
func TestInvalidStatementsChangeNothing(t *testing.T) {
	url := startServer(t)
	friend, stranger := identity.Generate(), identity.Generate()
	a := newHub(t, url, func(k identity.PublicKey) bool { return k == friend.Public() }, registry.Options{})
	w := a.Watch()
	defer w.Close()
	card := (&hub{pair: friend}).card("echo")
	author := signedcard.NewAuthor(friend, time.Minute)
	say := func(key identity.PublicKey, data []byte) { publish(t, connect(t, url), key, data) }
	state := func(author *signedcard.Author, card agent.Card) []byte {
		data, err := author.State(card)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	old := state(author, card)
	gone, err := author.Withdraw(card.ID)
	if err != nil {
		t.Fatal(err)
	}
	card.Description = "the latest"
	latest := state(author, card)
	say(friend.Public(), latest)
	await(t, w, card.ID, registry.Added)

	strange := (&hub{pair: stranger}).card("mole")
	for range 3 {
		say(stranger.Public(), state(signedcard.NewAuthor(stranger, time.Minute), strange)) // not paired
		say(friend.Public(), state(signedcard.NewAuthor(stranger, time.Minute), strange))   // claims another's key
		say(stranger.Public(), latest)
		say(friend.Public(), old)                                                                                              // replayed
		say(friend.Public(), gone)                                                                                             // replayed
		say(friend.Public(), []byte(strings.Replace(string(latest), "the latest", "the forged", 1)))                           // forged
		say(friend.Public(), []byte("junk"))                                                                                   //
		say(friend.Public(), []byte(strings.Replace(string(latest), friend.Public().String(), stranger.Public().String(), 5))) // claimed
	}
	card.Description = "the end"
	say(friend.Public(), state(author, card))
	for c := (agent.Card{}); c.Description != "the end"; {
		c = await(t, w, card.ID, registry.Updated)
		if c.Description == "the forged" {
			t.Error("a forged card was accepted")
		}
	}
	if n := len(a.Remote()); n != 1 {
		t.Errorf("the registry has %d remote cards", n)
	}
}

func publish(t testing.TB, nc *nats.Conn, key identity.PublicKey, data []byte) {
	t.Helper()
	if err := nc.Publish("parley.cards."+key.String(), data); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// Floods of one hub's agents, and of requests, are bounded and do not affect other hubs.
//
// WIRE-CARD-FLOOD.
func TestFloodsAreBounded(t *testing.T) {
	url := startServer(t)
	a := newHub(t, url, anybody, registry.Options{})
	w := a.Watch()
	defer w.Close()
	flood := &hub{pair: identity.Generate()}
	author := signedcard.NewAuthor(flood.pair, time.Minute)
	nc := connect(t, url)
	for i := range 3000 {
		data, err := author.State(flood.card(fmt.Sprint("a", i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Publish("parley.cards."+flood.pair.Public().String(), data); err != nil {
			t.Fatal(err)
		}
		if err := nc.Publish("parley.ask", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	b := newHub(t, url, anybody, registry.Options{})
	card := b.register(t, "quiet")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		if _, err := a.Get(card.ID); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the card of a hub that sends little was not received")
		}
		if _, err := a.Resolve(ctx, registry.Query{ID: card.ID}); err == nil {
			break
		}
	}
	if n := len(a.Remote()); n > signedcard.DefaultMaxAgents+1 {
		t.Errorf("%d cards were accepted", n)
	}
}

// LastSeen returns when a hub's last statement was received, and zero once the hub has withdrawn all agents. The
// methods of a source with a closed NATS connection fail.
func TestLastSeenAndClosedConnection(t *testing.T) {
	url := startServer(t)
	a, b := newHub(t, url, anybody, registry.Options{}), newHub(t, url, anybody, registry.Options{})
	atB := b.Watch()
	defer atB.Close()
	if !b.source.LastSeen(a.pair.Public()).IsZero() {
		t.Error("LastSeen has a time before the first statement")
	}
	await(t, atB, a.register(t, "first").ID, registry.Added)
	// The registry is notified before LastSeen changes.
	heard := func() bool { return !b.source.LastSeen(a.pair.Public()).IsZero() }
	wait.Eventually(t, "LastSeen after the first statement", heard)
	if at := b.source.LastSeen(a.pair.Public()); at.After(time.Now()) {
		t.Errorf("last seen at %v", at)
	}
	second := a.register(t, "second").ID
	await(t, atB, second, registry.Added)
	a.Unregister(second)
	await(t, atB, second, registry.Removed)
	if !heard() {
		t.Error("LastSeen is zero although an agent is still announced")
	}
	a.Unregister(a.card("first").ID)
	await(t, atB, a.card("first").ID, registry.Removed)
	wait.Eventually(t, "no LastSeen after the last withdrawal", func() bool { return !heard() })
	await(t, atB, a.register(t, "first").ID, registry.Added)
	wait.Eventually(t, "LastSeen after a new statement", heard)
	nc := connect(t, url)
	nc.Close()
	gone := &natscards.Source{Conn: nc, Ledger: &signedcard.Ledger{Author: signedcard.NewAuthor(a.pair, time.Minute)}}
	if err := gone.Discover(t.Context(), registry.Sink{}); err == nil {
		t.Errorf("discover: %v", err)
	}
	if err := gone.Announce(t.Context(), a.card("first")); err == nil {
		t.Error("Announce succeeds without a connection")
	}
	if err := gone.Withdraw(t.Context(), a.card("first").ID); err == nil {
		t.Error("Withdraw succeeds without a connection")
	}
	if _, err := gone.Find(t.Context(), registry.Query{Capability: "work"}); err == nil {
		t.Error("Find succeeds without a connection")
	}
}

// Req 1.7: a source that can neither find nor announce an agent is not enabled.
func TestAnIncompleteSourceIsRefused(t *testing.T) {
	url := startServer(t)
	nc, closed := connect(t, url), connect(t, url)
	closed.Close()
	ledger := &signedcard.Ledger{Author: signedcard.NewAuthor(identity.Generate(), time.Minute)}
	r := registry.New(registry.Options{})
	defer r.Close()
	for name, source := range map[string]*natscards.Source{"no ledger": {Conn: nc}, "no author": {Conn: nc, Ledger: new(signedcard.Ledger)}, "no connection": {Ledger: ledger}, "a closed connection": {Conn: closed, Ledger: ledger}, "nil": nil} {
		if err := r.EnableDiscovery(name, source); registry.CodeOf(err) != registry.CodeNotConfigured {
			t.Errorf("%s: %v", name, err)
		}
	}
}
