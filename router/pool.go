package router

import "sync"

// pool calls the receivers. It keeps the goroutines few when receivers are quick
// and still lets none wait for another: whenever mailboxes wait, at least one
// worker is looking for work, because one that is about to call a receiver, and
// may be held up there, first sees to it that another looks. A worker that finds
// nothing ends.
type pool struct {
	wg sync.WaitGroup // every worker

	mu      sync.Mutex
	ready   []*mailbox // a queue: from next on
	next    int
	looking int // workers that are started or awake, and not in a receiver
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
		p.start()
	}
}

func (p *pool) start() {
	p.wg.Add(1)
	go p.work()
}

func (p *pool) work() {
	defer p.wg.Done()
	for {
		m, another := p.take()
		if another {
			p.start()
		}
		if m == nil {
			return
		}
		p.serve(m)
	}
}

// take returns the next mailbox, nil if there is none, and whether another worker
// must be started to look on. The caller no longer counts as looking.
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
	return m, true // it takes this one's place among those who look
}

// serve empties a mailbox. A receiver that ends its goroutine (runtime.Goexit, as
// a failing test does) ends this worker; the rest is then left to another.
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
