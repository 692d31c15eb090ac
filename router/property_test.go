package router_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/envelope/envelopetest"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
)

// world is a router with agents that record the envelopes they receive.
type world struct {
	r     *router.Router
	cards []agent.Card
	mu    sync.Mutex
	got   map[string][]string // envelope ids by agent
}

func newWorld(t *rapid.T, o router.Options, cards []agent.Card) *world {
	w := &world{r: newRouter(t, o), cards: cards, got: make(map[string][]string)}
	for _, c := range cards {
		register(t, w.r, c)
		w.r.OnReceive(c.ID, func(_ context.Context, e *envelope.Envelope) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.got[c.ID] = append(w.got[c.ID], e.ID)
		})
	}
	return w
}

// received returns the agents that received an envelope, once all goroutines are idle.
func (w *world) received(id string) []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var who []string
	for agentID, ids := range w.got {
		for _, got := range ids {
			if got == id {
				who = append(who, agentID)
			}
		}
	}
	slices.Sort(who)
	return who
}

func (w *world) events(t telemetry.EventType) []telemetry.Event {
	return slices.DeleteFunc(w.r.Telemetry().Recent(0), func(e telemetry.Event) bool { return e.Type != t })
}

// openRules returns rules under which every agent may address every other.
func openRules() *router.TierConfig {
	c := &router.TierConfig{}
	for _, tier := range agent.Tiers() {
		c.Rules = append(c.Rules, router.TierRule{SourceTier: tier, AllowedTargetTiers: agent.Tiers()})
	}
	return c
}

func noSandbox() *router.SandboxConfig { return &router.SandboxConfig{} }

// draw returns a random envelope between two agents.
func draw(t *rapid.T, from agent.Card, to string) *envelope.Envelope {
	e := envelopetest.Envelope().Draw(t, "envelope")
	e.ID = rapid.StringMatching(`[a-z]{20}`).Draw(t, "id")
	e.Sender, e.Recipient = from.ID, to
	e.Metadata = nil
	if rapid.Bool().Draw(t, "metadata") {
		e.Metadata = &envelope.Metadata{Tier: from.Tier, SandboxID: from.SandboxID}
	}
	return e
}

// check tests a property in a synctest bubble, where synctest.Wait waits for all
// receivers.
func check(t *testing.T, prop func(t *rapid.T)) {
	rapid.Check(t, func(t *rapid.T) { rapid.SyncTest(t, prop) })
}

// Feature: a2a-mcp-protocols, Property 13: Direct message routing.
// Req 4.1
func TestProperty13DirectRouting(t *testing.T) {
	check(t, func(t *rapid.T) {
		w := newWorld(t, router.Options{Tiers: openRules(), Sandbox: noSandbox()}, envelopetest.Cards(2, 8).Draw(t, "cards"))
		from, to := rapid.SampledFrom(w.cards).Draw(t, "from"), rapid.SampledFrom(w.cards).Draw(t, "to")
		e := draw(t, from, to.ID)
		res, err := w.r.Send(context.Background(), e)
		if err != nil || !res.Delivered || res.TargetAgentID != to.ID || res.Path != telemetry.PathLocal || res.Error != "" || res.LatencyMs < 0 {
			t.Fatalf("%+v, %v", res, err)
		}
		if got := w.received(e.ID); !slices.Equal(got, []string{to.ID}) {
			t.Fatalf("%v received the envelope for %s", got, to.ID)
		}
		unknown := draw(t, from, "nobody-"+to.ID)
		if res, err := w.r.Send(context.Background(), unknown); router.CodeOf(err) != router.CodeAgentNotFound || res.Delivered || !strings.Contains(res.Error, unknown.Recipient) {
			t.Fatalf("to an unknown agent: %+v, %v", res, err)
		}
	})
}

// Feature: a2a-mcp-protocols, Property 14: Broadcast delivery. A sender does not
// receive its own broadcast; with an L0 sender nobody else is left out.
// Req 4.2, Req 11.3
func TestProperty14Broadcast(t *testing.T) {
	check(t, func(t *rapid.T) {
		cards := envelopetest.Cards(1, 10).Draw(t, "cards")
		i := rapid.IntRange(0, len(cards)-1).Draw(t, "from")
		cards[i].Tier, cards[i].SandboxID = agent.L0, ""
		w := newWorld(t, router.Options{}, cards)
		e := draw(t, cards[i], envelope.Broadcast)
		res, err := w.r.Send(context.Background(), e)
		var want []string
		for _, c := range cards {
			if c.ID != cards[i].ID {
				want = append(want, c.ID)
			}
		}
		slices.Sort(want)
		if err != nil || res.Path != telemetry.PathBroadcast || res.TargetAgentID != "*" || res.Recipients != len(want) ||
			res.Delivered != (len(want) > 0) || len(res.Skipped) != 0 {
			t.Fatalf("%+v, %v", res, err)
		}
		if got := w.received(e.ID); !slices.Equal(got, want) {
			t.Fatalf("%v received it, want %v", got, want)
		}
	})
}

// Feature: a2a-mcp-protocols, Property 15: Capability-based routing.
// Req 4.3
func TestProperty15CapabilityRouting(t *testing.T) {
	check(t, func(t *rapid.T) {
		cards := envelopetest.Cards(2, 8).Draw(t, "cards")
		capabilities := map[string][]string{} // agents by capability, in order of registration
		for i := range cards {
			cards[i].Capabilities = []agent.Capability{}
			for _, x := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a.x", "a.y", "a.z"}), 0, 3, rapid.ID).Draw(t, "capabilities") {
				cards[i].Capabilities = append(cards[i].Capabilities, agent.Capability{ID: x})
				capabilities[x] = append(capabilities[x], cards[i].ID)
			}
		}
		w := newWorld(t, router.Options{Tiers: openRules(), Sandbox: noSandbox()}, cards)
		from := rapid.SampledFrom(cards).Draw(t, "from")
		wanted := rapid.SampledFrom([]string{"a.x", "a.y", "a.z", "a.none"}).Draw(t, "wanted")
		e := draw(t, from, wanted)
		e.Metadata = &envelope.Metadata{Tier: from.Tier, SandboxID: from.SandboxID, RoutingHint: envelope.ByCapability}
		res, err := w.r.Send(context.Background(), e)
		able := capabilities[wanted]
		if len(able) == 0 {
			if router.CodeOf(err) != router.CodeCapabilityNotFound || !strings.Contains(res.Error, wanted) {
				t.Fatalf("a capability that no agent has: %+v, %v", res, err)
			}
			return
		}
		// All agents are idle, so the first one that is not the sender receives it.
		want := able[0]
		if want == from.ID && len(able) > 1 {
			want = able[1]
		}
		if err != nil || res.TargetAgentID != want {
			t.Fatalf("%+v, %v, want %s of %v", res, err, want, able)
		}
		if got := w.received(e.ID); !slices.Equal(got, []string{want}) {
			t.Fatalf("%v received it, want %s", got, want)
		}
	})
}

// allowed is the tier table of the specification: the levels that each level may
// address.
var allowed = map[int][]int{0: {0, 1, 2, 3}, 1: {0, 1}, 2: {0, 1, 2}, 3: {0, 1, 2, 3}}

// Feature: a2a-mcp-protocols, Property 16: Tier-based routing enforcement. Each case
// tests all sixteen pairs of tiers, with a message of a random type and with a
// task-proposal.
// Req 4.5, Req 11.2
func TestProperty16TierEnforcement(t *testing.T) {
	check(t, func(t *rapid.T) {
		cards := envelopetest.Cards(8, 8).Draw(t, "cards") // a sender and a receiver of each tier
		for i := range cards {
			cards[i].Tier = agent.TierOf(i % 4)
		}
		w := newWorld(t, router.Options{Sandbox: noSandbox()}, cards)
		refused := 0
		for _, from := range cards[:4] {
			for _, to := range cards[4:] {
				for _, typ := range []envelope.Type{envelopetest.Type().Draw(t, "type"), envelope.TaskProposal} {
					refused += checkTiers(t, w, from, to, typ, refused)
				}
			}
		}
	})
}

// checkTiers sends an envelope from one agent to another and returns 1 if it was
// refused. before is the number of refusals so far.
func checkTiers(t *rapid.T, w *world, from, to agent.Card, typ envelope.Type, before int) int {
	e, err := envelope.New(from.ID, to.ID, typ, nil)
	if err != nil {
		t.Fatal(err)
	}
	justification := rapid.SampledFrom([]string{"none", "", "  ", "the schema is on fire"}).Draw(t, "justification")
	if justification != "none" {
		e.Payload = fmt.Appendf(nil, `{"taskDescription":"x","%s":%q}`, router.JustificationField, justification)
	}
	justified := justification != "none" && strings.TrimSpace(justification) != ""
	var want router.Code
	switch {
	case !slices.Contains(allowed[from.Tier.Level()], to.Tier.Level()):
		want = router.CodeTierViolation
	case typ == envelope.TaskProposal && from.Tier >= agent.L2 && to.Tier <= agent.L1 && !justified:
		want = router.CodeEscalationRequired
	}
	res, err := w.r.Send(context.Background(), e)
	if router.CodeOf(err) != want || res.Delivered != (want == "") {
		t.Fatalf("%s from %v to %v, justification %q: %+v, %v, want %q", typ, from.Tier, to.Tier, justification, res, err, want)
	}
	if got := w.received(e.ID); (len(got) == 1) != (want == "") {
		t.Fatalf("%v received it: %v", got, err)
	}
	security := w.events(telemetry.Security)
	if want == "" {
		if len(security) != before {
			t.Fatalf("%d security events, want %d", len(security), before)
		}
		return 0
	}
	if len(security) != before+1 || security[before].Code != string(want) {
		t.Fatalf("security events %+v, want one more of %q", security, want)
	}
	return 1
}

// Feature: a2a-mcp-protocols, Property 17: Routing event emission.
// Req 4.6, Req 12.3
func TestProperty17RoutingEvents(t *testing.T) {
	check(t, func(t *rapid.T) {
		forwarded := make(chan string, 100)
		w := newWorld(t, router.Options{Forwarder: forwarderFunc(func(_ context.Context, to string, _ *envelope.Envelope) error {
			forwarded <- to
			return nil
		})}, envelopetest.Cards(2, 5).Draw(t, "cards"))
		if _, err := w.r.Registry().Merge(card("far", agent.L0), "elsewhere"); err != nil {
			t.Fatal(err)
		}
		n := 0
		for range rapid.IntRange(1, 10).Draw(t, "n") {
			from := rapid.SampledFrom(w.cards).Draw(t, "from")
			to := rapid.SampledFrom(append([]string{"*", "nobody", "far"}, w.cards[0].ID, w.cards[1].ID)).Draw(t, "to")
			e := draw(t, from, to)
			res, err := w.r.Send(context.Background(), e)
			n++
			all := w.events(telemetry.RoutingDecision)
			if len(all) != n {
				t.Fatalf("%d routing events for %d envelopes", len(all), n)
			}
			path := telemetry.PathLocal
			switch {
			case to == "*":
				path = telemetry.PathBroadcast
			case to == "far" && err == nil:
				path = telemetry.PathRemote
			}
			ev := all[n-1]
			if ev.EnvelopeID != e.ID || ev.Sender != from.ID || ev.Target != to || ev.RoutingPath != path || res.Path != path ||
				ev.MessageType != e.Type || ev.Duration != res.LatencyMs || ev.Duration < 0 || ev.Timestamp == 0 ||
				(ev.Success == telemetry.Success) != (err == nil) || ev.Code != string(router.CodeOf(err)) {
				t.Fatalf("event %+v for %+v, %v", ev, res, err)
			}
		}
		synctest.Wait()
	})
}

type forwarderFunc func(context.Context, string, *envelope.Envelope) error

func (f forwarderFunc) Forward(ctx context.Context, to string, e *envelope.Envelope) error {
	return f(ctx, to, e)
}

// boxes are sandboxes, "" for none.
var boxes = []string{"", "box-a", "box-b", "box-c", "käfig"}

// sandboxes draws cards of all tiers in several sandboxes, some of which share capabilities, and a configuration with
// grants for all sandboxes and for some of them.
func sandboxes(t *rapid.T) ([]agent.Card, router.SandboxConfig) {
	cards := envelopetest.Cards(2, 12).Draw(t, "cards")
	shared := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"review", "test", "build", "deploy"}), 0, 4, rapid.ID)
	first := rapid.IntRange(0, 3).Draw(t, "first tier")
	for i := range cards {
		cards[i].SandboxID = rapid.SampledFrom(boxes).Draw(t, "sandbox")
		cards[i].Tier = agent.Tiers()[(i+first)%4]
		for _, id := range shared.Draw(t, "shared capabilities") {
			if !cards[i].Has(id) {
				cards[i].Capabilities = append(cards[i].Capabilities, agent.Capability{ID: id})
			}
		}
	}
	ids := rapid.Custom(func(t *rapid.T) []string {
		var list []string
		for _, c := range cards {
			if rapid.IntRange(0, 3).Draw(t, "on the list") == 0 {
				list = append(list, c.ID)
			}
		}
		return list
	})
	allowed := make(map[string][]string)
	for _, box := range boxes[1:] {
		if rapid.Bool().Draw(t, "granted") {
			allowed[box] = ids.Draw(t, box)
		}
	}
	return cards, router.SandboxConfig{
		Enforced:              rapid.IntRange(0, 4).Draw(t, "enforced") > 0,
		CrossSandboxAllowList: ids.Draw(t, "all"),
		Allowed:               allowed,
	}
}

// mayReach is the sandbox rule of the specification.
func mayReach(c router.SandboxConfig, from, to agent.Card) bool {
	if !c.Enforced || from.SandboxID == "" {
		return true
	}
	onList := slices.Contains(c.CrossSandboxAllowList, to.ID) || slices.Contains(c.Allowed[from.SandboxID], to.ID)
	return to.SandboxID == from.SandboxID || onList
}

// Feature: a2a-mcp-protocols, Property 29: Sandbox routing enforcement.
// Req 10.1, Req 10.2
func TestProperty29SandboxRouting(t *testing.T) {
	check(t, func(t *rapid.T) {
		cards, config := sandboxes(t)
		w := newWorld(t, router.Options{Tiers: openRules(), Sandbox: &config}, cards)
		from, to := rapid.SampledFrom(cards).Draw(t, "from"), rapid.SampledFrom(cards).Draw(t, "to")
		e := draw(t, from, to.ID)
		res, err := w.r.Send(context.Background(), e)
		want := mayReach(config, from, to)
		if (err == nil) != want || res.Delivered != want || !want && router.CodeOf(err) != router.CodeSandboxViolation {
			t.Fatalf("from %q to %q under %+v: %+v, %v", from.SandboxID, to.SandboxID, config, res, err)
		}
		if got := w.received(e.ID); (len(got) == 1) != want {
			t.Fatalf("%v received it", got)
		}
		security := w.events(telemetry.Security)
		if (len(security) == 1) == want {
			t.Fatalf("%d security events", len(security))
		}
		if !want && (security[0].EnvelopeID != e.ID || security[0].Sender != from.ID || security[0].Target != to.ID || security[0].Code != "SANDBOX_VIOLATION") {
			t.Fatalf("security event %+v", security[0])
		}
		// The same rules hold for each recipient of a broadcast.
		b := draw(t, from, envelope.Broadcast)
		res, err = w.r.Send(context.Background(), b)
		reached := w.received(b.ID)
		for _, c := range cards {
			if in := slices.Contains(reached, c.ID); in != (mayReach(config, from, c) && c.ID != from.ID) {
				t.Fatalf("broadcast from %q reached %s in %q: %v (%+v, %v)", from.SandboxID, c.ID, c.SandboxID, in, res, err)
			}
		}
		outside := 0
		for _, c := range cards {
			if c.ID != from.ID && !mayReach(config, from, c) {
				outside++
			}
		}
		if got, want := len(w.events(telemetry.Security)), len(security)+outside; got != want {
			t.Fatalf("%d security events, want %d", got, want)
		}
		if len(res.Skipped) != 0 { // the sender must not know of them (Req 10.4)
			t.Fatalf("the sender learns of %v", res.Skipped)
		}
	})
}

// Feature: a2a-mcp-protocols, Property 30: Sandbox discovery filtering.
// Req 10.3, Req 10.4
func TestProperty30SandboxDiscovery(t *testing.T) {
	check(t, func(t *rapid.T) {
		cards, config := sandboxes(t)
		w := newWorld(t, router.Options{Sandbox: &config}, cards)
		for range 3 {
			viewer := rapid.SampledFrom(cards).Draw(t, "viewer")
			visible := func(c agent.Card) bool { return c.ID == viewer.ID || mayReach(config, viewer, c) }
			verifyView(t, w, cards, viewer, visible)
			verifySends(t, w, cards, viewer, visible)
			// An agent that registers in another sandbox is tagged with it, and is visible there and not here.
			moved := &cards[rapid.IntRange(0, len(cards)-1).Draw(t, "moved")]
			moved.SandboxID = rapid.SampledFrom(boxes).Draw(t, "to")
			untagged := *moved
			untagged.SandboxID = ""
			tagged, err := w.r.Registry().RegisterSandboxed(untagged, moved.SandboxID)
			if err != nil || tagged.SandboxID != moved.SandboxID {
				t.Fatalf("registered in %q: %+v, %v", moved.SandboxID, tagged, err)
			}
		}
	})
}

// verifyView checks that an agent's view shows what is visible to it, and nothing else, by every query.
func verifyView(t *rapid.T, w *world, cards []agent.Card, viewer agent.Card, visible func(agent.Card) bool) {
	view, err := w.r.Discover(viewer.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string][]string)
	for _, c := range cards {
		if visible(c) {
			want["all"] = append(want["all"], c.ID)
			want[c.Tier.String()] = append(want[c.Tier.String()], c.ID)
		}
		if got, err := view.Get(c.ID); (err == nil) != visible(c) || err == nil && got.SandboxID != c.SandboxID {
			t.Fatalf("Get(%s) in %q: %+v, %v", c.ID, c.SandboxID, got, err)
		}
		for _, x := range c.Capabilities {
			found := view.FindByCapability(x.ID)
			if slices.ContainsFunc(found, func(f agent.Card) bool { return f.ID == c.ID }) != visible(c) ||
				slices.ContainsFunc(found, func(f agent.Card) bool { return !visible(f) }) {
				t.Fatalf("FindByCapability(%s) returned %v", x.ID, found)
			}
		}
	}
	shown := map[string][]agent.Card{"all": view.All()}
	for _, tier := range agent.Tiers() {
		shown[tier.String()] = view.FindByTier(tier)
	}
	for name, got := range shown {
		var ids []string
		for _, c := range got {
			ids = append(ids, c.ID)
		}
		if !slices.Equal(ids, want[name]) {
			t.Fatalf("%s: the view of %s in %q shows %v, want %v", name, viewer.ID, viewer.SandboxID, ids, want[name])
		}
	}
}

// verifySends checks that sending by capability or to all shows no agent that the view does not (Req 10.4).
func verifySends(t *rapid.T, w *world, cards []agent.Card, viewer agent.Card, visible func(agent.Card) bool) {
	for _, id := range []string{"review", "test", "build", "deploy"} {
		e := draw(t, viewer, id)
		e.Metadata = &envelope.Metadata{Tier: viewer.Tier, SandboxID: viewer.SandboxID, RoutingHint: envelope.ByCapability}
		res, err := w.r.Send(context.Background(), e)
		able := slices.ContainsFunc(cards, func(c agent.Card) bool { return visible(c) && c.Has(id) })
		if (router.CodeOf(err) == router.CodeCapabilityNotFound) == able {
			t.Fatalf("%s: %v, though a visible agent has it: %v", id, err, able)
		}
		if err == nil && !slices.ContainsFunc(cards, func(c agent.Card) bool { return visible(c) && c.ID == res.TargetAgentID }) {
			t.Fatalf("%s reached %s", id, res.TargetAgentID)
		}
	}
	res, _ := w.r.Send(context.Background(), draw(t, viewer, envelope.Broadcast))
	for _, s := range res.Skipped {
		if !slices.ContainsFunc(cards, func(c agent.Card) bool { return visible(c) && c.ID == s.AgentID }) {
			t.Fatalf("a broadcast shows %s: %+v", s.AgentID, s)
		}
	}
}

// auditLog records what the router appends to its audit log.
type auditLog struct {
	mu     sync.Mutex
	events []telemetry.Event
	with   []*envelope.Envelope
	err    error
}

func (a *auditLog) Append(ev telemetry.Event, e *envelope.Envelope) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, ev)
	a.with = append(a.with, e)
	return a.err
}

// Feature: a2a-mcp-protocols, Property 31: Cross-tier audit logging.
// Req 11.4
func TestProperty31CrossTierAudit(t *testing.T) {
	check(t, func(t *rapid.T) {
		audit := new(auditLog)
		w := newWorld(t, router.Options{Tiers: openRules(), Sandbox: noSandbox(), Audit: audit}, envelopetest.Cards(2, 6).Draw(t, "cards"))
		from := rapid.SampledFrom(w.cards).Draw(t, "from")
		to := rapid.SampledFrom(append(slices.Clone(w.cards), agent.Card{ID: "*"})).Draw(t, "to")
		e := draw(t, from, to.ID)
		if _, err := w.r.Send(context.Background(), e); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := map[string]agent.Tier{}
		for _, c := range w.cards {
			if c.Tier != from.Tier && (to.ID == c.ID || to.ID == "*" && c.ID != from.ID) {
				want[c.ID] = c.Tier
			}
		}
		for name, events := range map[string][]telemetry.Event{"telemetry": w.r.Telemetry().Recent(0), "audit": audit.events} {
			got := map[string]agent.Tier{}
			for _, ev := range events {
				if ev.Type != telemetry.CrossTier {
					continue
				}
				if ev.SourceTier != from.Tier || ev.MessageType != e.Type || ev.EnvelopeID != e.ID || ev.Sender != from.ID {
					t.Fatalf("%s: %+v", name, ev)
				}
				got[ev.Target] = ev.TargetTier
			}
			if !maps.Equal(got, want) {
				t.Fatalf("%s has %v, want %v", name, got, want)
			}
		}
		if audit.events[0].Type != telemetry.RoutingDecision && to.ID != "*" || !slices.Contains(audit.with, e) {
			t.Fatalf("the audit record lacks the envelope: %+v", audit.events)
		}
	})
}

// The router's part of Property 32: the metrics agree with the deliveries.
// Req 12.4
func TestMetricsAgreeWithDeliveries(t *testing.T) {
	check(t, func(t *rapid.T) {
		w := newWorld(t, router.Options{}, envelopetest.Cards(1, 6).Draw(t, "cards"))
		sent, failed, received := map[envelope.Type]uint64{}, uint64(0), 0
		for range rapid.IntRange(0, 20).Draw(t, "n") {
			from := rapid.SampledFrom(w.cards).Draw(t, "from")
			to := rapid.SampledFrom([]string{"*", "nobody", w.cards[0].ID}).Draw(t, "to")
			e := draw(t, from, to)
			if _, err := w.r.Send(context.Background(), e); err != nil {
				failed++
				continue
			}
			sent[e.Type]++
			received += len(w.received(e.ID))
		}
		m := w.r.Telemetry().Metrics()
		total := uint64(0)
		for _, typ := range envelope.Types() {
			total += sent[typ]
			if m.SentByType[typ] != sent[typ] {
				t.Fatalf("%d of %s, want %d", m.SentByType[typ], typ, sent[typ])
			}
		}
		if m.TotalMessagesSent != total || m.TotalMessagesReceived != uint64(received) || m.ErrorCount != failed {
			t.Fatalf("%+v, want %d sent, %d received, %d failed", m, total, received, failed)
		}
	})
}
