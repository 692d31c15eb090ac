package mounts

import (
	"context"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/toolbox"
)

// maxRemote bounds the remote agents whose tools are mounted.
const maxRemote = 256

// follow mounts the tools of remote agents as their cards change.
func (t *Tools) follow(ctx context.Context, w *registry.Watcher) {
	t.mountAgents()
	for {
		change, err := w.Next(ctx)
		if err != nil {
			return
		}
		switch {
		case change.Kind == registry.Resync:
			t.mountAgents()
		case change.Card.Origin != agent.Remote:
			t.box.Refresh() // what the agent may see
		case change.Kind == registry.Removed:
			t.unmountAgent(change.Card.ID)
		default:
			t.mountAgent(change.Card)
		}
	}
}

// mountAgents mounts the remote agents of the registry and unmounts all others.
func (t *Tools) mountAgents() {
	present := make(map[string]bool)
	for _, card := range t.o.Node.Registry().Remote() {
		present[card.ID] = true
		t.mountAgent(card)
	}
	for _, s := range t.Status() {
		if s.Kind == KindAgent && !present[s.Name] {
			t.unmountAgent(s.Name)
		}
	}
}

// mountAgent mounts a remote agent whose card declares MCP.
func (t *Tools) mountAgent(card agent.Card) {
	t.mu.Lock()
	m, others := t.mounted[card.ID], 0
	for _, o := range t.mounted {
		if o.kind == KindAgent {
			others++
		}
	}
	t.mu.Unlock()
	if m != nil && m.kind != KindAgent {
		return // the configuration has the name
	}
	if m != nil && (!speaksMCP(card) || m.as != card.Identity()) {
		t.unmountAgent(card.ID)
		m = nil
	}
	if m != nil || !speaksMCP(card) {
		return
	}
	if t.reserved(card.ID) {
		t.o.Logger.Warn("the tools of an agent are not mounted: its name is reserved for another hub", "agent", card.ID)
		return
	}
	if others >= maxRemote {
		t.o.Logger.Warn("the tools of an agent are not mounted: there are too many", "agent", card.ID, "limit", maxRemote)
		return
	}
	m = &mounted{kind: KindAgent, as: card.Identity(), redact: (*process.Redactor)(nil).Redact}
	if err := t.mount(m, toolbox.MountOptions{Name: card.ID, MaxRedial: redialAgent, Dial: func(context.Context) (mcp.Transport, error) {
		return toolbox.Over(t.o.Node.Router(), CardID, card.ID), nil
	}}); err != nil {
		t.o.Logger.Warn("the tools of an agent cannot be mounted", "agent", card.ID, "error", err)
	}
	if t.reserved(card.ID) { // since the check
		t.unmountAgent(card.ID)
	}
}

// CardID is the agent to which remote agents open a channel to offer their tools. The hub does not dial them.
const CardID = "hub-toolbox"

// join adds the toolbox's own card to the registry, so that answers do not reach one of the hub's agents. Its tier is
// L0, that of the hub, which agents of every tier may answer. Permit decides who may use their tools.
func (t *Tools) join() (leave func(), err error) {
	own := agent.Card{
		ID: CardID, Name: "Toolbox", Version: "1", Description: "Takes the tools of agents elsewhere that speak MCP over a channel, for the agents of this hub",
		Tier: agent.L0, Protocols: []string{"mcp-client"}, Capabilities: []agent.Capability{},
	}
	// toolbox.Over receives the envelopes itself.
	access, err := t.o.Node.Join(own, func(context.Context, *envelope.Envelope) {})
	if err != nil {
		return nil, err
	}
	return access.Leave, nil
}

// redialAgent bounds the backoff between attempts, which are cheap while there is no channel.
const redialAgent = 5 * time.Second

// unmountAgent unmounts a remote agent.
func (t *Tools) unmountAgent(id string) {
	t.mu.Lock()
	m := t.mounted[id]
	if m != nil && m.kind == KindAgent {
		delete(t.mounted, id)
		defer m.Close()
	}
	t.mu.Unlock()
}
