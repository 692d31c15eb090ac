package a2a

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	legacy "github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"

	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
)

// agentURN is the extension of extended cards with an agent's driver and health.
const agentURN = "urn:parley:agent"

// base returns the address at the beginning of a card's URLs.
func (h *Handler) base(r *http.Request) string {
	if h.opts.BaseURL != "" {
		return h.opts.BaseURL
	}
	u := url.URL{Scheme: "http", Host: r.Host}
	if r.TLS != nil {
		u.Scheme = "https"
	}
	return u.String()
}

// hubCard returns the card of the hub, with its agents as skills. If calls need a token, the card is all that others
// see, and names no agents of other hubs.
func (h *Handler) hubCard(ctx context.Context, base string) *a2a.AgentCard {
	return h.hubCardWith(ctx, base, func(info hub.AgentInfo) bool { return !h.opts.TokenRequired || info.Own() })
}

func (h *Handler) hubCardWith(ctx context.Context, base string, include func(hub.AgentInfo) bool) *a2a.AgentCard {
	card := h.card("Parley", "A hub of coding agents. Name the agent by tenant or by the message's metadata \"targetAgent\".", base+"/a2a", "")
	for _, info := range h.opts.Hub.AgentsFor(ctx) {
		if !include(info) {
			continue
		}
		d := info.Definition
		card.Skills = append(card.Skills, a2a.AgentSkill{
			ID: d.ID, Name: nameOf(info), Description: descriptionOf(info), Tags: []string{"agent"},
		})
	}
	return card
}

// extendedHubCard returns the hub's card with all agents and their own skills, and each agent as a tenant.
func (h *Handler) extendedHubCard(ctx context.Context, base string) *a2a.AgentCard {
	card := h.hubCardWith(ctx, base, func(hub.AgentInfo) bool { return true })
	for _, info := range h.opts.Hub.AgentsFor(ctx) {
		for _, skill := range skillsOf(info) {
			skill.ID = info.Definition.ID + "/" + skill.ID
			card.Skills = append(card.Skills, skill)
		}
		card.SupportedInterfaces = append(card.SupportedInterfaces, interfaces(base+"/a2a", info.Definition.ID, v10)...)
	}
	return card
}

// agentCard returns the card of an agent.
func (h *Handler) agentCard(info hub.AgentInfo, base string) *a2a.AgentCard {
	id := info.Definition.ID
	card := h.card(nameOf(info), descriptionOf(info), base+"/agents/"+url.PathEscape(id)+"/a2a", id)
	card.Skills = skillsOf(info)
	return card
}

// extendedAgentCard returns an agent's card with its driver and health.
func (h *Handler) extendedAgentCard(info hub.AgentInfo, base string) *a2a.AgentCard {
	card := h.agentCard(info, base)
	params := map[string]any{
		"driver": info.Definition.Driver,
		"health": string(info.Health.Status),
		"stage":  string(info.Health.Stage),
		"kind":   string(info.Residence.Kind),
		"state":  string(info.State),
	}
	for name, value := range map[string]string{"vendor": info.Residence.Vendor, "model": info.Model, "project": info.Residence.Folder,
		"computer": info.Residence.Computer} {
		if value != "" {
			params[name] = value
		}
	}
	if info.Health.Version != "" {
		params["cliVersion"] = info.Health.Version
	}
	card.Capabilities.Extensions = append(card.Capabilities.Extensions, a2a.AgentExtension{
		URI: agentURN, Description: "How this hub drives the agent, and its health.", Params: params,
	})
	return card
}

// card returns the common part of all cards. The gRPC address is the hub's, so tenant names the agent there.
func (h *Handler) card(name, description, address, tenant string) *a2a.AgentCard {
	card := &a2a.AgentCard{
		Name:               name,
		Description:        description,
		Version:            cmp.Or(h.opts.Version, "0.0.0-dev"), // required
		DefaultInputModes:  []string{"text/plain", "application/json"},
		DefaultOutputModes: []string{"text/plain", "application/json"},
		Capabilities: a2a.AgentCapabilities{
			Streaming:         true,
			PushNotifications: h.opts.Push != nil,
			ExtendedAgentCard: h.opts.TokenRequired,
		},
		Skills: []a2a.AgentSkill{},
	}
	card.SupportedInterfaces = interfaces(address, "", v10)
	if h.opts.GRPCAddress != "" {
		// Not for 0.3, although it is served: its interfaces must have http URLs, which gRPC clients cannot dial.
		card.SupportedInterfaces = append(card.SupportedInterfaces, &a2a.AgentInterface{
			URL: h.opts.GRPCAddress, ProtocolBinding: a2a.TransportProtocolGRPC, ProtocolVersion: v10, Tenant: tenant,
		})
	}
	card.SupportedInterfaces = append(card.SupportedInterfaces, interfaces(address, "", v03)...)
	if h.opts.TokenRequired {
		card.SecuritySchemes = a2a.NamedSecuritySchemes{
			"bearer": a2a.HTTPAuthSecurityScheme{Scheme: "bearer", Description: "The hub's token."},
		}
		card.SecurityRequirements = a2a.SecurityRequirementsOptions{{"bearer": {}}}
	}
	return card
}

func interfaces(address, tenant string, version a2a.ProtocolVersion) []*a2a.AgentInterface {
	if strings.HasPrefix(address, "/") { // a request over gRPC: the HTTP address is unknown
		return nil
	}
	return []*a2a.AgentInterface{
		{URL: address, ProtocolBinding: a2a.TransportProtocolJSONRPC, ProtocolVersion: version, Tenant: tenant},
		{URL: address, ProtocolBinding: a2a.TransportProtocolHTTPJSON, ProtocolVersion: version, Tenant: tenant},
	}
}

func nameOf(info hub.AgentInfo) string { return cmp.Or(info.Definition.Name, info.Definition.ID) }

func descriptionOf(info hub.AgentInfo) string {
	return cmp.Or(info.Definition.Description, "The agent "+info.Definition.ID+" of this hub.")
}

// skillsOf returns an agent's skills, at least one.
func skillsOf(info hub.AgentInfo) []a2a.AgentSkill {
	skills := make([]a2a.AgentSkill, 0, len(info.Definition.Skills))
	for _, s := range info.Definition.Skills {
		skills = append(skills, a2a.AgentSkill{ID: s.ID, Name: s.Name, Description: s.Description, Tags: append([]string{}, s.Tags...)})
	}
	if len(skills) == 0 {
		skills = append(skills, a2a.AgentSkill{ID: "chat", Name: "Chat", Description: "Answers prompts and works on code.", Tags: []string{"chat", "code"}})
	}
	return skills
}

// serveCard serves the card of 1.0; the union of both versions if union is set, and to requests for 0.3.
func (s *Server) serveCard(w http.ResponseWriter, r *http.Request, agent string, union bool) {
	version, err := requestedVersion(r.Header, r.URL.Query())
	if err != nil {
		writeRESTError(w, err)
		return
	}
	card, changed, err := s.card(r, agent)
	if err != nil {
		writeRESTError(w, err)
		return
	}
	encode := encodeCard
	if union || version == v03 {
		encode = unionCard
	}
	body, err := encode(r.Context(), card)
	s.writeCard(w, r, body, changed, err)
}

func (s *Server) card(r *http.Request, agent string) (card *a2a.AgentCard, changed time.Time, err error) {
	base := s.own.base(r)
	if agent == "" {
		for _, info := range s.opts.Hub.AgentsFor(r.Context()) {
			if info.RegisteredAt.After(changed) {
				changed = info.RegisteredAt
			}
		}
		return s.own.hubCard(r.Context(), base), changed, nil
	}
	id, err := s.agentID(r.Context(), agent)
	if err != nil {
		return nil, changed, err
	}
	info, err := s.opts.Hub.AgentFor(r.Context(), id)
	if err != nil {
		return nil, changed, fault(errAgentNotFound, "there is no agent "+text.Quote(agent, 64))
	}
	return s.own.agentCard(info, base), info.RegisteredAt, nil
}

// unionCard encodes a card with the members of 1.0 and 0.3.
func unionCard(ctx context.Context, card *a2a.AgentCard) ([]byte, error) {
	producer, ok := a2av0.NewStaticAgentCardProducer(card).(interface {
		CardJSON(context.Context) ([]byte, error)
	})
	if !ok {
		return encodeCard(ctx, card)
	}
	body, err := producer.CardJSON(ctx)
	if err != nil || len(card.SecuritySchemes) == 0 {
		return body, err
	}
	return addSchemes(body, card.SecuritySchemes)
}

// addSchemes adds the members of 1.0 to the security schemes of a union card. The SDK encodes them for 0.3 only, and
// its client for 1.0 cannot read such a card.
func addSchemes(union []byte, schemes a2a.NamedSecuritySchemes) ([]byte, error) {
	var card map[string]json.RawMessage
	if err := json.Unmarshal(union, &card); err != nil {
		return nil, err
	}
	var both, current map[string]map[string]json.RawMessage
	if err := json.Unmarshal(card["securitySchemes"], &both); err != nil {
		return nil, err
	}
	body, err := json.Marshal(schemes)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &current); err != nil {
		return nil, err
	}
	for name, members := range both {
		maps.Copy(members, current[name])
	}
	if card["securitySchemes"], err = json.Marshal(both); err != nil {
		return nil, err
	}
	return rawjson.Append(nil, card)
}

func encodeCard(_ context.Context, card *a2a.AgentCard) ([]byte, error) {
	return rawjson.Append(nil, card)
}

// writeCard answers a GET or HEAD with a card and its caching headers (1.0, section 8.6).
func (s *Server) writeCard(w http.ResponseWriter, r *http.Request, body []byte, changed time.Time, err error) {
	if err != nil {
		s.log.Error("card cannot be encoded", "error", err)
		writeRESTError(w, a2a.ErrInternalError)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		writeRESTError(w, fault(errMethodNotAllowed, "cards are read-only"))
		return
	}
	sum := sha256.Sum256(body)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "max-age=60")
	h.Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	h.Set("Vary", versionParam)
	// Handles If-None-Match, If-Modified-Since and ranges.
	http.ServeContent(w, r, "", changed, bytes.NewReader(body))
}

// card03 converts an extended card to 0.3 with the interfaces of 0.3 only. The SDK's
// conversion alone would present those of all versions as 0.3's.
func card03(card *a2a.AgentCard) *legacy.AgentCard {
	old := *card
	old.SupportedInterfaces = nil
	for _, i := range card.SupportedInterfaces {
		if i.ProtocolVersion == v03 {
			old.SupportedInterfaces = append(old.SupportedInterfaces, i)
		}
	}
	out := a2av0.FromV1AgentCard(&old)
	out.ProtocolVersion = "0.3.0" // cards of 0.3 have the patch number
	return out
}
