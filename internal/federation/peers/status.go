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

// PeerStatus is how a paired hub is, as far as this one knows.
type PeerStatus struct {
	Name string
	Key  identity.PublicKey
	// Via are the ways by which it is heard now, none if it is not. That it is heard
	// does not say that it has paired with this hub.
	Via []agent.Transport
	// Heard is when it was heard last; zero for not since this hub started.
	Heard time.Time
	// Agents are its agents here that are announced now, in order.
	Agents []string
	// Problem is why what it says is not believed, or an agent of it has no place here;
	// nil if all is well.
	Problem error
}

// Status returns how the paired hubs are, in the order of the allow-list. It is safe for
// concurrent use and does not block.
func (n *Network) Status() []PeerStatus {
	agents := make(map[identity.PublicKey][]string)
	for _, r := range n.all() {
		if _, here := n.node.Registry().Identity(r.id); here {
			_, key, _ := signedcard.ParseID(r.id) // it was read from a card
			agents[key] = append(agents[key], r.local)
		}
	}
	misfits := n.problems()
	var all []PeerStatus
	for _, e := range n.allow.Entries() {
		s := PeerStatus{Name: NameOf(e), Key: e.Key, Agents: agents[e.Key]}
		slices.Sort(s.Agents)
		s.Heard, s.Problem = n.ledger.LastSeen(e.Key)
		if s.Problem == nil {
			s.Problem = misfits[e.Key]
		}
		for way, c := range n.ways {
			at := c.LastSeen(e.Key)
			if at.After(s.Heard) {
				s.Heard = at
			}
			if time.Since(at) < cardLife {
				s.Via = append(s.Via, way)
			}
		}
		slices.Sort(s.Via)
		all = append(all, s)
	}
	return all
}

// problems says, of each hub, which of its agents have no place here: an agent of this
// hub is called so, for one.
func (n *Network) problems() map[identity.PublicKey]error {
	n.mu.Lock()
	defer n.mu.Unlock()
	problems := make(map[identity.PublicKey]error)
	for _, id := range slices.Sorted(maps.Keys(n.misfits)) {
		_, key, _ := signedcard.ParseID(id) // it was read from a card
		m := n.misfits[id]
		err := fmt.Errorf("its agent has no place here as %s: %w", m.local, m.why)
		if before := problems[key]; before != nil {
			err = fmt.Errorf("%w; %w", before, err) // one line
		}
		problems[key] = err
	}
	return problems
}
