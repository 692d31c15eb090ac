package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/registry"
)

func card(id string, capabilities ...string) agent.Card {
	c := agent.Card{ID: id, Name: id, Version: "1.0.0", Tier: agent.L3, Capabilities: []agent.Capability{}}
	for _, x := range capabilities {
		c.Capabilities = append(c.Capabilities, agent.Capability{ID: x, InputSchema: json.RawMessage(`{}`)})
	}
	return c
}

func register(t testing.TB, r *registry.Registry, c agent.Card) {
	t.Helper()
	if _, err := r.Register(c); err != nil {
		t.Fatal(err)
	}
}

func merge(t testing.TB, r *registry.Registry, c agent.Card, source string) {
	t.Helper()
	if _, err := r.Merge(c, source); err != nil {
		t.Fatal(err)
	}
}

func ids(cards []agent.Card) string {
	var s []string
	for _, c := range cards {
		s = append(s, c.ID)
	}
	return strings.Join(s, " ")
}

func TestResultsAreInOrderOfRegistration(t *testing.T) {
	r := newRegistry(t, registry.Options{})
	for _, id := range []string{"c", "a", "b"} {
		register(t, r, card(id, "x"))
	}
	register(t, r, card("c", "x")) // an update keeps the order
	if got := ids(r.FindByCapability("x")); got != "c a b" {
		t.Errorf("by capability: %s", got)
	}
	if got := ids(r.All()); got != "c a b" {
		t.Errorf("all: %s", got)
	}
	if r.FindByCapability("y") != nil || r.Capable("y") != nil || r.FindByTier(agent.NoTier) != nil {
		t.Error("found a capability that no card has")
	}
}

// Req 10.3
func TestRegisterFillsInDefaults(t *testing.T) {
	r := newRegistry(t, registry.Options{})
	before := time.Now().UnixMilli()
	got, err := r.RegisterSandboxed(card("a"), "box")
	if err != nil {
		t.Fatal(err)
	}
	if got.Origin != agent.Local || got.LastSeenAt < before || got.SandboxID != "box" || got.Revision != 0 {
		t.Errorf("got %+v", got)
	}
	lie := card("b")
	lie.SandboxID = "elsewhere"
	if got, err := r.RegisterSandboxed(lie, "box"); err != nil || got.SandboxID != "box" {
		t.Errorf("the agent changed its sandbox: %+v, %v", got, err)
	}
	if id, ok := r.Identity("a"); !ok || id != got.Identity() && id.SandboxID != "box" {
		t.Errorf("Identity = %+v, %v", id, ok)
	}
	if _, ok := r.Identity("nobody"); ok {
		t.Error("Identity returned one for an unknown agent")
	}
}

func TestCallersCannotChangeRegisteredCards(t *testing.T) {
	r := newRegistry(t, registry.Options{})
	c := card("a", "x")
	register(t, r, c)
	c.Capabilities[0].ID = "mine"
	for _, got := range [][]agent.Card{r.All(), r.FindByCapability("x")} {
		got[0].Capabilities[0].ID = "mine"
		got[0].Capabilities[0].InputSchema[0] = 'x'
	}
	if got, err := r.Get("a"); err != nil || !got.Equal(r.All()[0]) || !got.Has("x") || string(got.Capabilities[0].InputSchema) != "{}" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// A card is held if it is registered as it is, whatever the registry has set.
func TestHoldsComparesWithWhatIsRegistered(t *testing.T) {
	r := newRegistry(t, registry.Options{})
	if r.Holds(card("a", "x")) {
		t.Error("an unknown card is held")
	}
	for range 2 {
		register(t, r, card("a", "x"))
	}
	if !r.Holds(card("a", "x")) {
		t.Error("a registered card is not held")
	}
	named := card("a", "x")
	named.Name = "other"
	if r.Holds(named) || r.Holds(card("a", "y")) {
		t.Error("a changed card is held")
	}
}

// Cards of one kind repeat large schemas, of which a registry keeps one copy; what it returns is the caller's own.
func TestEqualSchemasAreKeptOnce(t *testing.T) {
	const cards, size = 100, 100_000
	r := newRegistry(t, registry.Options{})
	schema := func() json.RawMessage {
		return json.RawMessage(`{"description":"` + strings.Repeat("x", size) + `"}`)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range cards {
		c := card(strconv.Itoa(i), "x", "y")
		c.Capabilities[0].OutputSchema, c.Capabilities[1].InputSchema = schema(), nil
		register(t, r, c)
	}
	if grown := int64(heap() - before); grown > cards*size/4 {
		t.Errorf("%d bytes for %d equal schemas of %d bytes", grown, cards, size)
	}
	for _, id := range []string{"0", "50"} {
		c, err := r.Get(id)
		if err != nil || !bytes.Equal(c.Capabilities[0].OutputSchema, schema()) || string(c.Capabilities[0].InputSchema) != "{}" || len(c.Capabilities[1].InputSchema)+len(c.Capabilities[1].OutputSchema) > 0 {
			t.Fatalf("card %s has other schemas: %v", id, err)
		}
		clear(c.Capabilities[0].OutputSchema)
	}
}

// A source must not replace the card of another source, or a local one, by announcing
// its id.
func TestMergeRefusesTakeovers(t *testing.T) {
	r := newRegistry(t, registry.Options{})
	register(t, r, card("ours"))
	merge(t, r, card("theirs"), "dht")
	for _, id := range []string{"ours", "theirs"} {
		if _, err := r.Merge(card(id), "evil"); registry.CodeOf(err) != registry.CodeConflict {
			t.Errorf("%s was taken over: %v", id, err)
		}
		if r.Lost(id, "evil") {
			t.Errorf("%s was removed by another source", id)
		}
	}
	merge(t, r, card("theirs"), "dht")
	if !r.Lost("theirs", "dht") {
		t.Error("the source of the card cannot remove it")
	}
	merge(t, r, card("theirs"), "nats") // the id is free again
	register(t, r, card("theirs"))      // a local card replaces a remote one
	if got, err := r.Get("theirs"); err != nil || got.Origin != agent.Local {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestRemoteCardsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(t, registry.Options{RemoteTTL: time.Minute})
		w := r.Watch()
		defer w.Close()
		register(t, r, card("local"))
		merge(t, r, card("stale", "x"), "s")
		merge(t, r, card("fresh"), "s")
		time.Sleep(40 * time.Second) // on the bubble's clock
		merge(t, r, card("fresh"), "s")
		time.Sleep(35*time.Second + time.Millisecond)
		if got := ids(r.All()); got != "local fresh" {
			t.Errorf("the registry has %s", got)
		}
		if r.Capable("x") != nil {
			t.Error("the index has the expired card")
		}
		time.Sleep(time.Hour)
		if got := ids(r.All()); got != "local" {
			t.Errorf("the registry has %s", got)
		}
		var kinds []registry.ChangeKind
		for range 5 {
			c, err := w.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, c.Kind)
		}
		if want := []registry.ChangeKind{registry.Added, registry.Added, registry.Added, registry.Removed, registry.Removed}; !slices.Equal(kinds, want) {
			t.Errorf("changes %v, want %v", kinds, want)
		}
	})
}

func TestHeldCardsStayUntilLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(t, registry.Options{})
		if _, err := r.Hold(card("a"), "peer"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if r.Source("a") != "peer" || r.Source("b") != "" {
			t.Errorf("the source of a is %q", r.Source("a"))
		}
		if _, err := r.Merge(card("a"), "other"); registry.CodeOf(err) != registry.CodeConflict {
			t.Errorf("merge by another source: %v", err)
		}
		if !r.Lost("a", "peer") {
			t.Error("the source cannot remove its card")
		}
	})
}

func TestRemoteCardsMayBeKeptForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(t, registry.Options{RemoteTTL: -1})
		merge(t, r, card("a"), "s")
		time.Sleep(1000 * time.Hour)
		if r.Len() != 1 {
			t.Error("the card expired")
		}
	})
}

func TestRegistryIsBounded(t *testing.T) {
	r := newRegistry(t, registry.Options{MaxCards: 2})
	register(t, r, card("a"))
	merge(t, r, card("b"), "s")
	if _, err := r.Merge(card("c"), "s"); registry.CodeOf(err) != registry.CodeFull {
		t.Errorf("got %v", err)
	}
	register(t, r, card("a")) // an update needs no room
	if !r.Unregister("b") || r.Unregister("b") {
		t.Error("Unregister does not report whether there was a card")
	}
	register(t, r, card("c"))
}

func TestWatch(t *testing.T) {
	r := newRegistry(t, registry.Options{})
	w := r.Watch()
	register(t, r, card("a"))
	register(t, r, card("a"))
	merge(t, r, card("b"), "s")
	b, err := r.Get("b")
	if err != nil {
		t.Fatal(err)
	}
	merge(t, r, b, "s") // no change
	r.Unregister("a")
	want := []string{"added a", "updated a", "added b", "removed a"}
	for _, want := range want {
		c, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.Kind, " ", c.Card.ID); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Next without a change: %v", err)
	}
	w.Close()
	w.Close()
	if _, err := w.Next(t.Context()); registry.CodeOf(err) != registry.CodeClosed {
		t.Errorf("Next after Close: %v", err)
	}
}

func TestSlowWatcherIsReportedToResync(t *testing.T) {
	r := newRegistry(t, registry.Options{})
	w := r.Watch()
	defer w.Close()
	for i := range 1030 {
		register(t, r, card(fmt.Sprint(i)))
	}
	c, err := w.Next(t.Context())
	if err != nil || c.Kind != registry.Resync {
		t.Fatalf("got %v, %v", c, err)
	}
	for i := 1025; i < 1030; i++ {
		if c, err = w.Next(t.Context()); err != nil || c.Card.ID != fmt.Sprint(i) {
			t.Fatalf("got %v, %v, want %d", c, err, i)
		}
	}
}

func TestClose(t *testing.T) {
	r := registry.New(registry.Options{})
	w := r.Watch()
	register(t, r, card("a"))
	merge(t, r, card("b"), "s")
	for range 2 {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Register(card("c")); registry.CodeOf(err) != registry.CodeClosed {
		t.Errorf("Register: %v", err)
	}
	if err := r.EnableDiscovery("n", new(registry.MemoryNetwork).Join()); registry.CodeOf(err) != registry.CodeClosed {
		t.Errorf("EnableDiscovery: %v", err)
	}
	for range 2 { // the queued change can still be read
		if _, err := w.Next(t.Context()); err != nil {
			t.Errorf("Next: %v", err)
		}
	}
	for _, w := range []*registry.Watcher{w, r.Watch()} {
		if _, err := w.Next(t.Context()); registry.CodeOf(err) != registry.CodeClosed {
			t.Errorf("Next: %v", err)
		}
	}
	if _, err := r.Get("a"); err != nil {
		t.Error("Close removed the cards")
	}
}

func TestView(t *testing.T) {
	r := newRegistry(t, registry.Options{})
	for _, id := range []string{"a", "b", "c"} {
		register(t, r, card(id, "x"))
	}
	v := r.View(func(id agent.Identity) bool { return id.ID != "b" })
	for name, cards := range map[string][]agent.Card{"all": v.All(), "capability": v.FindByCapability("x"), "tier": v.FindByTier(agent.L3)} {
		if ids(cards) != "a c" {
			t.Errorf("%s: %s", name, ids(cards))
		}
	}
	_, hidden := v.Get("b")
	_, absent := v.Get("z")
	if registry.CodeOf(hidden) != registry.CodeAgentNotFound || strings.ReplaceAll(hidden.Error(), "b", "z") != absent.Error() {
		t.Errorf("the error for a hidden agent differs from that for an unknown one: %v, %v", hidden, absent)
	}
	if _, err := v.Get("a"); err != nil {
		t.Error(err)
	}
}

func TestDecodeRefusesInvalidRegistries(t *testing.T) {
	one, err := agent.Encode(card("a"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"nothing":         "",
		"no version":      `{"cards":[]}`,
		"another version": `{"schemaVersion":2,"cards":[]}`,
		"a bad card":      `{"schemaVersion":1,"cards":[{"id":"a"}]}`,
		"a card twice":    fmt.Sprintf(`{"schemaVersion":1,"cards":[%s,%s]}`, one, one),
	} {
		if _, err := registry.Decode([]byte(text), registry.Options{}); registry.CodeOf(err) != registry.CodeInvalidRegistry {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := registry.Decode(fmt.Appendf(nil, `{"schemaVersion":1,"cards":[%s]}`, one), registry.Options{}); err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":1,"cards":[{"id":"a","name":"A","version":"1","tier":0,"capabilities":[],"origin":"remote"}]}`))
	f.Add([]byte(`{"schemaVersion":1,"cards":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := registry.Decode(data, registry.Options{})
		if err != nil {
			return
		}
		defer r.Close()
		again, err := r.Encode()
		if err != nil {
			var e *agent.Error
			if errors.As(err, &e) && strings.Contains(e.Message, "bytes") {
				return // escapes can make a card longer than its limit
			}
			t.Fatal(err)
		}
		back, err := registry.Decode(again, registry.Options{})
		if err != nil {
			t.Fatal(err)
		}
		back.Close()
	})
}

// Two registries discover each other over the in-memory network.
// Req 1.7, Req 1.8
func TestDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network registry.MemoryNetwork
		a := newRegistry(t, registry.Options{RemoteTTL: time.Minute})
		b := newRegistry(t, registry.Options{RemoteTTL: time.Minute})
		register(t, a, card("early"))
		for _, r := range []*registry.Registry{a, b} {
			if err := r.EnableDiscovery("memory", network.Join()); err != nil {
				t.Fatal(err)
			}
			if err := r.EnableDiscovery("memory", network.Join()); registry.CodeOf(err) != registry.CodeDiscovery {
				t.Errorf("EnableDiscovery twice: %v", err)
			}
		}
		synctest.Wait()
		register(t, a, card("late", "x"))
		register(t, b, card("there"))
		synctest.Wait()
		if got := ids(b.Remote()); got != "early late" {
			t.Errorf("b found %s", got)
		}
		if got := ids(a.Remote()); got != "there" {
			t.Errorf("a found %s", got)
		}
		register(t, a, card("late", "y")) // updates are announced
		synctest.Wait()
		if got, err := b.Get("late"); err != nil || got.Revision != 1 || !got.Has("y") {
			t.Errorf("got %+v, %v", got, err)
		}
		time.Sleep(time.Hour) // repeated announcements renew the cards
		if got := ids(b.Remote()); got != "early late" {
			t.Errorf("after an hour: %s", got)
		}
		a.Unregister("late")
		synctest.Wait()
		if got := ids(b.Remote()); got != "early" {
			t.Errorf("after unregistering: %s", got)
		}
		if !a.DisableDiscovery("memory") || a.DisableDiscovery("memory") {
			t.Error("DisableDiscovery does not report whether discovery was enabled")
		}
		synctest.Wait()
		if got := ids(b.Remote()) + ids(a.Remote()); got != "" {
			t.Errorf("after disabling: %s", got)
		}
	})
}

// Req 4.4: Resolve queries the sources for agents without a card.
func TestResolveAsksSources(t *testing.T) {
	r := newRegistry(t, registry.Options{})
	if r.CanFind() {
		t.Error("CanFind is true without a source")
	}
	f := finder{cards: []agent.Card{card("far", "x")}}
	if err := r.EnableDiscovery("f", f); err != nil {
		t.Fatal(err)
	}
	if !r.CanFind() {
		t.Error("CanFind is false with a source")
	}
	for _, q := range []registry.Query{{ID: "far"}, {Capability: "x"}} {
		got, err := r.Resolve(t.Context(), q)
		if err != nil || ids(got) != "far" || got[0].Origin != agent.Remote {
			t.Errorf("%+v: %v, %v", q, got, err)
		}
		r.Unregister("far")
	}
	for _, q := range []registry.Query{{ID: "nobody"}, {Capability: "none"}} {
		if _, err := r.Resolve(t.Context(), q); registry.CodeOf(err) != registry.CodeAgentNotFound {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

type finder struct{ cards []agent.Card }

func (finder) Discover(ctx context.Context, _ registry.Sink) error { <-ctx.Done(); return ctx.Err() }

func (f finder) Find(_ context.Context, q registry.Query) ([]agent.Card, error) {
	var found []agent.Card
	for _, c := range f.cards {
		if c.ID == q.ID || q.ID == "" && c.Has(q.Capability) {
			found = append(found, c)
		}
	}
	return found, nil
}

// failing is a source whose methods all fail.
type failing struct{}

func (failing) Discover(context.Context, registry.Sink) error { return errors.New("discover") }
func (failing) Announce(context.Context, agent.Card) error    { return errors.New("announce") }
func (failing) Withdraw(context.Context, string) error        { return errors.New("withdraw") }
func (failing) Find(context.Context, registry.Query) ([]agent.Card, error) {
	return []agent.Card{{}}, errors.New("find")
}

func TestFailingSourceIsReportedAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		seen := make(map[string]int)
		r := newRegistry(t, registry.Options{OnError: func(source string, err error) {
			mu.Lock()
			defer mu.Unlock()
			seen[source+" "+strings.Fields(err.Error())[0]]++
		}})
		register(t, r, card("a"))
		if err := r.EnableDiscovery("f", failing{}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Resolve(t.Context(), registry.Query{ID: "x"}); registry.CodeOf(err) != registry.CodeAgentNotFound {
			t.Error(err)
		}
		time.Sleep(3 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if seen["f discover"] < 5 || seen["f discover"] > 12 || seen["f announce"] < 3 || seen["f find"] != 1 || seen["f the"] != 1 {
			t.Errorf("reports: %v", seen)
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	r := newRegistry(t, registry.Options{})
	w := r.Watch()
	defer w.Close()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 200 {
				id := fmt.Sprint(n % 20)
				switch i {
				case 0:
					r.Register(card(id, "x"))
				case 1:
					r.Unregister(id)
				case 2:
					r.Merge(card("r"+id, "x"), "s")
				default:
					for _, id := range r.Capable("x") {
						r.Identity(id.ID)
					}
					r.All()
				}
			}
		})
	}
	wg.Wait()
}

func full(b *testing.B, n int) *registry.Registry {
	r := newRegistry(b, registry.Options{})
	for i := range n {
		register(b, r, card(fmt.Sprint("agent-", i), fmt.Sprint("capability-", i%(n/10)), "everybody"))
	}
	return r
}

// BenchmarkLookup shows that lookups among 100 and 100,000 cards take the same time.
func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		r := full(b, n)
		id, capability := fmt.Sprint("agent-", n/2), fmt.Sprint("capability-", n/20)
		r.Capable("everybody")
		b.Run(fmt.Sprintf("identity/%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, ok := r.Identity(id); !ok {
					b.Fatal("not found")
				}
			}
		})
		b.Run(fmt.Sprintf("card/%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := r.Get(id); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("capability/%d", n), func(b *testing.B) {
			for b.Loop() {
				if len(r.FindByCapability(capability)) != 10 {
					b.Fatal("not found")
				}
			}
		})
		b.Run(fmt.Sprintf("capable/%d", n), func(b *testing.B) {
			for b.Loop() {
				if len(r.Capable("everybody")) != n {
					b.Fatal("not found")
				}
			}
		})
	}
}

func BenchmarkRegister(b *testing.B) {
	r := full(b, 100_000)
	c := card("agent-7", "capability-7", "everybody")
	b.ReportAllocs()
	for b.Loop() {
		register(b, r, c)
	}
}

// Req 11.1: a registry that is given the planetary roster holds the planetary agents to its tiers, those of this hub and
// of others, unless the operator makes an exception. A planetary name alone gives no tier.
func TestPlanetaryTiers(t *testing.T) {
	key := strings.Repeat("0a", 32)
	rosters := map[string]func(string) agent.Tier{
		"roster": agent.PlanetaryTier,
		"any":    nil,
		"own":    func(id string) agent.Tier { return map[string]agent.Tier{"sun": agent.L2}[id] },
	}
	for name, tiers := range rosters {
		r := newRegistry(t, registry.Options{Tiers: tiers})
		ways := map[string]func(agent.Card) (agent.Card, error){
			"Register": r.Register,
			"Merge":    func(c agent.Card) (agent.Card, error) { return r.Merge(c, "peers") },
			"Hold":     func(c agent.Card) (agent.Card, error) { return r.Hold(c, "peers") },
		}
		for way, store := range ways {
			for _, planet := range append(agent.PlanetaryIDs(), "nibiru") {
				for _, id := range []string{planet, planet + "@" + key} {
					for _, tier := range agent.Tiers() {
						want := agent.NoTier
						switch {
						case name == "roster":
							want = agent.PlanetaryTier(planet)
						case name == "own" && id == "sun":
							want = agent.L2
						}
						_, err := store(agent.Card{ID: id, Name: planet, Version: "1", Tier: tier, Capabilities: []agent.Capability{}})
						if allowed := want == agent.NoTier || tier == want; (err == nil) != allowed {
							t.Errorf("%s: %s of %s as %v: %v", name, way, id, tier, err)
						}
						if err != nil && (registry.CodeOf(err) != registry.CodeWrongTier || !strings.Contains(err.Error(), want.String())) {
							t.Errorf("%s as %v: %v", id, tier, err)
						}
					}
					r.Unregister(id)
				}
			}
		}
		if r.Len() != 0 {
			t.Errorf("%s: %d cards are left", name, r.Len())
		}
	}
}

type unready struct{ idleSource }

func (unready) Check() error {
	return &registry.Error{Code: registry.CodeNotConfigured, Message: "no network is set"}
}

type idleSource struct{}

func (idleSource) Discover(ctx context.Context, _ registry.Sink) error { <-ctx.Done(); return nil }

// Req 1.7: discovery that can do nothing is not enabled.
func TestDiscoveryNeedsASourceThatIsSetUp(t *testing.T) {
	r := newRegistry(t, registry.Options{})
	for name, err := range map[string]error{
		"no source":  r.EnableDiscovery("none", nil),
		"no name":    r.EnableDiscovery("", idleSource{}),
		"not set up": r.EnableDiscovery("dht", unready{}),
	} {
		if registry.CodeOf(err) != registry.CodeNotConfigured || err.Error() == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r.DisableDiscovery("dht") || r.EnableDiscovery("dht", idleSource{}) != nil {
		t.Error("the source that is not set up is enabled, or has taken the name")
	}
}
