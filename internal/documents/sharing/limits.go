package sharing

import "time"

// Limits of one agent's requests.
const (
	maxRefused  = 32               // refusals in refusedFor; further messages of the agent are then ignored
	refusedFor  = 10 * time.Second // since the first of the refusals
	maxRequests = 16               // concurrent requests of one agent
	maxUsages   = 4096             // agents whose usage is tracked
)

// limiter tracks the usage of each agent that sends requests. The endpoint's lock is held in every method.
type limiter map[string]*usage

// usage is what one agent has used of its limits.
type usage struct {
	refused  int
	since    time.Time // first of these refusals
	requests int       // in progress
}

// usageOf returns the usage of an agent, nil if there is no room to track it.
func (l limiter) usageOf(agentID string, now time.Time) *usage {
	if u := l[agentID]; u != nil {
		return u
	}
	if len(l) >= maxUsages {
		for id, u := range l {
			if u.requests == 0 && now.Sub(u.since) >= refusedFor {
				delete(l, id)
			}
		}
		if len(l) >= maxUsages {
			return nil
		}
	}
	l[agentID] = &usage{}
	return l[agentID]
}

// ignored reports whether an agent's messages are ignored because it was refused too often.
func (l limiter) ignored(agentID string, now time.Time) bool {
	u := l[agentID]
	return u != nil && u.refused >= maxRefused && now.Sub(u.since) < refusedFor
}

// refuse counts a refusal. It reports whether the agent's messages are ignored from now on.
func (l limiter) refuse(agentID string, now time.Time) (last bool) {
	u := l.usageOf(agentID, now)
	if u == nil {
		return false
	}
	if now.Sub(u.since) >= refusedFor {
		u.refused, u.since = 0, now
	}
	u.refused++
	return u.refused == maxRefused
}

// beginRequest counts a request as in progress. It reports false if the agent has too many.
func (l limiter) beginRequest(agentID string, now time.Time) bool {
	u := l.usageOf(agentID, now)
	if u == nil || u.requests >= maxRequests {
		return false
	}
	u.requests++
	return true
}

// endRequest counts a request as done.
func (l limiter) endRequest(agentID string) { l[agentID].requests-- }
