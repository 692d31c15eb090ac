package mounts

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/toolbox"
)

// Owner is a local agent or MCP server whose tools other hubs may use.
type Owner struct {
	ID string
	// As is its identity for the rules of tiers and sandboxes; an MCP server of the configuration has neither.
	As agent.Identity
}

// Shared returns the mounted owners that Options.Shared names, sorted by id. Tools of other hubs are not shared further.
func (t *Tools) Shared() []Owner {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []Owner
	for id, m := range t.mounted {
		if m.kind != KindPeer && t.shares(id) {
			list = append(list, Owner{id, m.as})
		}
	}
	slices.SortFunc(list, func(a, b Owner) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

func (t *Tools) shares(id string) bool {
	return slices.Contains(t.o.Shared, id) || slices.Contains(t.o.Shared, "*")
}

// ServePeer serves an owner's tools on an MCP server for another hub until stop is called. hub is an id that ends in the
// hub's key; the audit log names it as the caller.
func (t *Tools) ServePeer(server *mcp.Server, hub, owner string) (stop func()) {
	return t.box.ServeAgent(server, hub, owner)
}

// PeerTools are the tools of an owner at another hub.
type PeerTools struct {
	Name   string         // of the mount
	As     agent.Identity // of the owner, among hubs
	Source string         // the owner with its hub's key, for the audit log
	Dial   func(ctx context.Context) (mcp.Transport, error)
}

// Reserve reserves the names with the prefix of a paired hub, such as "bob.", for the tools of that hub, connected or
// not. Remote agents with such a name are unmounted and stay so until the name is free. Servers of the configuration
// with such a name are kept.
func (t *Tools) Reserve(peers []string) {
	peers = slices.Sorted(slices.Values(peers))
	t.mu.Lock()
	before := t.peers
	t.peers = peers
	t.mu.Unlock()
	if slices.Equal(before, peers) {
		return
	}
	for _, s := range t.Status() {
		if s.Kind == KindAgent && t.reserved(s.Name) {
			t.unmountAgent(s.Name)
		}
	}
	if slices.ContainsFunc(before, func(peer string) bool { return !slices.Contains(peers, peer) }) {
		t.mountAgents()
	}
}

// reserved reports whether a name is reserved for the tools of another hub.
func (t *Tools) reserved(name string) bool {
	first, _, dotted := strings.Cut(name, ".")
	t.mu.Lock()
	defer t.mu.Unlock()
	return dotted && slices.Contains(t.peers, first)
}

// MountPeer mounts tools of another hub until unmount is called, which waits for the end of the connection.
func (t *Tools) MountPeer(p PeerTools) (unmount func(), err error) {
	m := &mounted{kind: KindPeer, as: p.As, redact: (*process.Redactor)(nil).Redact}
	if err := t.mount(m, toolbox.MountOptions{Name: p.Name, Source: p.Source, MaxRedial: redialAgent, Dial: p.Dial}); err != nil {
		return nil, err
	}
	return func() {
		t.mu.Lock()
		if t.mounted[p.Name] == m {
			delete(t.mounted, p.Name)
		}
		t.mu.Unlock()
		m.Close()
	}, nil
}
