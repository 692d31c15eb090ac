package negotiation

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// entry is one proposal in the book.
type entry struct {
	p         Proposal
	asked     bool          // made by the other side
	done      chan struct{} // closed when it is settled, or the Negotiator closes
	stop      func()        // of the timer
	answering bool          // an answer is being sent
	expired   bool          // meanwhile its time is over
	refused   bool          // meanwhile the proposer says that it comes too late
}

// end stops the timer and wakes those who wait.
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

// book holds an agent's proposals within limits. Its owner locks.
type book struct {
	owner     string
	o         Options
	entries   map[string]*entry
	threads   map[string]int      // entries by correlation id
	old       []string            // ids of settled ones, oldest first
	aged      int                 // how many of them were settled before the last sweep
	bytes     int                 // of all entries
	ended     func(thread string) // is told of a thread whose last entry is gone; may be nil
	made      int                 // pending ones that the agent made
	asked     int                 // pending ones that it was asked
	from      map[string]int      // of them, by proposer
	bytesFrom map[string]int      // of those
}

func newBook(owner string, o Options) book {
	return book{owner: owner, o: o, entries: make(map[string]*entry), threads: make(map[string]int), from: make(map[string]int), bytesFrom: make(map[string]int)}
}

// open enters a pending proposal.
func (b *book) open(p Proposal) (*entry, *Error) {
	asked := p.Recipient == b.owner
	switch {
	case b.entries[p.ID] != nil:
		return nil, errorf(CodeSettled, p.ID, "proposal %q is known already", p.ID)
	case !asked && b.made >= b.o.MaxPending, asked && b.asked >= b.o.MaxPending:
		return nil, errorf(CodeFull, p.ID, "%d proposals wait for an answer, no more are taken", b.o.MaxPending)
	case asked && b.from[p.Proposer] >= b.o.MaxPendingPerAgent:
		return nil, errorf(CodeFull, p.ID, "%d proposals of %q wait for an answer, no more are taken", b.o.MaxPendingPerAgent, p.Proposer)
	case asked && b.bytesFrom[p.Proposer]+p.size() > b.o.MaxBytes/4:
		return nil, errorf(CodeFull, p.ID, "the proposals of %q that wait for an answer have %d bytes, no more are taken", p.Proposer, b.bytesFrom[p.Proposer])
	}
	for b.bytes+p.size() > b.o.MaxBytes && len(b.old) > 0 {
		b.forgetOldest()
	}
	if b.bytes+p.size() > b.o.MaxBytes {
		return nil, errorf(CodeFull, p.ID, "the proposals that wait for an answer have %d bytes, no more are taken", b.bytes)
	}
	x := &entry{p: p, asked: asked, done: make(chan struct{})}
	b.entries[p.ID] = x
	b.threads[p.CorrelationID]++
	b.bytes += p.size()
	b.count(x, 1)
	return x, nil
}

func (b *book) count(x *entry, by int) {
	if !x.asked {
		b.made += by
		return
	}
	b.asked += by
	b.bytesFrom[x.p.Proposer] += by * x.p.size()
	if b.from[x.p.Proposer] += by; b.from[x.p.Proposer] == 0 {
		delete(b.from, x.p.Proposer)
		delete(b.bytesFrom, x.p.Proposer)
	}
}

// settle enters what a pending proposal has become, and forgets the oldest settled
// one if there are too many.
func (b *book) settle(x *entry, p Proposal) {
	b.count(x, -1)
	b.bytes += p.size() - x.p.size() // an answer has texts, too
	x.p = p
	b.old = append(b.old, p.ID)
	for len(b.old) > b.o.MaxSettled || b.bytes > b.o.MaxBytes && len(b.old) > 1 {
		b.forgetOldest()
	}
}

// forgetOldest forgets what was settled the longest time ago.
func (b *book) forgetOldest() {
	b.remove(b.entries[b.old[0]])
	b.old = b.old[1:]
	b.aged = max(0, b.aged-1)
}

// sweep forgets what was settled before the last sweep.
func (b *book) sweep() {
	for b.aged > 0 {
		b.forgetOldest()
	}
	b.aged = len(b.old)
}

// drop takes out a pending proposal.
func (b *book) drop(x *entry) {
	b.count(x, -1)
	b.remove(x)
}

func (b *book) remove(x *entry) {
	delete(b.entries, x.p.ID)
	b.bytes -= x.p.size()
	if b.threads[x.p.CorrelationID]--; b.threads[x.p.CorrelationID] > 0 {
		return
	}
	delete(b.threads, x.p.CorrelationID)
	if b.ended != nil {
		b.ended(x.p.CorrelationID)
	}
}

func (b *book) pending() []Proposal {
	var all []Proposal
	for _, x := range b.entries {
		if x.p.Status == Pending {
			all = append(all, x.p)
		}
	}
	slices.SortFunc(all, func(p, q Proposal) int { return cmp.Compare(p.ID, q.ID) })
	return all
}

// handlers is a list of handlers. The zero value is ready.
type handlers struct {
	mu  sync.Mutex
	all []*Handler // replaced, never changed
}

func (s *handlers) add(h Handler) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(slices.Clone(s.all), &h)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = slices.DeleteFunc(slices.Clone(s.all), func(have *Handler) bool { return have == &h })
	}
}

func (s *handlers) call(ctx context.Context, p Proposal) {
	s.mu.Lock()
	all := s.all
	s.mu.Unlock()
	for _, h := range all {
		(*h)(ctx, p)
	}
}
