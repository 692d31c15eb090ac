package replica

import (
	"slices"
	"time"

	"github.com/parleyhub/parley/crdt"
)

// held is an update that waits for updates on which it depends.
type held struct {
	m    *Message
	u    *crdt.Update
	from *link
	at   time.Time
}

// dependency is the n-th update of a session.
type dependency struct {
	key string
	n   uint64
}

// causalBuffer delivers updates in causal order: each after those that its maker had applied. The engine
// converges without it, but observers see causes before effects, and structs are rarely parked. It is
// bounded: at a limit a session's updates are dropped, and the caller asks for the state instead.
type causalBuffer struct {
	clock   map[string]uint64 // number of updates delivered, by session
	bySeq   map[dependency]*held
	waiters map[dependency][]*held // by the next missing dependency
	count   map[string]int         // buffered, by session
	bytes   int
}

// Limits of the buffer.
const (
	maxBuffered        = 1024
	maxBufferedBytes   = 4 << 20
	maxBufferedSession = 256
	maxBufferedAge     = 10 * time.Second
)

func newCausalBuffer() *causalBuffer {
	return &causalBuffer{clock: map[string]uint64{}, bySeq: map[dependency]*held{}, waiters: map[dependency][]*held{}, count: map[string]int{}}
}

// known reports whether an update was delivered or is buffered.
func (b *causalBuffer) known(m *Message) bool {
	if m.Seq <= b.clock[m.key()] {
		return true
	}
	return b.bySeq[dependency{m.key(), m.Seq}] != nil
}

// unmet returns a dependency of an update that was not delivered.
func (b *causalBuffer) unmet(m *Message) (dependency, bool) {
	if b.clock[m.key()] < m.Seq-1 {
		return dependency{m.key(), m.Seq - 1}, true
	}
	for key, n := range m.VectorClock {
		if key != m.key() && b.clock[key] < n {
			return dependency{key, n}, true
		}
	}
	return dependency{}, false
}

// add buffers an update. If a limit is exceeded, it drops the buffered updates of the sender's session and reports
// false.
func (b *causalBuffer) add(x *held, on dependency) bool {
	key := x.m.key()
	b.bySeq[dependency{key, x.m.Seq}] = x
	b.waiters[on] = append(b.waiters[on], x)
	b.count[key]++
	b.bytes += len(x.m.Payload)
	if len(b.bySeq) > maxBuffered || b.bytes > maxBufferedBytes || b.count[key] > maxBufferedSession {
		b.drop(key)
		return false
	}
	return true
}

func (b *causalBuffer) release(x *held) {
	key := x.m.key()
	delete(b.bySeq, dependency{key, x.m.Seq})
	b.bytes -= len(x.m.Payload)
	if b.count[key]--; b.count[key] == 0 {
		delete(b.count, key)
	}
}

// drop drops a session's buffered updates.
func (b *causalBuffer) drop(key string) {
	for d, x := range b.bySeq {
		if d.key == key {
			b.release(x)
		}
	}
	for on, list := range b.waiters {
		if list = slices.DeleteFunc(list, func(x *held) bool { return x.m.key() == key }); len(list) == 0 {
			delete(b.waiters, on)
		} else {
			b.waiters[on] = list
		}
	}
}

// expired returns the sessions with an update that was buffered for too long.
func (b *causalBuffer) expired(now time.Time) []string {
	var keys []string
	for d, x := range b.bySeq {
		if now.Sub(x.at) >= maxBufferedAge {
			keys = append(keys, d.key)
		}
	}
	return keys
}

// delivered counts an update and returns those that waited for it.
func (b *causalBuffer) delivered(m *Message) []*held {
	d := dependency{m.key(), m.Seq}
	b.clock[d.key] = d.n
	list := b.waiters[d]
	delete(b.waiters, d)
	return list
}

// advance merges the clock of an applied state, and returns the updates that waited for it.
func (b *causalBuffer) advance(clock map[string]uint64) []*held {
	for key, n := range clock {
		b.clock[key] = max(b.clock[key], n)
	}
	var free []*held
	for on, list := range b.waiters {
		if b.clock[on.key] >= on.n {
			free = append(free, list...)
			delete(b.waiters, on)
		}
	}
	return free
}
