package dialect

import (
	"cmp"
	"context"
	"strings"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// AgentLister lists the agents of the cards, as package hub's Hub does.
type AgentLister interface {
	Agent(id string) (hub.AgentInfo, error)
	AgentsFor(ctx context.Context) []hub.AgentInfo
	AgentFor(ctx context.Context, id string) (hub.AgentInfo, error)
}

// Directory returns the agent cards in the specification's shape.
type Directory struct {
	Agents AgentLister
	// Version is the hub's.
	Version string
	// BaseURL returns the URL of the hub's HTTP server without a trailing slash,
	// such as "http://127.0.0.1:8080". It may change while the hub starts.
	BaseURL func() string
	// Token is set if requests need a bearer token.
	Token bool
}

const protocolVersion = "1.0"

var provider = Provider{Name: "Parley", URL: "https://github.com/parleyhub/parley"}

var (
	inputModes  = []string{"text/plain", "application/json", "application/octet-stream"}
	outputModes = []string{"text/plain", "application/json"}
)

// Public reports whether the card of an agent, "" for the hub, is readable without the token: that of each agent of
// this hub, but not those of paired hubs' agents.
func (d *Directory) Public(id string) bool {
	if id == "" {
		return true
	}
	a, err := d.Agents.Agent(id)
	return err == nil && a.Own()
}

// HubCard returns the card of the hub itself: each agent is one of its skills. With a token, these are only the agents
// whose cards are public.
func (d *Directory) HubCard(ctx context.Context) AgentCard {
	card := d.card("Parley", "A hub of coding agents. A message names its agent in metadata.targetAgent.")
	card.URL = d.BaseURL() + "/"
	card.Version = d.Version
	for _, a := range d.Agents.AgentsFor(ctx) {
		if d.Token && !a.Own() {
			continue
		}
		card.Skills = append(card.Skills, Skill{
			ID:          a.Definition.ID,
			Name:        displayName(a),
			Description: description(a),
			Tags:        []string{"agent"},
			InputModes:  inputModes,
			OutputModes: outputModes,
		})
	}
	return card
}

// AgentCards returns the cards of all agents that the sender of ctx sees.
func (d *Directory) AgentCards(ctx context.Context) []AgentCard {
	return each(d.Agents.AgentsFor(ctx), d.agentCard)
}

// AgentCard returns the card of one agent, or the hub's error.
func (d *Directory) AgentCard(ctx context.Context, id string) (AgentCard, error) {
	a, err := d.Agents.AgentFor(ctx, id)
	if err != nil {
		return AgentCard{}, err
	}
	return d.agentCard(a), nil
}

func (d *Directory) agentCard(a hub.AgentInfo) AgentCard {
	card := d.card(displayName(a), description(a))
	card.URL = d.BaseURL() + "/agents/" + a.Definition.ID + "/a2a"
	card.Version = cmp.Or(a.Health.Version, d.Version)
	card.Skills = each(a.Definition.Skills, skill)
	if len(card.Skills) == 0 {
		card.Skills = append(card.Skills, Skill{
			ID: "prompt", Name: "Prompt", Description: "Works on a prompt in natural language.",
			Tags: []string{"prompt"}, InputModes: inputModes, OutputModes: outputModes,
		})
	}
	return card
}

func skill(s runner.Skill) Skill {
	return Skill{
		ID:          s.ID,
		Name:        s.Name,
		Description: s.Description,
		Tags:        append([]string{}, s.Tags...),
		InputModes:  inputModes,
		OutputModes: outputModes,
	}
}

func description(a hub.AgentInfo) string {
	return cmp.Or(a.Definition.Description, displayName(a)+", run by the Parley hub.")
}

func (d *Directory) card(name, about string) AgentCard {
	card := AgentCard{
		ProtocolVersion:    protocolVersion,
		Name:               name,
		Description:        strings.TrimSpace(about),
		Provider:           provider,
		Skills:             []Skill{},
		Capabilities:       Capabilities{Streaming: true},
		DefaultInputModes:  inputModes,
		DefaultOutputModes: outputModes,
	}
	if d.Token {
		card.SecuritySchemes = map[string]SecurityScheme{"bearer": {Type: "http", Scheme: "bearer"}}
		card.Security = []map[string][]string{{"bearer": {}}}
	}
	return card
}
