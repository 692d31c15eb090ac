package router

import (
	"context"
	"sync"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/handlers"
)

// item is one envelope in a mailbox.
type item struct {
	e    *envelope.Envelope
	done chan<- error // receives the outcome of forwarding; may be nil
}

// mailbox queues the envelopes for one agent and calls handle with each. The pool has it while it is not empty.
type mailbox struct {
	size   int
	pool   *pool
	handle func(item)
	empty  func() // called when all were handled; may be nil

	mu      sync.Mutex
	queue   []item // a ring
	head, n int
	busy    bool          // the pool has it
	room    chan struct{} // closed when there is room again; nil if nobody waits
	closed  bool
}

// put adds an item. It reports false if the mailbox is full or closed.
func (m *mailbox) put(it item) bool {
	ok, woken := m.add(it)
	if woken {
		m.pool.submit(m)
	}
	return ok
}

// add is put, except that the caller must submit the mailbox to the pool if woken.
func (m *mailbox) add(it item) (ok, woken bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.n == m.size {
		return false, false
	}
	if m.n == len(m.queue) {
		m.grow()
	}
	m.queue[(m.head+m.n)&(len(m.queue)-1)] = it
	m.n++
	woken = !m.busy
	m.busy = true
	return true, woken
}

// grow doubles the ring, whose length is a power of two.
func (m *mailbox) grow() {
	next := make([]item, max(2*len(m.queue), 4))
	for i := range m.n {
		next[i] = m.queue[(m.head+i)&(len(m.queue)-1)]
	}
	m.queue, m.head = next, 0
}

// wait is put, except that it waits for room until ctx ends.
func (m *mailbox) wait(ctx context.Context, it item) error {
	for {
		if m.put(it) {
			return nil
		}
		m.mu.Lock()
		if m.closed {
			m.mu.Unlock()
			return errClosed
		}
		if m.n < m.size {
			m.mu.Unlock()
			continue
		}
		if m.room == nil {
			m.room = make(chan struct{})
		}
		room := m.room
		m.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// run handles items until the mailbox is empty.
func (m *mailbox) run() {
	for {
		m.mu.Lock()
		if m.n == 0 {
			m.busy = false
			if len(m.queue) > keep {
				m.queue, m.head = nil, 0 // release the memory of a burst
			}
			m.mu.Unlock()
			if m.empty != nil {
				m.empty()
			}
			return
		}
		it := m.queue[m.head]
		m.queue[m.head] = item{}
		m.head = (m.head + 1) & (len(m.queue) - 1)
		m.n--
		if m.room != nil {
			close(m.room)
			m.room = nil
		}
		m.mu.Unlock()
		m.handle(it)
	}
}

// keep bounds the ring of an empty mailbox.
const keep = 64

// load returns how many envelopes are queued or being handled.
func (m *mailbox) load() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy {
		return m.n + 1
	}
	return m.n
}

// retire closes a mailbox that is empty and idle, and reports whether it did.
func (m *mailbox) retire() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n > 0 || m.busy || m.closed {
		return false
	}
	m.closed = true
	return true
}

// close drops what is queued and accepts no more.
func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for i := range m.n {
		it := &m.queue[(m.head+i)&(len(m.queue)-1)]
		if it.done != nil {
			it.done <- errClosed
		}
		*it = item{}
	}
	m.n = 0
	if m.room != nil {
		close(m.room)
		m.room = nil
	}
}

// receiver is a local agent's mailbox with its handlers.
type receiver struct {
	*mailbox
	handlers handlers.List[Handler]
	claims   handlers.List[*claim]
}

// claim is a handler to which alone go the envelopes that it wants.
type claim struct {
	wants  func(*envelope.Envelope) bool
	handle Handler
}
