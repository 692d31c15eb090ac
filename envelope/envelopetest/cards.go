package envelopetest

import (
	"encoding/json"
	"fmt"
	"strings"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/rawjson"
)

// ID generates a valid agent id.
func ID() *rapid.Generator[string] {
	return rapid.StringMatching(`[a-z][a-z0-9._-]{0,12}`)
}

// Tier generates one of the four tiers.
func Tier() *rapid.Generator[agent.Tier] { return rapid.SampledFrom(agent.Tiers()) }

// JSON generates the text of a JSON value, spacing and escapes included.
func JSON() *rapid.Generator[json.RawMessage] {
	return rapid.Custom(func(t *rapid.T) json.RawMessage {
		return rapid.OneOf(
			rapid.Just(json.RawMessage("null")),
			rapid.Just(json.RawMessage("{}")),
			rapid.SampledFrom([]json.RawMessage{
				json.RawMessage(`{ "type" : "object" }`),
				json.RawMessage(`{"b":1,"a":2,"b":3}`),
				json.RawMessage("[1, 2.50, 1e400, -0,\n\t12345678901234567890]"),
				json.RawMessage(`"<&> \u00e9 \ud83d\ude00 \/"`),
				json.RawMessage("\"\u2028\""),
				json.RawMessage(`true`),
			}),
			rapid.Map(rapid.String(), mustMarshal),
			rapid.Map(rapid.MapOfN(rapid.String(), rapid.Int64(), 0, 4), func(m map[string]int64) json.RawMessage { return marshal(m) }),
		).Draw(t, "json")
	})
}

func mustMarshal(s string) json.RawMessage { return marshal(s) }

func marshal(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and maps of integers always marshal
	}
	return data
}

// Schema generates what a card accepts as a schema: JSON that has a canonical form.
func Schema() *rapid.Generator[json.RawMessage] {
	return JSON().Filter(func(s json.RawMessage) bool { return rawjson.Unambiguous(s) == nil })
}

// Capability generates a capability.
func Capability() *rapid.Generator[agent.Capability] {
	return rapid.Custom(func(t *rapid.T) agent.Capability {
		c := agent.Capability{
			ID:          rapid.StringMatching(`[a-z]{1,6}\.[a-z]{1,6}`).Draw(t, "capability"),
			Name:        rapid.StringN(0, 20, 60).Draw(t, "name"),
			Description: rapid.StringN(0, 40, 120).Draw(t, "description"),
		}
		if rapid.Bool().Draw(t, "schemas") {
			c.InputSchema = Schema().Draw(t, "inputSchema")
			c.OutputSchema = Schema().Draw(t, "outputSchema")
		}
		return c
	})
}

// Card generates a valid card, local and outside of any sandbox as often as not.
func Card() *rapid.Generator[agent.Card] {
	return rapid.Custom(func(t *rapid.T) agent.Card {
		c := agent.Card{
			ID:           ID().Draw(t, "id"),
			Name:         rapid.StringMatching(`[A-Za-zäλ][A-Za-z λ]{0,12}`).Draw(t, "name"),
			Version:      rapid.StringMatching(`[0-9]\.[0-9]\.[0-9](-rc\.[0-9])?`).Draw(t, "version"),
			Description:  rapid.StringN(0, 40, 120).Draw(t, "description"),
			Tier:         Tier().Draw(t, "tier"),
			Protocols:    rapid.SliceOfN(rapid.SampledFrom([]string{"a2a/1.0", "mcp/2024-11-05"}), 0, 2).Draw(t, "protocols"),
			Endpoints:    rapid.SliceOfN(Endpoint(), 0, 3).Draw(t, "endpoints"),
			Capabilities: rapid.SliceOfNDistinct(Capability(), 0, 4, func(c agent.Capability) string { return c.ID }).Draw(t, "capabilities"),
			Revision:     rapid.Uint64Range(0, 1<<50).Draw(t, "revision"),
			Origin:       rapid.SampledFrom([]agent.Origin{agent.Local, agent.Remote}).Draw(t, "origin"),
			LastSeenAt:   rapid.Int64Range(1, 1<<50).Draw(t, "lastSeenAt"),
		}
		if rapid.Bool().Draw(t, "sandboxed") {
			c.SandboxID = rapid.StringMatching(`box-[a-d]`).Draw(t, "sandbox")
		}
		return c
	})
}

// LargeCard generates a card of any tier with many capabilities and long texts in several scripts, whose JSON is below,
// around or above the bound of a card: each field is valid, the card may be too large.
func LargeCard() *rapid.Generator[agent.Card] {
	return rapid.Custom(func(t *rapid.T) agent.Card {
		c := Card().Draw(t, "card")
		part := rapid.SampledFrom([]string{"a", "ä", "漢", "😀", "<", "\u2028", "\x00", "e\u0301"})
		text := func(most int) string {
			unit := part.Draw(t, "part")
			return strings.Repeat(unit, rapid.IntRange(0, most/len(unit)).Draw(t, "times"))
		}
		schema := rapid.SampledFrom([]json.RawMessage{nil, json.RawMessage(`{"a":[1e20,2.50,12345678901234567890]}`), json.RawMessage(`"<&>"`)})
		c.Description = text(agent.MaxTextLength)
		c.Endpoints = append(c.Endpoints, agent.Endpoint{Transport: agent.TransportNATS, Address: text(agent.MaxTextLength)})
		if rapid.Bool().Draw(t, "long id") {
			c.ID = strings.Repeat(c.ID[:1], rapid.IntRange(1, agent.MaxIDLength).Draw(t, "id length"))
		}
		c.Capabilities = []agent.Capability{}
		described := rapid.IntRange(0, 24).Draw(t, "described")
		for i := range rapid.IntRange(0, agent.MaxListLength).Draw(t, "capabilities") {
			x := agent.Capability{ID: fmt.Sprintf("fähig.%d", i)}
			if i < described {
				x.Name, x.Description, x.InputSchema = text(agent.MaxIDLength), text(agent.MaxTextLength), schema.Draw(t, "schema")
			}
			c.Capabilities = append(c.Capabilities, x)
		}
		if n := rapid.IntRange(0, agent.MaxSchemaLength/5-1).Draw(t, "numbers"); len(c.Capabilities) > 0 {
			c.Capabilities[0].OutputSchema = json.RawMessage("[" + strings.Repeat("1e20,", n) + "0]")
		}
		return c
	})
}

// Cards generates n to m valid cards with distinct ids.
func Cards(n, m int) *rapid.Generator[[]agent.Card] {
	return rapid.SliceOfNDistinct(Card(), n, m, func(c agent.Card) string { return c.ID })
}

// Endpoint generates an endpoint.
func Endpoint() *rapid.Generator[agent.Endpoint] {
	return rapid.Custom(func(t *rapid.T) agent.Endpoint {
		return agent.Endpoint{
			Transport: rapid.SampledFrom([]agent.Transport{
				agent.TransportLocal, agent.TransportHyperswarm, agent.TransportWebSocket,
			}).Draw(t, "transport"),
			Address: rapid.StringN(0, 20, 60).Draw(t, "address"),
		}
	})
}
