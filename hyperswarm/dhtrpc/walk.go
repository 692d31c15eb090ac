package dhtrpc

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"
)

const (
	walkConcurrency = 10
	walkTries       = 3
	slowAfter       = time.Second
	maxHints        = 50
	maxVisits       = 512
)

// ErrNoNodes reports that no node answered a walk.
var ErrNoNodes = errors.New("no node of the DHT answers")

// Walk is an iterative query towards a target.
type Walk struct {
	Target   ID
	Internal bool
	Command  uint64
	Value    []byte
	// From lists nodes to start with, in addition to those of the routing table.
	From []netip.AddrPort
	// Each, if set, is called with each reply without an error, one at a time. It ends the walk by returning false.
	Each func(*Reply) bool
}

// walker is the state of a running walk. It belongs to one goroutine.
type walker struct {
	n       *Node
	w       Walk
	pending []step                              // not yet asked, nearest first
	known   map[netip.AddrPort][]netip.AddrPort // nodes seen, with the nodes that named them
	closest []*Reply                            // with ids, nearest first
	replies int
	flying  int
	slow    int
	visits  int
	table   bool // the table's nodes were added
	stopped bool
}

type step struct {
	id   ID
	addr netip.AddrPort
}

type outcome struct {
	step
	reply   *Reply // nil if there was none
	slow    bool   // no answer yet; the outcome follows, rarely before this report
	wasSlow bool   // reported as slow before
}

// Walk queries nodes ever closer to a target and returns the closest nodes that answered and have an id, at
// most 20, nearest first. It returns [ErrNoNodes] if none of the known nodes answered, or ctx's error.
func (n *Node) Walk(ctx context.Context, w Walk) ([]*Reply, error) {
	ctx, cancel := context.WithCancel(ctx)
	q := &walker{n: n, w: w, known: make(map[netip.AddrPort][]netip.AddrPort)}
	results := make(chan outcome, 2*maxVisits) // room for all: nobody reads after the walk
	defer cancel()
	for _, a := range w.From {
		q.add(a, netip.AddrPort{})
	}
	if len(w.From) < closeness {
		q.addTable(ctx)
	}
	for {
		for q.flying-q.slow < walkConcurrency && !q.stopped {
			s, ok := q.next()
			if !ok {
				break
			}
			q.flying++
			n.background.Go(func() { q.n.visit(ctx, w, s, results) })
		}
		if q.finished() {
			if q.replies < 5 && !q.table && !q.stopped {
				q.addTable(ctx)
				continue
			}
			break
		}
		select {
		case o := <-results:
			q.handle(o)
		case <-ctx.Done():
			return q.closest, ctx.Err()
		case <-n.ctx.Done():
			return q.closest, context.Canceled
		}
	}
	if q.replies == 0 && q.visits > 0 {
		return nil, ErrNoNodes
	}
	return q.closest, nil
}

// visit asks one node, and reports when the answer takes longer than slowAfter.
func (n *Node) visit(ctx context.Context, w Walk, s step, results chan<- outcome) {
	late := time.AfterFunc(slowAfter, func() { results <- outcome{step: s, slow: true} })
	r, err := n.Call(ctx, s.addr, Call{Internal: w.Internal, Command: w.Command, Target: &w.Target, Value: w.Value, Tries: walkTries})
	if err != nil {
		r = nil
	}
	results <- outcome{step: s, reply: r, wasSlow: !late.Stop()}
}

// addTable adds the table's nodes, and the bootstrap nodes if the table has few.
func (q *walker) addTable(ctx context.Context) {
	q.table = true
	near := q.n.table.closest(q.w.Target, closeness)
	for _, a := range near {
		q.add(a, netip.AddrPort{})
	}
	if len(near) < closeness {
		for _, a := range q.n.resolve(ctx) {
			q.add(a, netip.AddrPort{})
		}
	}
}

// add adds a node to the pending ones, unless it is known; by named it, if valid.
func (q *walker) add(a, by netip.AddrPort) {
	if a.Port() == 0 || !a.Addr().Is4() || a.Addr().IsMulticast() || a.Addr().IsUnspecified() || a == q.n.public {
		return
	}
	// Nodes of the public network must not direct requests into a private one.
	if by.IsValid() && local(a.Addr()) && !local(by.Addr()) {
		return
	}
	if _, ok := q.known[a]; ok {
		if by.IsValid() && len(q.known[a]) < closeness {
			q.known[a] = append(q.known[a], by)
		}
		return
	}
	s := step{NodeID(a), a}
	if by.IsValid() && !q.worth(s.id) {
		return
	}
	q.known[a] = nil
	if by.IsValid() {
		q.known[a] = []netip.AddrPort{by}
	}
	at, _ := slices.BinarySearchFunc(q.pending, s, func(x, y step) int {
		if nearer(q.w.Target, x.id, y.id) {
			return -1
		}
		return 1
	})
	q.pending = slices.Insert(q.pending, at, s)
}

func local(a netip.Addr) bool { return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() }

// worth reports whether a node is nearer than the farthest of the closest.
func (q *walker) worth(id ID) bool {
	return len(q.closest) < closeness || nearer(q.w.Target, id, *q.closest[len(q.closest)-1].ID)
}

func (q *walker) next() (step, bool) {
	for len(q.pending) > 0 && q.visits < maxVisits {
		s := q.pending[0]
		q.pending = q.pending[1:]
		if q.worth(s.id) {
			q.visits++
			return s, true
		}
	}
	q.pending = nil
	return step{}, false
}

func (q *walker) finished() bool {
	if q.stopped {
		return true
	}
	return len(q.pending) == 0 && (q.flying == 0 || q.flying == q.slow && (len(q.closest) >= closeness || q.replies > 0 && q.slow <= q.replies))
}

func (q *walker) handle(o outcome) {
	if o.slow {
		q.slow++
		return
	}
	q.flying--
	if o.wasSlow {
		q.slow--
	}
	if o.reply == nil {
		q.down(o.addr)
		return
	}
	r := o.reply
	if r.Error == 0 {
		q.replies++
		if r.ID != nil {
			q.keep(r)
		}
		if q.w.Each != nil && !q.w.Each(r) {
			q.stopped = true
			return
		}
	}
	for _, a := range r.Closer {
		q.add(a, o.addr)
	}
}

// keep inserts a reply into the closest.
func (q *walker) keep(r *Reply) {
	at := len(q.closest)
	for at > 0 && nearer(q.w.Target, *r.ID, *q.closest[at-1].ID) {
		at--
	}
	q.closest = slices.Insert(q.closest, at, r)
	q.closest = q.closest[:min(len(q.closest), closeness)]
}

// down removes a node that does not answer and sends hints to the nodes that named it.
func (q *walker) down(a netip.AddrPort) {
	n := q.n
	n.table.remove(NodeID(a))
	hint := AppendAddr(nil, a)
	for _, by := range q.known[a] {
		if n.hintsLeft.Add(-1) < 0 {
			return
		}
		n.background.Go(func() {
			// A lost hint is harmless.
			_, _ = n.Call(n.ctx, by, Call{Internal: true, Command: cmdDownHint, Value: hint, Tries: 1})
		})
	}
}
