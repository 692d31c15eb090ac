package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope/envelopetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Feature: a2a-mcp-protocols, Property 4: Agent Card serialization round trip.
// Req 1.6
func TestProperty04CardRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		card := rapid.OneOf(envelopetest.Card(), envelopetest.LargeCard()).Draw(t, "card")
		data, err := agent.Encode(card)
		if (err == nil) != (card.Validate() == nil) {
			t.Fatalf("a card that is valid cannot be encoded, or the reverse: %v", err)
		}
		if err != nil {
			if _, small := errors.AsType[agent.Problems](err); small {
				t.Fatal(err)
			}
			return // too large
		}
		back, err := agent.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if !back.Equal(card) {
			t.Fatalf("read back %+v\nwrote     %+v", back, card)
		}
	})
}

func valid() agent.Card {
	return agent.Card{ID: "venus", Name: "VENUS", Version: "1.0.0", Tier: agent.L2, Capabilities: []agent.Capability{}}
}

func TestValidateNamesEveryMissingField(t *testing.T) {
	err := new(agent.Card).Validate()
	invalid, ok := errors.AsType[agent.Problems](err)
	if !ok || agent.CodeOf(err) != agent.CodeInvalidCard {
		t.Fatalf("got %v", err)
	}
	want := []string{"id", "name", "version", "tier", "capabilities"}
	if got := invalid.Missing(); !slices.Equal(got, want) {
		t.Errorf("missing %v, want %v", got, want)
	}
	for _, field := range want {
		if !strings.Contains(err.Error(), field+" is missing") {
			t.Errorf("%q does not name %s", err, field)
		}
	}
}

func TestValidateRefusesInvalidCards(t *testing.T) {
	long := strings.Repeat("x", agent.MaxIDLength+1)
	many := make([]agent.Capability, agent.MaxListLength+1)
	for i := range many {
		many[i].ID = fmt.Sprint("c", i)
	}
	for name, tc := range map[string]struct {
		break_ func(*agent.Card)
		field  string
	}{
		"broadcast marker as id":   {func(c *agent.Card) { c.ID = "*" }, "id"},
		"space in id":              {func(c *agent.Card) { c.ID = "a b" }, "id"},
		"newline in id":            {func(c *agent.Card) { c.ID = "a\n" }, "id"},
		"long id":                  {func(c *agent.Card) { c.ID = long }, "id"},
		"id not UTF-8":             {func(c *agent.Card) { c.ID = "\xff" }, "id"},
		"blank name":               {func(c *agent.Card) { c.Name = "  " }, "name"},
		"description not UTF-8":    {func(c *agent.Card) { c.Description = "\xff" }, "description"},
		"tier out of range":        {func(c *agent.Card) { c.Tier = 9 }, "tier"},
		"capability without id":    {func(c *agent.Card) { c.Capabilities = make([]agent.Capability, 1) }, "capabilities[0].id"},
		"capability twice":         {func(c *agent.Card) { c.Capabilities = []agent.Capability{{ID: "a"}, {ID: "a"}} }, "capabilities[1].id"},
		"too many capabilities":    {func(c *agent.Card) { c.Capabilities = many }, "capabilities"},
		"schema that is not JSON":  {func(c *agent.Card) { c.Capabilities = []agent.Capability{{ID: "a", InputSchema: json.RawMessage("{")}} }, "capabilities[0].inputSchema"},
		"unknown transport":        {func(c *agent.Card) { c.Endpoints = []agent.Endpoint{{Transport: "pigeon"}} }, "endpoints[0].transport"},
		"endpoint of no transport": {func(c *agent.Card) { c.Endpoints = make([]agent.Endpoint, 1) }, "endpoints[0].transport"},
		"empty protocol":           {func(c *agent.Card) { c.Protocols = []string{""} }, "protocols[0]"},
		"bad sandbox":              {func(c *agent.Card) { c.SandboxID = "*" }, "sandboxId"},
		"unknown origin":           {func(c *agent.Card) { c.Origin = "mars" }, "origin"},
		"negative time":            {func(c *agent.Card) { c.LastSeenAt = -1 }, "lastSeenAt"},
	} {
		t.Run(name, func(t *testing.T) {
			c := valid()
			tc.break_(&c)
			err := c.Validate()
			invalid, ok := errors.AsType[agent.Problems](err)
			if !ok || agent.CodeOf(err) != agent.CodeInvalidCard {
				t.Fatalf("got %v", err)
			}
			if !slices.ContainsFunc(invalid, func(p agent.Problem) bool { return p.Field == tc.field }) {
				t.Errorf("problems %v do not name %s", invalid, tc.field)
			}
			if _, err := agent.Encode(c); err == nil {
				t.Error("Encode accepted it")
			}
		})
	}
	ok := valid()
	if err := ok.Validate(); err != nil {
		t.Errorf("a valid card: %v", err)
	}
}

func TestValidateErrorIsBounded(t *testing.T) {
	c := valid()
	c.Capabilities = make([]agent.Capability, 100_000)
	if n := len(c.Validate().Error()); n > 10_000 {
		t.Errorf("the error has %d bytes", n)
	}
}

func TestDecodeRefusesCardsWithoutTier(t *testing.T) {
	_, err := agent.Decode([]byte(`{"id":"a","name":"A","version":"1","capabilities":[]}`))
	invalid, ok := errors.AsType[agent.Problems](err)
	if !ok || agent.CodeOf(err) != agent.CodeInvalidCard || !slices.Equal(invalid.Missing(), []string{"tier"}) {
		t.Errorf("got %v", err)
	}
}

func TestDecodeLimits(t *testing.T) {
	for name, data := range map[string]string{
		"not JSON":   `{`,
		"wrong type": `{"id":7}`,
		"bad tier":   `{"tier":4}`,
		"text tier":  `{"tier":"L0"}`,
		"too large":  strings.Repeat(" ", agent.MaxCardSize+1),
	} {
		if _, err := agent.Decode([]byte(data)); err == nil || err.Error() == "" {
			t.Errorf("%s: got %v", name, err)
		}
	}
	c := valid()
	for i := range 20 {
		schema := json.RawMessage(`"` + strings.Repeat("s", 20<<10) + `"`)
		c.Capabilities = append(c.Capabilities, agent.Capability{ID: fmt.Sprint(i), InputSchema: schema})
	}
	if _, err := agent.Encode(c); err == nil {
		t.Error("Encode wrote a card that Decode refuses")
	}
}

// Req 11.1: the default tiers of the planets are those of the specification.
func TestPlanetaryTiers(t *testing.T) {
	want := map[agent.Tier]string{
		agent.L0: "sun",
		agent.L1: "mercury earth jupiter",
		agent.L2: "venus mars pluto saturn titan",
		agent.L3: "enceladus ganymede neptune charon uranus europa mimas io triton callisto atlas andromeda",
	}
	n := 0
	for tier, ids := range want {
		for _, id := range strings.Fields(ids) {
			n++
			if got := agent.PlanetaryTier(id); got != tier {
				t.Errorf("%s has %v, want %v", id, got, tier)
			}
		}
	}
	if got := len(agent.PlanetaryIDs()); n != 21 || got != 21 {
		t.Errorf("%d agents, want 21", got)
	}
	if got := agent.PlanetaryTier("nibiru"); got != agent.NoTier {
		t.Errorf("an unknown planet has tier %v", got)
	}
	key := strings.Repeat("0a", 32)
	for id, tier := range map[string]agent.Tier{
		"sun@" + key: agent.L0, "venus@" + key: agent.L2, "io@" + key: agent.L3, // of another hub
		"nibiru@" + key: agent.NoTier, "sun@": agent.NoTier, "sun@earth": agent.NoTier, "@" + key: agent.NoTier,
		"sun@" + strings.ToUpper(key): agent.NoTier, "sun" + key: agent.NoTier, "sun@" + key + "@" + key: agent.NoTier,
	} {
		if got := agent.PlanetaryTier(id); got != tier {
			t.Errorf("%s has %v, want %v", id, got, tier)
		}
	}
}

func TestTierOfLevel(t *testing.T) {
	for level, want := range []agent.Tier{agent.L0, agent.L1, agent.L2, agent.L3} {
		got := agent.TierOf(level)
		if got != want || got.Level() != level || got.String() != fmt.Sprint("L", level) {
			t.Errorf("level %d is %v (%d)", level, got, got.Level())
		}
	}
	for _, level := range []int{-1, 4} {
		if agent.TierOf(level) != agent.NoTier {
			t.Errorf("level %d is accepted as a tier", level)
		}
	}
	if agent.NoTier.Level() != -1 || agent.NoTier.String() != "no tier" {
		t.Error("NoTier is a valid tier")
	}
}

func TestCloneSharesNothing(t *testing.T) {
	c := valid()
	c.Protocols = []string{"a2a/1.0"}
	c.Endpoints = []agent.Endpoint{{Transport: agent.TransportWebSocket, Address: "ws://a"}}
	c.Capabilities = []agent.Capability{{ID: "a", InputSchema: json.RawMessage(`{}`)}}
	d := c.Clone()
	d.Protocols[0], d.Endpoints[0].Address, d.Capabilities[0].ID = "x", "x", "x"
	d.Capabilities[0].InputSchema[0] = 'x'
	if c.Protocols[0] == "x" || c.Endpoints[0].Address == "x" || c.Has("x") || c.Capabilities[0].InputSchema[0] == 'x' {
		t.Errorf("the original changed: %+v", c)
	}
	if !c.Has("a") || c.Has("b") {
		t.Error("Has does not report the capabilities of the card")
	}
	if e, ok := c.Endpoint(agent.TransportWebSocket); !ok || e.Address != "ws://a" {
		t.Errorf("Endpoint = %v, %v", e, ok)
	}
	if _, ok := c.Endpoint(agent.TransportNATS); ok {
		t.Error("Endpoint returned an endpoint that the card lacks")
	}
}

func TestEqualSeesEveryDifference(t *testing.T) {
	base := valid()
	base.Capabilities = []agent.Capability{{ID: "a", InputSchema: json.RawMessage(`{"a":1}`)}}
	for name, change := range map[string]func(*agent.Card){
		"id":           func(c *agent.Card) { c.ID = "x" },
		"name":         func(c *agent.Card) { c.Name = "x" },
		"version":      func(c *agent.Card) { c.Version = "x" },
		"description":  func(c *agent.Card) { c.Description = "x" },
		"tier":         func(c *agent.Card) { c.Tier = agent.L3 },
		"protocols":    func(c *agent.Card) { c.Protocols = []string{"x"} },
		"endpoints":    func(c *agent.Card) { c.Endpoints = make([]agent.Endpoint, 1) },
		"capabilities": func(c *agent.Card) { c.Capabilities = nil },
		"schema":       func(c *agent.Card) { c.Capabilities[0].InputSchema = json.RawMessage(`{"a":2}`) },
		"revision":     func(c *agent.Card) { c.Revision = 7 },
		"sandbox":      func(c *agent.Card) { c.SandboxID = "x" },
		"origin":       func(c *agent.Card) { c.Origin = agent.Remote },
		"lastSeenAt":   func(c *agent.Card) { c.LastSeenAt = 7 },
	} {
		c := base.Clone()
		change(&c)
		if c.Equal(base) {
			t.Errorf("Equal ignores the %s", name)
		}
	}
	spaced := base.Clone()
	spaced.Capabilities[0].InputSchema = json.RawMessage(`{ "a" : 1 }`)
	spaced.Protocols = []string{}
	if !spaced.Equal(base) {
		t.Error("Equal depends on spacing in the metadata")
	}
}

func FuzzDecode(f *testing.F) {
	c := valid()
	data, err := agent.Encode(c)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"id":"a","name":"A","version":"1","tier":0,"capabilities":[{"id":"x","inputSchema":{"a":[1e400]}}]}`))
	f.Add([]byte(`{"capabilities":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		card, err := agent.Decode(data)
		if err != nil {
			return
		}
		again, err := agent.Encode(card)
		if err != nil {
			var e *agent.Error
			if errors.As(err, &e) && strings.Contains(e.Message, "bytes") {
				return // escapes can make the text longer than the input
			}
			t.Fatalf("a decoded card cannot be encoded: %v", err)
		}
		back, err := agent.Decode(again)
		if err != nil || !back.Equal(card) {
			t.Fatalf("%v\n%+v\n%+v", err, back, card)
		}
	})
}

func ExampleCard() {
	card := agent.Card{
		ID:           "venus",
		Name:         "VENUS",
		Version:      "1.2.0",
		Tier:         agent.PlanetaryTier("venus"),
		Capabilities: []agent.Capability{{ID: "codegen.react", Name: "React"}},
		Origin:       agent.Local,
	}
	data, err := agent.Encode(card)
	if err != nil {
		fmt.Println(err)
		return
	}
	back, err := agent.Decode(data)
	fmt.Println(back.ID, back.Tier, back.Has("codegen.react"), err)
	// Output: venus L2 true <nil>
}

func ExampleCard_Validate() {
	card := agent.Card{ID: "venus", Name: "VENUS"}
	fmt.Println(card.Validate())
	// Output: the agent card is not valid: version is missing; tier is missing; capabilities is missing
}
