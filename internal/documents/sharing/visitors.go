package sharing

import "time"

// Bounds of what one agent can make the desk do in vain.
const (
	maxRefused  = 32               // refusals in refusedFor; then it is not listened to until that is over
	refusedFor  = 10 * time.Second // since the first of them
	maxRequests = 16               // of one agent that are being answered
	maxVisitors = 4096             // agents of whom something is remembered
)

// visitors are the agents that have asked for something lately. Each method is called with the
// chair's lock held.
type visitors map[string]*visitor

// visitor is what one agent has had of the desk.
type visitor struct {
	refused int
	since   time.Time // of the first of these
	asking  int       // requests that are being answered
}

// of returns what is known of an agent, nil if nothing more can be remembered.
func (v visitors) of(agentID string, now time.Time) *visitor {
	if known := v[agentID]; known != nil {
		return known
	}
	if len(v) >= maxVisitors {
		for id, known := range v {
			if known.asking == 0 && now.Sub(known.since) >= refusedFor {
				delete(v, id)
			}
		}
		if len(v) >= maxVisitors {
			return nil
		}
	}
	v[agentID] = &visitor{}
	return v[agentID]
}

// heard reports whether an agent is listened to. One that was refused too often is not, for a
// while: what it asks for would cost the hub and its log, and be refused again.
func (v visitors) heard(agentID string, now time.Time) bool {
	known := v[agentID]
	return known == nil || known.refused < maxRefused || now.Sub(known.since) >= refusedFor
}

// refuse counts a refusal. It reports whether the agent is not listened to from now on.
func (v visitors) refuse(agentID string, now time.Time) (last bool) {
	known := v.of(agentID, now)
	if known == nil {
		return false
	}
	if now.Sub(known.since) >= refusedFor {
		known.refused, known.since = 0, now
	}
	known.refused++
	return known.refused == maxRefused
}

// ask counts a request in. It reports false if too many of the agent's are being answered.
func (v visitors) ask(agentID string, now time.Time) bool {
	known := v.of(agentID, now)
	if known == nil || known.asking >= maxRequests {
		return false
	}
	known.asking++
	return true
}

// answered counts a request out.
func (v visitors) answered(agentID string) { v[agentID].asking-- }
