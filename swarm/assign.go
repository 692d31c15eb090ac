package swarm

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
)

// worker is an agent that sub-tasks can be given to.
type worker struct {
	id   string
	has  func(capability string) bool
	load int // sub-tasks that it has, here and elsewhere
}

func (w *worker) can(capabilities []string) bool {
	return !slices.ContainsFunc(capabilities, func(c string) bool { return !w.has(c) })
}

// distribute gives sub-tasks to workers by capability and load: each goes
// to the least loaded of those who can do it. With everybody, those who got none
// then take one from another, as far as capabilities allow. The result
// is by sub-task; one that nobody can do is not in it.
func distribute(parts []*SubTask, workers []*worker, everybody bool) map[string]*worker {
	d := &distribution{pools: make(map[string]*pool), to: make(map[string]*worker, len(parts)), counts: make(map[*worker]int), parts: parts}
	for _, t := range parts {
		d.pool(t, workers)
	}
	// Those that few can do come first, while these few are still free.
	order := slices.SortedStableFunc(slices.Values(parts), func(a, b *SubTask) int {
		return cmp.Compare(d.pool(a, workers).size, d.pool(b, workers).size)
	})
	for _, t := range order {
		if w := d.pool(t, workers).take(); w != nil {
			d.to[t.ID] = w
			d.counts[w]++
		}
	}
	for _, w := range workers {
		if everybody && d.counts[w] == 0 {
			d.serve(w, make(map[*worker]bool))
		}
	}
	return d.to
}

type distribution struct {
	parts  []*SubTask
	pools  map[string]*pool // by required capabilities
	to     map[string]*worker
	counts map[*worker]int // sub-tasks that each got
}

// pool returns those who can do a sub-task.
func (d *distribution) pool(t *SubTask, workers []*worker) *pool {
	key := strings.Join(t.RequiredCapabilities, "\n")
	if p := d.pools[key]; p != nil {
		return p
	}
	p := new(pool)
	for _, w := range workers {
		if w.can(t.RequiredCapabilities) {
			p.seats = append(p.seats, seat{w, w.load})
		}
	}
	p.size = len(p.seats)
	heap.Init(p)
	d.pools[key] = p
	return p
}

// serve finds a sub-task for a worker without one: from somebody who has several,
// or from somebody for whom another can be found (an augmenting path).
func (d *distribution) serve(w *worker, asked map[*worker]bool) bool {
	asked[w] = true
	var others []*SubTask
	for _, t := range d.parts {
		from := d.to[t.ID]
		if from == nil || from == w || !w.can(t.RequiredCapabilities) {
			continue
		}
		if d.counts[from] > 1 {
			d.move(t, from, w)
			return true
		}
		if !asked[from] {
			others = append(others, t)
		}
	}
	for _, t := range others {
		from := d.to[t.ID]
		if !asked[from] && d.serve(from, asked) {
			d.move(t, from, w)
			return true
		}
	}
	return false
}

func (d *distribution) move(t *SubTask, from, to *worker) {
	d.to[t.ID] = to
	d.counts[from]--
	d.counts[to]++
	from.load--
	to.load++
}

// pool is a heap of those who can do the same, the least loaded first. Loads only
// grow while it is used, so a seat's may be out of date but never too high.
type pool struct {
	seats []seat
	size  int
}

type seat struct {
	w    *worker
	load int
}

// take returns the least loaded worker and counts one more for it.
func (p *pool) take() *worker {
	if len(p.seats) == 0 {
		return nil
	}
	for p.seats[0].load != p.seats[0].w.load {
		p.seats[0].load = p.seats[0].w.load
		heap.Fix(p, 0)
	}
	w := p.seats[0].w
	w.load++
	return w
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (p *pool) Len() int { return len(p.seats) }
func (p *pool) Less(i, j int) bool {
	a, b := p.seats[i], p.seats[j]
	return cmp.Or(cmp.Compare(a.load, b.load), strings.Compare(a.w.id, b.w.id)) < 0
}
func (p *pool) Swap(i, j int) { p.seats[i], p.seats[j] = p.seats[j], p.seats[i] }
func (p *pool) Push(any)      { panic("a pool does not grow") }
func (p *pool) Pop() any      { panic("a pool does not shrink") }
