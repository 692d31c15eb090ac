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
	"github.com/parleyhub/parley/internal/tools/mounts"
	"github.com/parleyhub/parley/toolbox"
)

// toolsPrefix begins the names of the cards behind which MCP is spoken: one for each
// server or agent whose tools a hub shares, so that the rules hold for each by itself.
const toolsPrefix = "~tools-"

// maxTaken bounds those at other hubs whose tools are taken in.
const maxTaken = 256

// tools is the part of a network that shares tools.
type tools struct {
	changes chan struct{} // holds one if cards or links may have changed

	mu      sync.Mutex
	offered map[string]*offered // by owner
	taken   map[string]*taken   // by the id of the card
}

func newTools() tools {
	return tools{changes: make(chan struct{}, 1), offered: make(map[string]*offered), taken: make(map[string]*taken)}
}

// offered is an owner here whose tools other hubs may use.
type offered struct {
	owner mounts.Owner
	end   func()
}

// taken is an owner at another hub whose tools are here.
type taken struct {
	name string // here
	as   agent.Identity
	drop func()
	lost bool // its link broke: it has to be taken anew
}

// wake has the follower compare. It never blocks.
func (n *Network) wake() {
	select {
	case n.tools.changes <- struct{}{}:
	default: // it will look anyway
	}
}

// offerTools keeps the cards in step with what the hub shares. One goroutine calls it.
func (n *Network) offerTools() {
	if n.o.Tools == nil {
		return
	}
	shared := n.o.Tools.Shared()
	for id, o := range n.tools.offered {
		if !slices.Contains(shared, o.owner) {
			o.end()
			delete(n.tools.offered, id)
		}
	}
	for _, owner := range shared {
		if n.tools.offered[owner.ID] != nil {
			continue
		}
		end, err := n.offer(owner)
		if err != nil {
			n.log.Warn("tools cannot be shared with other hubs", "owner", owner.ID, "error", err)
			end = func() {} // once is enough to say so
		}
		n.tools.offered[owner.ID] = &offered{owner, end}
	}
}

// offer lets paired hubs use an owner's tools.
func (n *Network) offer(owner mounts.Owner) (end func(), err error) {
	card := agent.Card{
		ID: signedcard.ID(toolsPrefix+owner.ID, n.pair.Public()), Name: owner.ID, Version: "1", Description: "shares its tools",
		Tier: owner.As.Tier, SandboxID: owner.As.SandboxID, Protocols: []string{"mcp/2025-11-25"}, Capabilities: []agent.Capability{}, Origin: agent.Local,
	}
	if card.Tier == agent.NoTier { // a server of the configuration
		card.Tier = n.o.PeerTier
	}
	asks := agent.Identity{ID: "another hub", Tier: card.Tier}
	if err := n.node.Parley().Router().MayAddress(card.Identity(), asks); err != nil {
		return nil, fmt.Errorf("it could not answer: %w", err)
	}
	access, err := n.node.Join(card, func(context.Context, *envelope.Envelope) {}) // toolbox.Listen hears for itself
	if err != nil {
		return nil, err
	}
	l := toolbox.Listen(n.node.Parley().Router(), card.ID, func(peer string) *mcp.Server {
		if _, _, ok := signedcard.ParseID(peer); !ok {
			return nil
		}
		s := mcp.NewServer(&mcp.Implementation{Name: "parley", Version: n.o.Version}, &mcp.ServerOptions{Capabilities: &mcp.ServerCapabilities{
			Tools: &mcp.ToolCapabilities{ListChanged: true}, Resources: &mcp.ResourceCapabilities{ListChanged: true}, Prompts: &mcp.PromptCapabilities{ListChanged: true},
		}})
		n.serve(s, peer, owner.ID)
		return s
	})
	return func() {
		l.Close()
		access.Leave()
	}, nil
}

// serve shows an owner's tools for as long as the server has its session.
func (n *Network) serve(s *mcp.Server, peer, owner string) {
	stop := n.o.Tools.ServePeer(s, peer, owner)
	var once sync.Once
	s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			once.Do(func() {
				session, ok := req.GetSession().(*mcp.ServerSession)
				if !ok {
					return
				}
				go func() { // ends with the session, which the listener ends at the latest
					_ = session.Wait() // how it ended does not matter
					stop()
				}()
			})
			return next(ctx, method, req)
		}
	})
}

// compareTools takes in the tools whose cards have come, and drops those that are gone.
// names are what the paired hubs are called. One goroutine at a time calls it.
func (n *Network) compareTools(names map[identity.PublicKey]string) {
	if n.o.Tools == nil {
		return
	}
	here := make(map[string]agent.Card)
	for _, card := range n.node.Registry().Remote() {
		if n.toolsName(card, names) != "" {
			here[card.ID] = card
		}
	}
	for id, t := range n.takenNow() {
		card, there := here[id]
		if !there || t.lost || t.as != card.Identity() || t.name != n.toolsName(card, names) {
			n.tools.mu.Lock()
			delete(n.tools.taken, id)
			n.tools.mu.Unlock()
			t.drop()
		}
	}
	now := n.takenNow()
	for id, card := range here {
		if _, there := now[id]; !there && len(n.takenNow()) < maxTaken {
			n.take(card, n.toolsName(card, names))
		}
	}
}

func (n *Network) takenNow() map[string]taken {
	n.tools.mu.Lock()
	defer n.tools.mu.Unlock()
	all := make(map[string]taken, len(n.tools.taken))
	for id, t := range n.tools.taken {
		all[id] = *t
	}
	return all
}

// toolsName is what the tools behind a card are called here, "" if they have no place.
func (n *Network) toolsName(card agent.Card, names map[identity.PublicKey]string) string {
	name, key, ok := signedcard.ParseID(card.ID)
	peer, paired := names[key]
	owner, tools := strings.CutPrefix(name, toolsPrefix)
	if !ok || !paired || !tools || card.Tier < n.o.PeerTier || n.front(card.Tier) == nil {
		return ""
	}
	return peer + "." + owner
}

// take takes in the tools behind a card.
func (n *Network) take(card agent.Card, name string) {
	_, key, _ := signedcard.ParseID(card.ID)
	owner := strings.TrimPrefix(strings.TrimSuffix(card.ID, "@"+key.String()), toolsPrefix)
	t := &taken{name: name, as: card.Identity()}
	front := n.front(card.Tier)
	var err error
	t.drop, err = n.o.Tools.TakePeer(mounts.PeerTools{
		Name: name, As: t.as, Source: signedcard.ID(owner, key),
		Dial: func(context.Context) (mcp.Transport, error) {
			return toolbox.Over(n.node.Parley().Router(), front.id, card.ID), nil
		},
	})
	if err != nil {
		n.log.Warn("another hub's tools have no place here", "tools", name, "error", err)
		t.drop = func() {}
	}
	n.tools.mu.Lock()
	n.tools.taken[card.ID] = t
	n.tools.mu.Unlock()
}

// toolsLost has the tools behind a card taken anew, whose link broke: nobody answers the
// calls that run. It does not block.
func (n *Network) toolsLost(cardID string) {
	n.tools.mu.Lock()
	t := n.tools.taken[cardID]
	if t != nil {
		t.lost = true
	}
	n.tools.mu.Unlock()
	if t != nil {
		n.wake()
	}
}

// closeTools ends all sharing, after the goroutines that begin it.
func (n *Network) closeTools() {
	for _, t := range n.takenNow() {
		t.drop()
	}
	for _, o := range n.tools.offered {
		o.end()
	}
}
