package peers

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
)

// PeerStatus is the status of a paired hub as this one sees it.
type PeerStatus struct {
	Name string
	Key  identity.PublicKey
	// Via are the transports with recent messages from it. It need not have paired with this hub.
	Via []agent.Transport
	// LastSeen is the time of its last message; zero for none since this hub started.
	LastSeen time.Time
	// Agents are the ids here of its announced agents, sorted.
	Agents []string
	// Problem is why its statements or one of its agents are refused; nil for none.
	Problem error
}

// Status returns the status of the paired hubs in the order of the allow-list. It does not block.
func (p *Peers) Status() []PeerStatus {
	agents := make(map[identity.PublicKey][]string)
	for _, r := range p.all() {
		if _, here := p.node.Registry().Identity(r.id); here {
			_, key, _ := signedcard.ParseID(r.id) // it was read from a card
			agents[key] = append(agents[key], r.local)
		}
	}
	rejected := p.problems()
	var all []PeerStatus
	for _, e := range p.allow.Entries() {
		s := PeerStatus{Name: NameOf(e), Key: e.Key, Agents: agents[e.Key]}
		slices.Sort(s.Agents)
		s.LastSeen, s.Problem = p.ledger.LastSeen(e.Key)
		if s.Problem == nil {
			s.Problem = rejected[e.Key]
		}
		for transport, c := range p.sources {
			at := c.LastSeen(e.Key)
			if at.After(s.LastSeen) {
				s.LastSeen = at
			}
			if time.Since(at) < cardLife {
				s.Via = append(s.Via, transport)
			}
		}
		slices.Sort(s.Via)
		all = append(all, s)
	}
	return all
}

// problems returns, by hub, why agents cannot be registered here: a local agent already has the name, for example.
func (p *Peers) problems() map[identity.PublicKey]error {
	p.mu.Lock()
	defer p.mu.Unlock()
	problems := make(map[identity.PublicKey]error)
	for _, id := range slices.Sorted(maps.Keys(p.rejected)) {
		_, key, _ := signedcard.ParseID(id) // it was read from a card
		m := p.rejected[id]
		err := fmt.Errorf("its agent cannot be registered here as %s: %w", m.local, m.why)
		if before := problems[key]; before != nil {
			err = fmt.Errorf("%w; %w", before, err) // one line
		}
		problems[key] = err
	}
	return problems
}
