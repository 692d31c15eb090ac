package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/tasks"
)

// inputSchema describes the payload of a request, for the cards.
var inputSchema = json.RawMessage(`{
  "anyOf": [
    {"type": "string"},
    {"type": "object", "required": ["text"], "properties": {
      "text": {"type": "string"}, "data": {}, "stream": {"type": "boolean"}, "timeoutMs": {"type": "number", "minimum": 0}}}
  ]
}`)

// outputSchema describes the payload of a response.
var outputSchema = json.RawMessage(`{
  "type": "object", "required": ["state", "taskId", "contextId", "text"], "properties": {
    "state": {"type": "string"}, "taskId": {"type": "string"}, "contextId": {"type": "string"}, "text": {"type": "string"}}
}`)

// cardOf returns an agent's card. With keyed it says that requests may have keys, and which agents are sessions.
func cardOf(info hub.AgentInfo, id, hubVersion string, endpoints []agent.Endpoint, keyed bool, began time.Time) agent.Card {
	def := info.Definition
	card := agent.Card{
		ID:           id,
		Name:         clip(cmp.Or(strings.TrimSpace(def.Name), def.ID), agent.MaxIDLength),
		Version:      clip(cmp.Or(firstLine(info.Health.Version), firstLine(hubVersion), "unknown"), agent.MaxIDLength),
		Description:  clip(def.Description, agent.MaxTextLength),
		Tier:         agent.L3,
		Protocols:    []string{"a2a/1.0", "a2a/0.3"},
		Endpoints:    endpoints,
		Capabilities: []agent.Capability{},
		SandboxID:    def.Sandbox,
		Origin:       agent.Local,
	}
	if def.Tier != nil {
		card.Tier = agent.TierOf(*def.Tier)
	}
	session := waitsFor(info) // a connected program is one for other hubs: its tasks wait for it, too
	if info.Health.Status == hub.Unhealthy && !session {
		card.Protocols = nil // see [Unavailable]
		return card
	}
	if keyed {
		card.Protocols = append(card.Protocols, protocolKeys)
	}
	if keyed && session {
		card.Protocols = append(card.Protocols, sessionProtocols(info)...)
	}
	if info.Health.Status == hub.Unhealthy && !expected(info, began) {
		return card // its tasks wait for it, but searches for a capability skip it
	}
	for _, c := range def.Capabilities {
		card.Capabilities = append(card.Capabilities, agent.Capability{
			ID: c.ID, Name: cmp.Or(c.Name, c.ID), Description: c.Description, InputSchema: inputSchema, OutputSchema: outputSchema,
		})
	}
	return card
}

// Unavailable reports whether a card says that its agent cannot work now: it has neither protocols nor capabilities.
func Unavailable(card agent.Card) bool {
	return len(card.Protocols) == 0 && len(card.Capabilities) == 0
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(s)
}

// clip cuts a text to n bytes of whole characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "�")
	}
	return strings.ToValidUTF8(s[:n], "")
}

// cardsFor returns the cards of the agents that the sender of a context sees.
func (n *Node) cardsFor(ctx context.Context) []agent.Card {
	sender := hub.SenderFrom(ctx)
	return slices.DeleteFunc(n.Registry().Local(), func(card agent.Card) bool { return !n.shown(card.ID, sender) })
}

// shown reports whether a sender may know of the agent with a card. The stand-in of a program that is not public is for the hub's
// swarms only: programs cannot give it tasks.
func (n *Node) shown(id string, to hub.Sender) bool {
	if id == tasks.Hub {
		return false
	}
	of, standIn := strings.CutPrefix(id, standInPrefix)
	info, err := n.o.Hub.Agent(of)
	if err != nil {
		return !standIn
	}
	return info.VisibleTo(to) && !(standIn && info.Residence.Hidden)
}

// serveCards sends the cards of the hub's agents that the caller sees, in order of registration.
func (n *Node) serveCards(w http.ResponseWriter, r *http.Request) {
	body, err := registry.Encode(n.cardsFor(r.Context()))
	if err != nil {
		n.o.Logger.Error("cannot encode the agents' cards", "error", err)
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	sum := sha256.Sum256(body)
	etag := `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
	h := w.Header()
	h.Set("ETag", etag)
	h.Set("Cache-Control", "private, no-cache")
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", "application/json")
	_, _ = w.Write(body) // fails only if the client has disconnected
}
