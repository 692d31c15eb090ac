package swarm

import (
	"sync"
	"time"
)

// Rate limits of an agent at a coordinator, in all swarms together. Each sub-task adds an
// allowance for its result, so a participant that works properly never reaches them.
const (
	messageBurst = 1000 // messages
	messageRate  = 50   // a second
	inBurst      = 16 << 20
	inRate       = 1 << 20 // bytes a second that arrive

	workMessages = 4 // more messages for each sub-task that it is given
	workBytes    = 2 * MaxResult

	refusalRate = 1 // refusals that are reported to the agent, a second
)

// Limits of an agent in one swarm.
const (
	changeCost  = 256 // bytes that a change of the shared state takes in the journal besides its key and value
	stateBurst  = 4   // requests for the whole shared state
	stateRate   = 0.1 // a second
	returnBurst = 10  // returns after a removal; one more each lease
)

// bucket is a token bucket. Its owner locks.
type bucket struct {
	tokens, burst, rate float64 // rate is a second's
	at                  time.Time
}

func newBucket(burst, rate float64) bucket {
	return bucket{tokens: burst, burst: burst, rate: rate, at: time.Now()}
}

// take removes n tokens, or none if there are fewer.
func (b *bucket) take(n float64) bool {
	now := time.Now()
	b.tokens = min(b.burst, b.tokens+now.Sub(b.at).Seconds()*b.rate)
	b.at = now
	if b.tokens < n {
		return false
	}
	b.tokens -= n
	return true
}

// takeOne takes a token from an agent's bucket, which it makes if necessary.
func takeOne(all map[string]*bucket, id string, burst, rate float64) bool {
	if all[id] == nil {
		b := newBucket(burst, rate)
		all[id] = &b
	}
	return all[id].take(1)
}

func (b *bucket) give(n float64) { b.tokens = min(b.burst, b.tokens+n) }

// allowance is what is left of the limits of an agent.
type allowance struct {
	messages, in, refusals bucket
}

// limits are the rate limits of all agents. The zero value is ready. It is safe for concurrent use.
type limits struct {
	mu  sync.Mutex
	all map[string]*allowance // by agent
}

// maxLimits is how many agents' allowances are kept; beyond it full allowances are dropped.
const maxLimits = 10_000

// of returns an agent's allowance. m.mu is held.
func (m *limits) of(id string) *allowance {
	if a := m.all[id]; a != nil {
		return a
	}
	if m.all == nil {
		m.all = make(map[string]*allowance)
	}
	if len(m.all) >= maxLimits {
		for other, a := range m.all {
			if time.Since(a.messages.at) > time.Minute {
				delete(m.all, other)
			}
		}
	}
	a := &allowance{
		messages: newBucket(messageBurst, messageRate), in: newBucket(inBurst, inRate), refusals: newBucket(1, refusalRate),
	}
	m.all[id] = a
	return a
}

// allowMessage counts a message of n bytes and reports whether it is allowed.
func (m *limits) allowMessage(id string, n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.of(id)
	return a.messages.take(1) && a.in.take(float64(n))
}

// allowRefusal counts a refusal and reports whether it may be sent.
func (m *limits) allowRefusal(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of(id).refusals.take(1)
}

// grantWork adds the allowance for a sub-task.
func (m *limits) grantWork(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.of(id)
	a.messages.give(workMessages)
	a.in.give(workBytes)
}
