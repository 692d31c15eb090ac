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

// maxRemote bounds the agents elsewhere whose tools are taken in.
const maxRemote = 256

// follow takes in the tools of agents elsewhere as their cards come, change and go.
func (t *Tools) follow(ctx context.Context, w *registry.Watcher) {
	t.takeAll()
	for {
		change, err := w.Next(ctx)
		if err != nil {
			return
		}
		switch {
		case change.Kind == registry.Resync:
			t.takeAll()
		case change.Card.Origin != agent.Remote:
			t.box.Refresh() // what the agent may see
		case change.Kind == registry.Removed:
			t.drop(change.Card.ID)
		default:
			t.take(change.Card)
		}
	}
}

func (t *Tools) takeAll() {
	present := make(map[string]bool)
	for _, card := range t.o.Node.Registry().Remote() {
		present[card.ID] = true
		t.take(card)
	}
	for _, s := range t.Status() {
		if s.Kind == KindAgent && !present[s.Name] {
			t.drop(s.Name)
		}
	}
}

// take mounts an agent elsewhere whose card says that it speaks MCP.
func (t *Tools) take(card agent.Card) {
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
		t.drop(card.ID)
		m = nil
	}
	if m != nil || !speaksMCP(card) {
		return
	}
	if t.reserved(card.ID) {
		t.o.Logger.Warn("the tools of an agent are not taken in: its name is one of another hub's", "agent", card.ID)
		return
	}
	if others >= maxRemote {
		t.o.Logger.Warn("the tools of an agent are not taken in: there are too many", "agent", card.ID, "limit", maxRemote)
		return
	}
	if err := t.mountAgent(card); err != nil {
		t.o.Logger.Warn("the tools of an agent cannot be taken in", "agent", card.ID, "error", err)
	}
	if t.reserved(card.ID) { // since it was looked at
		t.drop(card.ID)
	}
}

// CardID is the agent for whom agents elsewhere open a channel to offer their tools:
// they do so of their own accord, the hub dials nobody.
const CardID = "hub-toolbox"

// join puts the toolbox's own card among the agents'. Answers to it must not come to
// one of the hub's agents. It is L0, the hub itself: only so may agents of every tier
// answer. Who may use their tools is for Permit.
func (t *Tools) join() (leave func(), err error) {
	own := agent.Card{
		ID: CardID, Name: "Toolbox", Version: "1", Description: "Takes the tools of agents elsewhere that speak MCP over a channel, for the agents of this hub",
		Tier: agent.L0, Protocols: []string{"mcp-client"}, Capabilities: []agent.Capability{},
	}
	// What arrives is for toolbox.Over, which listens by itself.
	access, err := t.o.Node.Join(own, func(context.Context, *envelope.Envelope) {})
	if err != nil {
		return nil, err
	}
	return access.Leave, nil
}

// redialAgent bounds the pause between two attempts: they cost nothing while there is
// no channel.
const redialAgent = 5 * time.Second

func (t *Tools) mountAgent(card agent.Card) error {
	m := &mounted{kind: KindAgent, as: card.Identity(), redact: (*process.Redactor)(nil).Redact}
	return t.mount(m, toolbox.MountOptions{Name: card.ID, MaxRedial: redialAgent, Dial: func(context.Context) (mcp.Transport, error) {
		return toolbox.Over(t.o.Node.Router(), CardID, card.ID), nil
	}})
}

// drop takes an agent's tools out.
func (t *Tools) drop(id string) {
	t.mu.Lock()
	m := t.mounted[id]
	if m == nil || m.kind != KindAgent {
		t.mu.Unlock()
		return
	}
	delete(t.mounted, id)
	t.mu.Unlock()
	m.Close()
}
