package mounts

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/toolbox"
)

// Owner is somebody here whose tools other hubs may use.
type Owner struct {
	ID string
	// As is who it is to the rules about tiers and sandboxes; an MCP server of the
	// configuration has neither tier nor sandbox.
	As agent.Identity
}

// Shared returns those whose tools other hubs may use now, by id: those that
// Options.Shared names and that are there. What is another hub's own is not handed on.
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

// ServePeer adds to an MCP server what an owner shares, for another hub, and keeps it
// so until stop is called; hub is an id that ends in that hub's key. It is what the
// audit log names as the caller.
func (t *Tools) ServePeer(server *mcp.Server, hub, owner string) (stop func()) {
	return t.box.ServeAgent(server, hub, owner)
}

// guest tells whether a caller is another hub: no agent of this one has such an id.
func guest(id string) bool {
	_, _, ok := signedcard.ParseID(id)
	return ok
}

// permitGuest lets other hubs use what is shared; the rules about tiers and sandboxes
// have been held against the envelopes by which they ask.
func (t *Tools) permitGuest(from, to string) error {
	t.mu.Lock()
	m := t.mounted[to]
	t.mu.Unlock()
	if m == nil || m.kind == KindPeer || !t.shares(to) {
		return fmt.Errorf("peers.tools does not list %s for %s", to, from)
	}
	return nil
}

// PeerTools are those of somebody at another hub.
type PeerTools struct {
	Name string         // here
	As   agent.Identity // among hubs
	// Source is who offers them, with the key of the hub: for the audit log.
	Source string
	Dial   func(ctx context.Context) (mcp.Transport, error)
}

// Reserve keeps the names that begin with those of paired hubs, "bob." say, for the
// tools of these hubs, also while they are not there: what an agent elsewhere offers
// under such a name goes out, and does not come in until the name is free again.
// What the configuration names so is the user's choice and stays.
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
			t.drop(s.Name)
		}
	}
	if slices.ContainsFunc(before, func(peer string) bool { return !slices.Contains(peers, peer) }) {
		t.takeAll()
	}
}

// reserved tells whether a name is for the tools of another hub.
func (t *Tools) reserved(name string) bool {
	first, _, dotted := strings.Cut(name, ".")
	t.mu.Lock()
	defer t.mu.Unlock()
	return dotted && slices.Contains(t.peers, first)
}

// TakePeer takes in tools of another hub until drop is called, which waits for the
// end of it.
func (t *Tools) TakePeer(p PeerTools) (drop func(), err error) {
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

// atPeer returns who offers the tools of a name, if that is somebody at another hub.
func (t *Tools) atPeer(name string) (agent.Identity, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.mounted[name]
	if m == nil || m.kind != KindPeer {
		return agent.Identity{}, false
	}
	return m.as, true
}

// permitAtPeer holds an agent here and one at another hub against the same rules as two
// agents of this one.
func (t *Tools) permitAtPeer(from string, to agent.Identity) error {
	who, known := t.o.Node.Registry().Identity(from)
	if !known {
		return fmt.Errorf("there is no agent %q", from)
	}
	return t.o.Node.Router().MayAddress(who, to)
}
