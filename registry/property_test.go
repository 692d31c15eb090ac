package registry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/envelope/envelopetest"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newRegistry returns a registry that is closed when the test or the rapid case ends.
func newRegistry(t interface {
	Cleanup(func())
	Errorf(string, ...any)
}, o registry.Options) *registry.Registry {
	r := registry.New(o)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

func contains(cards []agent.Card, want agent.Card) bool {
	return slices.ContainsFunc(cards, want.Equal)
}

// Feature: a2a-mcp-protocols, Property 1: Agent Card registration and retrieval.
// Req 1.1, Req 1.2, Req 1.3
func TestProperty01RegistrationAndRetrieval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRegistry(t, registry.Options{})
		cards := envelopetest.Cards(1, 12).Draw(t, "cards")
		for _, card := range cards {
			if _, err := r.Register(card); err != nil {
				t.Fatal(err)
			}
		}
		if r.Len() != len(cards) || len(r.All()) != len(cards) || len(r.Local())+len(r.Remote()) != len(cards) {
			t.Fatalf("%d cards, want %d", r.Len(), len(cards))
		}
		for _, card := range cards {
			got, err := r.Get(card.ID)
			if err != nil || !got.Equal(card) {
				t.Fatalf("got %+v, %v\nwant %+v", got, err, card)
			}
			for _, c := range card.Capabilities {
				found := r.FindByCapability(c.ID)
				if !contains(found, card) {
					t.Fatalf("%s is not found by capability %s", card.ID, c.ID)
				}
				if i := slices.IndexFunc(found, func(f agent.Card) bool { return !f.Has(c.ID) }); i >= 0 {
					t.Fatalf("%s is found by capability %s, which it does not declare", found[i].ID, c.ID)
				}
			}
			if !contains(r.FindByTier(card.Tier), card) {
				t.Fatalf("%s is not found by its tier", card.ID)
			}
		}
		unknown := envelopetest.ID().Filter(func(id string) bool {
			return !slices.ContainsFunc(cards, func(c agent.Card) bool { return c.ID == id })
		}).Draw(t, "unknown")
		if _, err := r.Get(unknown); registry.CodeOf(err) != registry.CodeAgentNotFound {
			t.Fatalf("Get of an unknown agent: %v", err)
		}
	})
}

// Feature: a2a-mcp-protocols, Property 2: Agent Card validation rejects incomplete cards.
// Req 1.4
func TestProperty02IncompleteCardsAreRejected(t *testing.T) {
	remove := map[string]func(*agent.Card){
		"id":           func(c *agent.Card) { c.ID = "" },
		"name":         func(c *agent.Card) { c.Name = "" },
		"version":      func(c *agent.Card) { c.Version = "" },
		"tier":         func(c *agent.Card) { c.Tier = agent.NoTier },
		"capabilities": func(c *agent.Card) { c.Capabilities = nil },
	}
	required := []string{"id", "name", "version", "tier", "capabilities"}
	rapid.Check(t, func(t *rapid.T) {
		r := newRegistry(t, registry.Options{})
		card := envelopetest.Card().Draw(t, "card")
		missing := rapid.SliceOfNDistinct(rapid.SampledFrom(required), 1, len(required), rapid.ID).Draw(t, "missing")
		for _, field := range missing {
			remove[field](&card)
		}
		for name, err := range map[string]error{
			"Register": second(r.Register(card)),
			"Merge":    second(r.Merge(card, "peers")),
		} {
			invalid, ok := errors.AsType[agent.Problems](err)
			if registry.CodeOf(err) != registry.CodeInvalidCard || agent.CodeOf(err) != agent.CodeInvalidCard || !ok {
				t.Fatalf("%s without %v: %v", name, missing, err)
			}
			slices.Sort(missing)
			if got := invalid.Missing(); !slices.Equal(slices.Sorted(slices.Values(got)), missing) {
				t.Fatalf("%s names %v, want %v", name, got, missing)
			}
			for _, field := range missing {
				if !strings.Contains(err.Error(), field) {
					t.Fatalf("%q does not name %s", err, field)
				}
			}
		}
		if r.Len() != 0 {
			t.Fatal("the refused card was stored")
		}
	})
}

func second(_ agent.Card, err error) error { return err }

// Feature: a2a-mcp-protocols, Property 3: Duplicate Agent Card updates revision.
// Req 1.5
func TestProperty03DuplicateUpdatesRevision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRegistry(t, registry.Options{})
		first := envelopetest.Card().Draw(t, "first")
		second := envelopetest.Card().Draw(t, "second")
		second.ID = first.ID
		if _, err := r.Register(first); err != nil {
			t.Fatal(err)
		}
		stored, err := r.Register(second)
		if err != nil {
			t.Fatal(err)
		}
		want := second
		want.Revision = first.Revision + 1
		got, err := r.Get(first.ID)
		if err != nil || !got.Equal(want) || !stored.Equal(want) {
			t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
		}
		if r.Len() != 1 || len(r.All()) != 1 {
			t.Fatalf("%d cards", r.Len())
		}
		for _, c := range first.Capabilities {
			if found := r.FindByCapability(c.ID); len(found) > 0 && !second.Has(c.ID) {
				t.Fatalf("%s is still found by its former capability %s", first.ID, c.ID)
			}
		}
		if first.Tier != second.Tier && len(r.FindByTier(first.Tier)) > 0 {
			t.Fatal("the card is still found by its former tier")
		}
	})
}

// Feature: a2a-mcp-protocols, Property 5: Remote Agent Card merge preserves origin.
// Req 1.8
func TestProperty05RemoteMergePreservesOrigin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRegistry(t, registry.Options{})
		card := envelopetest.Card().Draw(t, "card")
		if _, err := r.Merge(card, "peers"); err != nil {
			t.Fatal(err)
		}
		want := card
		want.Origin = agent.Remote
		got, err := r.Get(card.ID)
		if err != nil || !got.Equal(want) {
			t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
		}
		if !contains(r.Remote(), want) || len(r.Local()) != 0 {
			t.Fatal("the card is not listed as remote, or listed as local")
		}
	})
}

// Req 1.6
func TestRegistryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRegistry(t, registry.Options{})
		for _, card := range envelopetest.Cards(0, 8).Draw(t, "cards") {
			if _, err := r.Register(card); err != nil {
				t.Fatal(err)
			}
		}
		data, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := registry.Decode(data, registry.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer back.Close()
		if !slices.EqualFunc(r.All(), back.All(), agent.Card.Equal) {
			t.Fatalf("read back %+v\nwrote     %+v", back.All(), r.All())
		}
	})
}

// Feature: a2a-mcp-protocols, Property 4: Agent Card serialization round trip, of large cards too.
// Req 1.6: a card that can be registered can be merged, updated, encoded, announced and read back, and any other card is
// refused before it makes the registry unencodable.
func TestProperty04OneSizeEverywhere(t *testing.T) {
	pair := identity.Generate()
	rapid.Check(t, func(t *rapid.T) {
		r := newRegistry(t, registry.Options{})
		author := signedcard.NewAuthor(pair, time.Minute)
		cards := rapid.SliceOfNDistinct(rapid.OneOf(envelopetest.LargeCard(), envelopetest.Card()), 1, 3, func(c agent.Card) string { return c.ID }).Draw(t, "cards")
		stored := 0
		for _, card := range cards {
			if rapid.Bool().Draw(t, "hostile") {
				card.Capabilities = append(slices.Clone(card.Capabilities), agent.Capability{ID: "hostile", InputSchema: hostileSchema().Draw(t, "schema")})
				card.Revision = rapid.OneOf(rapid.Uint64(), rapid.SampledFrom([]uint64{agent.MaxRevision, agent.MaxRevision + 1, 1<<64 - 1})).Draw(t, "revision")
			}
			now, err := r.Register(card)
			if err != nil {
				if _, encodes := agent.Encode(card); encodes == nil || registry.CodeOf(err) != registry.CodeInvalidCard {
					t.Fatalf("%v, yet it can be encoded", err)
				}
				if _, merges := r.Merge(card, "peers"); merges == nil {
					t.Fatal("a card that cannot be registered can be merged")
				}
				continue
			}
			stored++
			if _, err := author.State(now); err != nil {
				t.Fatalf("a new card cannot be announced: %v", err)
			}
			if now, err = r.Register(card); err != nil { // with another revision
				t.Fatal(err)
			}
			statement, err := author.State(now)
			if err != nil {
				t.Fatalf("a registered card cannot be announced: %v", err)
			}
			read, err := signedcard.Open(statement, nil)
			now.ID, now.Origin, now.LastSeenAt = signedcard.ID(now.ID, pair.Public()), agent.Remote, 0
			if err != nil || !read.Card.Equal(now) {
				t.Fatalf("announced %+v\nread %+v, %v", now, read.Card, err)
			}
			if _, err := agent.Encode(read.Card); err != nil {
				t.Fatalf("a discovered card cannot be encoded: %v", err)
			}
		}
		data, err := r.Encode()
		if err != nil || r.Len() != stored {
			t.Fatalf("%d of %d cards: %v", r.Len(), stored, err)
		}
		back, err := registry.Decode(data, registry.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer back.Close()
		if !slices.EqualFunc(r.All(), back.All(), agent.Card.Equal) {
			t.Fatal("the registry differs after a round trip")
		}
	})
}

// Req 1.6: the bound is exact. A card of its size keeps within it with whatever a registry sets, also next to a large one.
func TestTheLargestCardIsEncoded(t *testing.T) {
	card := agent.Card{ID: "venus", Name: "VENUS", Version: "1", Tier: agent.L2, Capabilities: []agent.Capability{}}
	for i := range 16 {
		card.Capabilities = append(card.Capabilities, agent.Capability{ID: fmt.Sprint(i), Description: strings.Repeat("x", agent.MaxTextLength-i)})
	}
	fits := func(n int) bool {
		card.Capabilities[15].Description = strings.Repeat("x", n)
		return card.Validate() == nil
	}
	n := sort.Search(agent.MaxTextLength, func(n int) bool { return !fits(n) }) - 1
	if !fits(n) || fits(n+1) {
		t.Fatal("there is no largest card")
	}
	r := newRegistry(t, registry.Options{})
	if _, err := r.Register(card); registry.CodeOf(err) != registry.CodeInvalidCard || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("a card that is too large: %v", err)
	}
	fits(n)
	card.Revision = agent.MaxRevision - 1
	card.LastSeenAt = math.MaxInt64
	for range 2 {
		if _, err := r.Register(card); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := r.Encode(); err != nil {
		t.Error(err)
	} else if back, err := registry.Decode(data, registry.Options{}); err != nil {
		t.Error(err)
	} else if err := back.Close(); err != nil {
		t.Error(err)
	}
	card.Capabilities = []agent.Capability{{ID: "deep", InputSchema: json.RawMessage(strings.Repeat("[", 9998) + strings.Repeat("]", 9998))}}
	if _, err := r.Register(card); registry.CodeOf(err) != registry.CodeInvalidCard {
		t.Errorf("a schema that nests too deeply to be read back: %v", err)
	}
}

// hostileSchema generates schemas some of which have no canonical form, are not JSON or cannot be read back.
func hostileSchema() *rapid.Generator[json.RawMessage] {
	return rapid.OneOf(envelopetest.JSON(), rapid.SampledFrom([]json.RawMessage{
		json.RawMessage(`{"a":{"b":1,"\u0062":2}}`), json.RawMessage(`[{"":1,"":1}]`), json.RawMessage(`{"x":"\ud800"}`), json.RawMessage(`{"\udc00":1}`),
		json.RawMessage(`{"a":1}{"b":1}`), json.RawMessage("{\"a\":\"\xff\"}"), json.RawMessage(" "), json.RawMessage("\ufeff{}"), json.RawMessage("-0"),
		json.RawMessage("[01]"), json.RawMessage("1e999999"), json.RawMessage("{\"a\u0000\":1}"), json.RawMessage(`"\u0000"`), json.RawMessage(`{"a":NaN}`),
	}))
}

// Req 1.4, 1.6: a schema that readers may understand differently is refused when its card is registered, with the place.
func TestAmbiguousSchemasAreRefused(t *testing.T) {
	for schema, want := range map[string]string{
		`{"properties":{"x":1,"x":2}}`:        `capabilities[0].inputSchema repeats the name at "/properties/x" in one object`,
		`{"a":1,"\u0061":2}`:                  `repeats the name at "/a"`,
		`{"properties":{"x":"\ud800 alone"}}`: `half of an escaped surrogate pair`,
	} {
		r := newRegistry(t, registry.Options{})
		_, err := r.Register(agent.Card{ID: "venus", Name: "V", Version: "1", Tier: agent.L2, Capabilities: []agent.Capability{{ID: "x", InputSchema: json.RawMessage(schema)}}})
		if registry.CodeOf(err) != registry.CodeInvalidCard || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", schema, err)
		}
	}
}

// After any sequence of changes, the indexes agree with a scan of all cards.
func TestIndexesAgreeWithAScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRegistry(t, registry.Options{})
		id := rapid.StringMatching(`[a-f]`)
		capability := rapid.SampledFrom([]string{"x.a", "x.b", "x.c"})
		card := rapid.Custom(func(t *rapid.T) agent.Card {
			c := agent.Card{ID: id.Draw(t, "id"), Name: "n", Version: "1", Tier: envelopetest.Tier().Draw(t, "tier"), Capabilities: []agent.Capability{}}
			for _, have := range rapid.SliceOfNDistinct(capability, 0, 3, rapid.ID).Draw(t, "capabilities") {
				c.Capabilities = append(c.Capabilities, agent.Capability{ID: have})
			}
			return c
		})
		t.Repeat(map[string]func(*rapid.T){
			"register": func(t *rapid.T) { r.Register(card.Draw(t, "card")) },
			"merge": func(t *rapid.T) {
				r.Merge(card.Draw(t, "card"), rapid.SampledFrom([]string{"s1", "s2"}).Draw(t, "source"))
			},
			"remove": func(t *rapid.T) { r.Unregister(id.Draw(t, "id")) },
			"lose":   func(t *rapid.T) { r.Lost(id.Draw(t, "id"), "s1") },
			"": func(t *rapid.T) {
				all := r.All()
				for _, x := range []string{"x.a", "x.b", "x.c"} {
					var want []agent.Identity
					for _, c := range all {
						if c.Has(x) {
							want = append(want, c.Identity())
						}
					}
					if got := r.Capable(x); !slices.Equal(got, want) {
						t.Fatalf("cards with capability %s: %v, want %v", x, got, want)
					}
				}
				for _, tier := range agent.Tiers() {
					n := 0
					for _, c := range all {
						if c.Tier == tier {
							n++
						}
					}
					if got := len(r.FindByTier(tier)); got != n {
						t.Fatalf("%d cards of tier %v, want %d", got, tier, n)
					}
				}
				if got := r.Identities(); len(got) != len(all) || len(all) != r.Len() {
					t.Fatalf("%d identities, %d cards, Len %d", len(got), len(all), r.Len())
				}
			},
		})
	})
}
