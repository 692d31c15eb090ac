package registry

import (
	"context"
	"maps"
	"sync"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/wait"
)

// MemoryNetwork is a discovery network for registries of one process, for tests. The
// zero value is ready; it is safe for concurrent use.
type MemoryNetwork struct {
	mu      sync.Mutex
	members map[*memorySource]map[string]announced
	changed wait.Signal
	beats   uint64 // announcements so far
}

type announced struct {
	card agent.Card
	beat uint64 // differs between announcements
}

// Join returns a [Source] for one registry, which is also an [Announcer] and a [Finder].
func (n *MemoryNetwork) Join() Source {
	s := &memorySource{n: n}
	n.change(func() { n.members[s] = make(map[string]announced) })
	return s
}

// change makes a change and wakes the sources.
func (n *MemoryNetwork) change(do func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.members == nil {
		n.members = make(map[*memorySource]map[string]announced)
	}
	do()
	n.changed.Send()
}

// others returns what the other sources announce, and a channel that the next change closes.
func (n *MemoryNetwork) others(s *memorySource) (map[string]announced, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make(map[string]announced)
	for member, cards := range n.members {
		if member != s {
			maps.Copy(all, cards)
		}
	}
	return all, n.changed.Wait()
}

type memorySource struct{ n *MemoryNetwork }

func (s *memorySource) Discover(ctx context.Context, sink Sink) error {
	known := make(map[string]uint64)
	for {
		now, changed := s.n.others(s)
		for id, a := range now {
			if known[id] == a.beat {
				continue
			}
			known[id] = a.beat
			if err := sink.Found(a.card); err != nil {
				sink.r.report(ctx, sink.source, err)
			}
		}
		for id := range known {
			if _, still := now[id]; !still {
				delete(known, id)
				sink.Lost(id)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func (s *memorySource) Announce(_ context.Context, card agent.Card) error {
	s.n.change(func() {
		s.n.beats++
		s.n.members[s][card.ID] = announced{card.Clone(), s.n.beats}
	})
	return nil
}

func (s *memorySource) Withdraw(_ context.Context, id string) error {
	s.n.change(func() { delete(s.n.members[s], id) })
	return nil
}

func (s *memorySource) Find(_ context.Context, q Query) ([]agent.Card, error) {
	all, _ := s.n.others(s)
	var cards []agent.Card
	for _, a := range all {
		if q.ID != "" && a.card.ID == q.ID || q.ID == "" && a.card.Has(q.Capability) {
			cards = append(cards, a.card)
		}
	}
	return cards, nil
}
