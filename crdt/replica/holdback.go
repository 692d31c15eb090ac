package replica

import (
	"time"

	"github.com/parleyhub/parley/crdt"
)

// held is an update that came before another which its maker had seen.
type held struct {
	m    *Message
	u    *crdt.Update
	from *link
	at   time.Time
}

// dependency is an update: the n-th of a session.
type dependency struct {
	key string
	n   uint64
}

// holdback delivers updates in causal order: each after those that its maker had
// applied. The engine would converge without; but observers see causes before
// effects, and structs are seldom parked. It is bounded: beyond a bound a sender's
// held updates are dropped, and the state is asked for instead.
type holdback struct {
	clock   map[string]uint64 // updates that were delivered, by session
	bySeq   map[dependency]*held
	waiters map[dependency][]*held // by the one delivery that each waits for next
	count   map[string]int         // held, by session
	bytes   int
}

// Bounds of what is held back.
const (
	maxHeld        = 1024
	maxHeldBytes   = 4 << 20
	maxHeldSession = 256
	maxHeldAge     = 10 * time.Second
)

func newHoldback() *holdback {
	return &holdback{clock: map[string]uint64{}, bySeq: map[dependency]*held{}, waiters: map[dependency][]*held{}, count: map[string]int{}}
}

// known reports whether an update was delivered or is held.
func (h *holdback) known(m *Message) bool {
	if m.Seq <= h.clock[m.key()] {
		return true
	}
	return h.bySeq[dependency{m.key(), m.Seq}] != nil
}

// unmet returns a delivery that an update has to wait for.
func (h *holdback) unmet(m *Message) (dependency, bool) {
	if h.clock[m.key()] < m.Seq-1 {
		return dependency{m.key(), m.Seq - 1}, true
	}
	for key, n := range m.VectorClock {
		if key != m.key() && h.clock[key] < n {
			return dependency{key, n}, true
		}
	}
	return dependency{}, false
}

// hold keeps an update. It returns false if a bound was reached: then the
// session's held updates are gone.
func (h *holdback) hold(x *held, on dependency) bool {
	key := x.m.key()
	h.bySeq[dependency{key, x.m.Seq}] = x
	h.waiters[on] = append(h.waiters[on], x)
	h.count[key]++
	h.bytes += len(x.m.Payload)
	if len(h.bySeq) > maxHeld || h.bytes > maxHeldBytes || h.count[key] > maxHeldSession {
		h.drop(key)
		return false
	}
	return true
}

func (h *holdback) release(x *held) {
	key := x.m.key()
	delete(h.bySeq, dependency{key, x.m.Seq})
	h.bytes -= len(x.m.Payload)
	if h.count[key]--; h.count[key] == 0 {
		delete(h.count, key)
	}
}

// drop forgets what is held of a session.
func (h *holdback) drop(key string) {
	for d, x := range h.bySeq {
		if d.key == key {
			h.release(x)
		}
	}
	for on, list := range h.waiters {
		kept := list[:0]
		for _, x := range list {
			if x.m.key() != key {
				kept = append(kept, x)
			}
		}
		if len(kept) == 0 {
			delete(h.waiters, on)
		} else {
			h.waiters[on] = kept
		}
	}
}

// expired returns the sessions of which something is held for too long.
func (h *holdback) expired(now time.Time) []string {
	var keys []string
	for d, x := range h.bySeq {
		if now.Sub(x.at) >= maxHeldAge {
			keys = append(keys, d.key)
		}
	}
	return keys
}

// delivered counts an update and returns those that waited for it.
func (h *holdback) delivered(m *Message) []*held {
	d := dependency{m.key(), m.Seq}
	h.clock[d.key] = d.n
	list := h.waiters[d]
	delete(h.waiters, d)
	return list
}

// advance takes over the clock of a state that was applied, and returns what may go
// on now.
func (h *holdback) advance(clock map[string]uint64) []*held {
	for key, n := range clock {
		h.clock[key] = max(h.clock[key], n)
	}
	var free []*held
	for on, list := range h.waiters {
		if h.clock[on.key] >= on.n {
			free = append(free, list...)
			delete(h.waiters, on)
		}
	}
	return free
}
