package peers

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// kept is a durable agent of another hub. It is registered again when the hub starts, whether its hub can be reached or not:
// its tasks wait for it.
type kept struct {
	Local string     `json:"id"` // at this hub
	ID    string     `json:"globalId"`
	Name  string     `json:"name"`
	Tier  agent.Tier `json:"tier"`
	// Marks are the protocols of its card, which say what kind of session it is, a line for each; see [node.SessionOf].
	Marks string    `json:"marks,omitempty"`
	Since time.Time `json:"since,omitzero"` // since when its card is missing; zero while it is not
}

func (k kept) Key() string { return k.Local }

func keptPath(dataDir string) string { return filepath.Join(dataDir, "peer-sessions.json") }

// restore registers the durable agents of the hub's last run.
func (p *Peers) restore() {
	for _, x := range p.kept.All() {
		name, key, ok := signedcard.ParseID(x.ID)
		peer := ""
		for _, e := range p.allow.Entries() {
			if e.Key == key {
				peer = NameOf(e)
			}
		}
		if !ok || !runner.ValidID(x.Local) || peer == "" || x.Local != peer+"."+name {
			p.forget(x.Local)
			continue
		}
		r := &remote{peers: p, id: x.ID, local: x.Local, peer: peer, durable: true}
		r.since = x.Since
		p.register(r, agent.Card{ID: x.ID, Name: x.Name, Tier: x.Tier, Protocols: node.AsOffline(lines(x.Marks))})
	}
}

// lines returns the lines of a text, none of an empty one.
func lines(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}

// keep stores a durable agent, so that its tasks go on after a restart.
func (p *Peers) keep(r *remote) {
	if !r.durable {
		return
	}
	r.mu.Lock()
	x := kept{Local: r.local, ID: r.id, Name: r.card.Name, Tier: r.card.Tier, Marks: strings.Join(r.card.Protocols, "\n"), Since: r.since.UTC().Round(0)}
	r.mu.Unlock()
	if err := p.kept.Put(x); err != nil {
		p.log.Error("a peer's session cannot be stored; its tasks may wait after a restart", "agent", r.local, "error", err)
	}
}

func (p *Peers) forget(local string) {
	if err := p.kept.Remove(local); err != nil {
		p.log.Warn("the list of the peers' sessions cannot be stored", "error", err)
	}
}

// patience is how long an agent stays without a card: a session as long as its own hub keeps it, unless that can be reached and has it no more.
func (p *Peers) patience(r *remote, reachable bool) time.Duration {
	if r.durable && !reachable {
		return sessionTime
	}
	return graceTime
}

// busy reports whether an agent has tasks that must not be lost.
func (p *Peers) busy(r *remote) bool {
	info, err := p.o.Hub.Agent(r.local)
	return r.durable && err == nil && info.Running+info.Queued > 0
}
