package swarm

import (
	"sync"
	"time"
)

// What an agent may cost a coordinator, in all swarms of both together. Who works as
// it should never comes near it: each sub-task brings an allowance for its result.
const (
	messageBurst = 1000 // messages
	messageRate  = 50   // a second
	inBurst      = 16 << 20
	inRate       = 1 << 20 // bytes a second that arrive

	workMessages = 4 // more messages for each sub-task that it is given
	workBytes    = 2 * MaxResult

	refusalRate = 1 // a second; of what else is refused it hears nothing
)

// What an agent may cost one swarm.
const (
	changeCost  = 256 // bytes that a change of the shared state takes in the journal beside its key and value
	stateBurst  = 4   // times that it is sent the whole shared state because it asks for it
	stateRate   = 0.1 // a second
	returnBurst = 10  // times that it may come back after it was given up; one more each lease
)

// bucket is a token bucket that may be refilled out of turn. Its owner locks.
type bucket struct {
	tokens, burst, rate float64 // rate is a second's
	at                  time.Time
}

func newBucket(burst, rate float64) bucket {
	return bucket{tokens: burst, burst: burst, rate: rate, at: time.Now()}
}

// take takes n tokens, or none if there are fewer.
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

func (b *bucket) give(n float64) { b.tokens = min(b.burst, b.tokens+n) }

// allowance is what one agent may still ask for.
type allowance struct {
	messages, in, refusals bucket
}

// meters bounds what each agent costs a coordinator. The zero value is ready. It is
// safe for concurrent use.
type limits struct {
	mu  sync.Mutex
	all map[string]*allowance // by agent
}

// maxLimits is how many agents' meters are kept: beyond it those who have been silent
// for long enough to have all of their allowance again are forgotten.
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

// arrives counts a message of n bytes. It reports whether the agent may send it.
func (m *limits) allowMessage(id string, n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.of(id)
	return a.messages.take(1) && a.in.take(float64(n))
}

// tells reports whether an agent is told of one more refusal.
func (m *limits) allowRefusal(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of(id).refusals.take(1)
}

// works gives an agent that was given a sub-task what it takes to answer.
func (m *limits) grantWork(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.of(id)
	a.messages.give(workMessages)
	a.in.give(workBytes)
}
