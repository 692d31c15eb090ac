package router

import "sync"

// pool calls the receivers, with few goroutines while receivers are quick. No receiver waits for another: while
// mailboxes are ready, at least one worker is looking for work, because a worker that is about to call a receiver
// first makes sure of that. A worker that finds nothing ends.
type pool struct {
	wg sync.WaitGroup // every worker

	mu      sync.Mutex
	ready   []*mailbox // a queue: from next on
	next    int
	looking int // workers that are not in a receiver
}

// submit queues mailboxes that have become busy.
func (p *pool) submit(list ...*mailbox) {
	p.mu.Lock()
	p.ready = append(p.ready, list...)
	start := p.looking == 0
	if start {
		p.looking++
	}
	p.mu.Unlock()
	if start {
		p.wg.Go(p.work)
	}
}

func (p *pool) work() {
	for {
		m, another := p.take()
		if another {
			p.wg.Go(p.work)
		}
		if m == nil {
			return
		}
		p.serve(m)
	}
}

// take returns the next mailbox, or nil, and whether another worker must be started.
// The caller no longer counts as looking.
func (p *pool) take() (m *mailbox, another bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == len(p.ready) {
		p.looking--
		p.ready, p.next = p.ready[:0], 0
		if cap(p.ready) > 4*keep {
			p.ready = nil
		}
		return nil, false
	}
	m = p.ready[p.next]
	p.ready[p.next] = nil
	p.next++
	if p.looking > 1 || p.next == len(p.ready) {
		p.looking--
		return m, false
	}
	return m, true // it is the one that is looking now
}

// serve empties a mailbox. If a receiver ends its goroutine (runtime.Goexit, as a
// failing test does), this worker ends and another continues.
func (p *pool) serve(m *mailbox) {
	whole := false
	defer func() {
		if !whole {
			p.submit(m)
		}
	}()
	m.run()
	whole = true
	p.mu.Lock()
	p.looking++
	p.mu.Unlock()
}
