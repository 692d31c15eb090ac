package negotiation

import (
	"maps"
	"slices"
)

// entry is one proposal of a store.
type entry struct {
	p         Proposal
	incoming  bool          // another agent made it
	done      chan struct{} // closed when it is settled, or the Negotiator closes
	stop      func()        // stops the timer
	answering bool          // an answer is being sent
	expired   bool          // the deadline passed meanwhile
	refused   bool          // the proposer refused the acceptance meanwhile
}

// end stops the timer and wakes the waiters.
func (x *entry) end() {
	if x.stop == nil {
		return
	}
	x.stop()
	x.stop = nil
	close(x.done)
}

func (p Proposal) timedOut() Proposal {
	p.Status = TimedOut
	return p
}

// store holds an agent's proposals within limits. Its owner locks.
type store struct {
	owner     string
	o         Options
	entries   map[string]*entry
	threads   map[string]int      // entries by correlation id
	settled   []string            // ids of settled proposals, oldest first
	aged      int                 // how many of them were settled before the last sweep
	bytes     int                 // of all entries
	ended     func(thread string) // called when the last entry of a thread is removed; may be nil
	outgoing  int                 // pending proposals of the agent
	incoming  int                 // pending proposals to the agent
	from      map[string]int      // of them, by proposer
	bytesFrom map[string]int      // of those
}

func newStore(owner string, o Options) store {
	return store{owner: owner, o: o, entries: make(map[string]*entry), threads: make(map[string]int), from: make(map[string]int), bytesFrom: make(map[string]int)}
}

// open adds a pending proposal.
func (s *store) open(p Proposal) (*entry, *Error) {
	incoming := p.Recipient == s.owner
	switch {
	case s.entries[p.ID] != nil:
		return nil, errorf(CodeSettled, p.ID, "proposal %q exists already", p.ID)
	case !incoming && s.outgoing >= s.o.MaxPending, incoming && s.incoming >= s.o.MaxPending:
		return nil, errorf(CodeFull, p.ID, "%d proposals are pending, which is the limit", s.o.MaxPending)
	case incoming && s.from[p.Proposer] >= s.o.MaxPendingPerAgent:
		return nil, errorf(CodeFull, p.ID, "%d proposals of %q are pending, which is the limit", s.o.MaxPendingPerAgent, p.Proposer)
	case incoming && s.bytesFrom[p.Proposer]+p.size() > s.o.MaxBytes/4:
		return nil, errorf(CodeFull, p.ID, "the pending proposals of %q have %d bytes, which is the limit", p.Proposer, s.bytesFrom[p.Proposer])
	}
	for s.bytes+p.size() > s.o.MaxBytes && len(s.settled) > 0 {
		s.forgetOldest()
	}
	if s.bytes+p.size() > s.o.MaxBytes {
		return nil, errorf(CodeFull, p.ID, "the pending proposals have %d bytes, which is the limit", s.bytes)
	}
	x := &entry{p: p, incoming: incoming, done: make(chan struct{})}
	s.entries[p.ID] = x
	s.threads[p.CorrelationID]++
	s.bytes += p.size()
	s.count(x, 1)
	return x, nil
}

func (s *store) count(x *entry, by int) {
	if !x.incoming {
		s.outgoing += by
		return
	}
	s.incoming += by
	s.bytesFrom[x.p.Proposer] += by * x.p.size()
	if s.from[x.p.Proposer] += by; s.from[x.p.Proposer] == 0 {
		delete(s.from, x.p.Proposer)
		delete(s.bytesFrom, x.p.Proposer)
	}
}

// settle stores the outcome of a pending proposal, and drops the oldest settled ones if there are too many.
func (s *store) settle(x *entry, p Proposal) {
	s.count(x, -1)
	s.bytes += p.size() - x.p.size() // an answer has texts
	x.p = p
	s.settled = append(s.settled, p.ID)
	for len(s.settled) > s.o.MaxSettled || s.bytes > s.o.MaxBytes && len(s.settled) > 1 {
		s.forgetOldest()
	}
}

func (s *store) forgetOldest() {
	s.remove(s.entries[s.settled[0]])
	s.settled = s.settled[1:]
	s.aged = max(0, s.aged-1)
}

// sweep drops the proposals that were settled before the last sweep.
func (s *store) sweep() {
	for s.aged > 0 {
		s.forgetOldest()
	}
	s.aged = len(s.settled)
}

// drop removes a pending proposal.
func (s *store) drop(x *entry) {
	s.count(x, -1)
	s.remove(x)
}

func (s *store) remove(x *entry) {
	delete(s.entries, x.p.ID)
	s.bytes -= x.p.size()
	if s.threads[x.p.CorrelationID]--; s.threads[x.p.CorrelationID] > 0 {
		return
	}
	delete(s.threads, x.p.CorrelationID)
	if s.ended != nil {
		s.ended(x.p.CorrelationID)
	}
}

func (s *store) pending() []Proposal {
	var all []Proposal
	for _, id := range slices.Sorted(maps.Keys(s.entries)) {
		if p := s.entries[id].p; p.Status == Pending {
			all = append(all, p)
		}
	}
	return all
}
