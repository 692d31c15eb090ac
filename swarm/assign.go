package swarm

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
)

// worker is an agent that can get sub-tasks.
type worker struct {
	id   string
	has  func(capability string) bool
	load int // sub-tasks that it has, here and elsewhere
}

func (w *worker) can(capabilities []string) bool {
	return !slices.ContainsFunc(capabilities, func(c string) bool { return !w.has(c) })
}

// distribute assigns each sub-task to the least loaded worker that can do it. With
// everybody, a worker without a sub-task then gets one of another's, if capabilities
// allow. The result is by sub-task, without those that no worker can do.
func distribute(parts []*SubTask, workers []*worker, everybody bool) map[string]*worker {
	d := &distribution{pools: make(map[string]*pool), to: make(map[string]*worker, len(parts)), counts: make(map[*worker]int), parts: parts}
	for _, t := range parts {
		d.pool(t, workers)
	}
	// First the sub-tasks that few workers can do, while these are free.
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

// pool returns the workers that can do a sub-task.
func (d *distribution) pool(t *SubTask, workers []*worker) *pool {
	key := strings.Join(t.RequiredCapabilities, "\n")
	if p := d.pools[key]; p != nil {
		return p
	}
	p := new(pool)
	for _, w := range workers {
		if w.can(t.RequiredCapabilities) {
			p.entries = append(p.entries, heapEntry{w, w.load})
		}
	}
	p.size = len(p.entries)
	heap.Init(p)
	d.pools[key] = p
	return p
}

// serve finds a sub-task for a worker without one: of a worker that has several, or of
// one that can get another instead (an augmenting path).
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

// pool is a heap of workers with the same capabilities, the least loaded first. Loads
// only grow meanwhile, so an entry's load may be too low but never too high.
type pool struct {
	entries []heapEntry
	size    int
}

type heapEntry struct {
	w    *worker
	load int
}

// take returns the least loaded worker and counts one more for it.
func (p *pool) take() *worker {
	if len(p.entries) == 0 {
		return nil
	}
	for p.entries[0].load != p.entries[0].w.load {
		p.entries[0].load = p.entries[0].w.load
		heap.Fix(p, 0)
	}
	w := p.entries[0].w
	w.load++
	return w
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (p *pool) Len() int { return len(p.entries) }
func (p *pool) Less(i, j int) bool {
	a, b := p.entries[i], p.entries[j]
	return cmp.Or(cmp.Compare(a.load, b.load), strings.Compare(a.w.id, b.w.id)) < 0
}
func (p *pool) Swap(i, j int) { p.entries[i], p.entries[j] = p.entries[j], p.entries[i] }
func (p *pool) Push(any)      { panic("a pool does not grow") }
func (p *pool) Pop() any      { panic("a pool does not shrink") }
