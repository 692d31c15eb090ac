package peers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/mcp/mounts"
	"github.com/parleyhub/parley/toolbox"
)

// toolsPrefix begins the names of the cards that serve MCP: one for each server or
// agent whose tools a hub shares, so that the rules apply to each one.
const toolsPrefix = "~tools-"

// maxImported bounds the owners at other hubs whose tools are imported.
const maxImported = 256

// tools is the state of the tools that hubs share.
type tools struct {
	changes chan struct{} // buffers one change of cards or channels

	mu       sync.Mutex
	offered  map[mounts.Owner]func() // local owners whose tools other hubs may use; the function ends that
	imported map[string]*imported    // by the id of the card
}

func newTools() tools {
	return tools{changes: make(chan struct{}, 1), offered: make(map[mounts.Owner]func()), imported: make(map[string]*imported)}
}

// imported is an owner at another hub whose tools are available here.
type imported struct {
	name string // here
	as   agent.Identity
	drop func()
	lost bool // its channel has closed: import it again
}

// signalTools makes watchRegistry reconcile. It never blocks.
func (p *Peers) signalTools() { wait.Nudge(p.tools.changes) }

// offerTools keeps the cards in step with the tools that the hub shares. Only watchAllowList calls it.
func (p *Peers) offerTools() {
	if p.o.Tools == nil {
		return
	}
	shared := p.o.Tools.Shared()
	for owner, end := range p.tools.offered {
		if !slices.Contains(shared, owner) {
			end()
			delete(p.tools.offered, owner)
		}
	}
	for _, owner := range shared {
		if p.tools.offered[owner] != nil {
			continue
		}
		end, err := p.offer(owner)
		if err != nil {
			p.log.Warn("cannot share tools with other hubs", "owner", owner.ID, "error", err)
			end = func() {} // log it once
		}
		p.tools.offered[owner] = end
	}
}

// offer makes an owner's tools available to paired hubs.
func (p *Peers) offer(owner mounts.Owner) (end func(), err error) {
	card := agent.Card{
		ID: signedcard.ID(toolsPrefix+owner.ID, p.pair.Public()), Name: owner.ID, Version: "1", Description: "shares its tools",
		Tier: owner.As.Tier, SandboxID: owner.As.SandboxID, Protocols: []string{"mcp/2025-11-25"}, Capabilities: []agent.Capability{}, Origin: agent.Local,
	}
	if card.Tier == agent.NoTier { // a configured server
		card.Tier = p.o.PeerTier
	}
	asks := agent.Identity{ID: "another hub", Tier: card.Tier}
	if err := p.node.Router().MayAddress(card.Identity(), asks); err != nil {
		return nil, fmt.Errorf("it could not answer: %w", err)
	}
	access, err := p.node.Join(card, func(context.Context, *envelope.Envelope) {}) // toolbox.Listen handles its own
	if err != nil {
		return nil, err
	}
	l := toolbox.Listen(p.node.Router(), card.ID, func(peer string) *mcp.Server {
		if _, _, ok := signedcard.ParseID(peer); !ok {
			return nil
		}
		s := mcp.NewServer(&mcp.Implementation{Name: "parley", Version: p.o.Version}, &mcp.ServerOptions{Capabilities: &mcp.ServerCapabilities{
			Tools: &mcp.ToolCapabilities{ListChanged: true}, Resources: &mcp.ResourceCapabilities{ListChanged: true}, Prompts: &mcp.PromptCapabilities{ListChanged: true},
		}})
		p.serve(s, peer, owner.ID)
		return s
	})
	return func() {
		l.Close()
		access.Leave()
	}, nil
}

// serve adds an owner's tools to a server until its MCP connection ends.
func (p *Peers) serve(s *mcp.Server, peer, owner string) {
	stop := p.o.Tools.ServePeer(s, peer, owner)
	var once sync.Once
	s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			once.Do(func() {
				session, ok := req.GetSession().(*mcp.ServerSession)
				if !ok {
					return
				}
				go func() { // ends with the connection, which the listener closes at the latest
					_ = session.Wait() // the error does not matter
					stop()
				}()
			})
			return next(ctx, method, req)
		}
	})
}

// reconcileTools imports the tools of new cards and drops those of lost cards. names are
// the paired hubs' names. Only reconcile calls it.
func (p *Peers) reconcileTools(names map[identity.PublicKey]string) {
	if p.o.Tools == nil {
		return
	}
	here := make(map[string]agent.Card)
	for _, card := range p.node.Registry().Remote() {
		if p.toolsName(card, names) != "" {
			here[card.ID] = card
		}
	}
	for id, t := range p.importedNow() {
		card, there := here[id]
		if !there || t.lost || t.as != card.Identity() || t.name != p.toolsName(card, names) {
			p.tools.mu.Lock()
			delete(p.tools.imported, id)
			p.tools.mu.Unlock()
			t.drop()
		}
	}
	for id, card := range here {
		now := p.importedNow()
		if _, there := now[id]; !there && len(now) < maxImported {
			p.importTools(card, p.toolsName(card, names))
		}
	}
}

func (p *Peers) importedNow() map[string]imported {
	p.tools.mu.Lock()
	defer p.tools.mu.Unlock()
	all := make(map[string]imported, len(p.tools.imported))
	for id, t := range p.tools.imported {
		all[id] = *t
	}
	return all
}

// toolsName returns the name here of a card's tools, "" if they cannot be imported.
func (p *Peers) toolsName(card agent.Card, names map[identity.PublicKey]string) string {
	name, key, ok := signedcard.ParseID(card.ID)
	peer, paired := names[key]
	owner, tools := strings.CutPrefix(name, toolsPrefix)
	if !ok || !paired || !tools || card.Tier < p.o.PeerTier || p.sender(card.Tier) == nil {
		return ""
	}
	return peer + "." + owner
}

// importTools imports the tools of a card.
func (p *Peers) importTools(card agent.Card, name string) {
	_, key, _ := signedcard.ParseID(card.ID)
	owner := strings.TrimPrefix(strings.TrimSuffix(card.ID, "@"+key.String()), toolsPrefix)
	t := &imported{name: name, as: card.Identity()}
	sender := p.sender(card.Tier)
	var err error
	t.drop, err = p.o.Tools.MountPeer(mounts.PeerTools{
		Name: name, As: t.as, Source: signedcard.ID(owner, key),
		Dial: func(context.Context) (mcp.Transport, error) {
			return toolbox.Over(p.node.Router(), sender.ID(), card.ID), nil
		},
	})
	if err != nil {
		p.log.Warn("cannot import a peer's tools", "tools", name, "error", err)
		t.drop = func() {}
	}
	p.tools.mu.Lock()
	p.tools.imported[card.ID] = t
	p.tools.mu.Unlock()
}

// toolsDisconnected imports a card's tools again after its channel has closed, which ends
// the running calls. It does not block.
func (p *Peers) toolsDisconnected(cardID string) {
	p.tools.mu.Lock()
	defer p.tools.mu.Unlock()
	if t := p.tools.imported[cardID]; t != nil {
		t.lost = true
		p.signalTools()
	}
}

// closeTools ends all sharing. The goroutines that start it must have ended.
func (p *Peers) closeTools() {
	for _, t := range p.importedNow() {
		t.drop()
	}
	for _, end := range p.tools.offered {
		end()
	}
}
