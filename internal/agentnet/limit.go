package agentnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/bus"
)

// limit is how often something may be done in any span of time of one length.
type limit struct {
	name string // in the key
	what string // in words
	most int
	per  time.Duration
}

// The limits of an agent (REQ-ABUSE-001 to REQ-ABUSE-004).
var (
	updateLimit    = limit{"updates", "changes of your registry entry", 1, 10 * time.Second}
	discoverLimit  = limit{"discoveries", "queries of the registry", 10, time.Minute}
	messageLimit   = limit{"messages", "direct messages", 100, time.Minute}
	broadcastLimit = limit{"broadcasts", "work broadcasts", 10, time.Minute}
)

// loudRefusal is the refusals in a row from which on they are logged
// (REQ-ABUSE-006).
const loudRefusal = 3

// ownersAgents is how many kinds of agents' allowances the agents of one project on
// a computer have together: to call oneself something else does not go on for ever.
const ownersAgents = 10

// charge uses a limit up by one at each place that the agent has and can reach, or says
// when the first that is used up allows the next. To count at one of them would give
// another allowance to whoever starts a process without the hub, or waits for the link
// to go down.
func (a *Agent) charge(ctx context.Context, l limit) error {
	var outage error
	counted := false
	for _, place := range []*Agent{a.nearPlace(), a} {
		if place == nil {
			continue
		}
		b, err := place.ready()
		if err == nil {
			err = place.use(ctx, b, l)
		}
		switch {
		case err == nil:
			counted = true
		case !isConnection(err):
			return err
		default:
			outage = err
		}
	}
	if counted {
		return nil
	}
	return outage
}

// use uses a limit up by one at the agent's own bus, or says when it allows the next (REQ-ABUSE-005). It
// counts for all agents of the same kind, and with the others of the same project
// besides: who starts another process has another GUID, and no other allowance.
func (a *Agent) use(ctx context.Context, b *bus.Bus, l limit) error {
	n := a.net
	if n.cfg.GUID != "" { // the server lets it have no other, and count for no other
		return n.take(ctx, b, a.guid, a.guid, l)
	}
	kind, owner := n.allowances(a.Entry().AgentType)
	if err := n.take(ctx, b, kind, a.guid, l); err != nil {
		return err
	}
	l.most *= ownersAgents
	l.what += " of this project's agents on this computer"
	return n.take(ctx, b, owner, a.guid, l)
}

// allowances are the keys of what an agent of a type here shares with its kind, and
// with all agents of its project.
func (n *Network) allowances(agentType string) (kind, owner string) {
	owner = digest(n.cfg.Hostname, n.cfg.Username, n.cfg.ProjectPath)
	return digest(owner, agentType), owner
}

// take uses the limit of a key up by one. The times of the last uses are on the
// bus: they count for whichever process comes.
func (n *Network) take(ctx context.Context, b *bus.Bus, who, guid string, l limit) error {
	var refused *Error
	key := cell{bucketStream + n.limitsBucket(), bucketKeys + n.limitsBucket() + "." + who + "." + l.name}
	_, err := key.change(ctx, b, func(v value) ([]byte, error) {
		now := n.clock.now()
		uses := recent(v.data, now.Add(-l.per), now)
		if len(uses) < l.most {
			return encodeUses(append(uses, now)), nil
		}
		wait := uses[0].Add(l.per).Sub(now)
		refused = &Error{
			Code:       RateLimitError,
			Message:    fmt.Sprintf("Too many %s: at most %d in %v are allowed.", l.what, l.most, l.per),
			Remedy:     fmt.Sprintf("Try again in %d seconds.", int(wait/time.Second)+1),
			RetryAfter: wait,
		}
		return nil, refused
	})
	if refused != nil {
		n.refusals.count(n, guid, l)
		return refused
	}
	if err != nil {
		if errors.Is(err, errConflict) {
			return &Error{Code: RateLimitError, Message: "Too many requests at once.", Remedy: "Try again in a second.",
				RetryAfter: time.Second, Err: err}
		}
		return connectionError(err)
	}
	return nil
}

// recent reads the times of uses since a moment. What was written by a clock
// that was ahead does not count: it would lock an agent out.
func recent(data []byte, since, now time.Time) []time.Time {
	var uses []time.Time
	for ; len(data) >= 8; data = data[8:] {
		at := time.UnixMilli(int64(binary.BigEndian.Uint64(data)))
		if at.After(since) && !at.After(now.Add(time.Minute)) {
			uses = append(uses, at)
		}
	}
	return uses
}

func encodeUses(uses []time.Time) []byte {
	data := make([]byte, 0, 8*len(uses))
	for _, at := range uses {
		data = binary.BigEndian.AppendUint64(data, uint64(at.UnixMilli()))
	}
	return data
}

// refusals counts how often agents of this process were refused, so that the
// log tells of the ones that do not stop.
type refusals struct {
	mu     sync.Mutex
	counts map[string]int
}

func (r *refusals) count(n *Network, guid string, l limit) {
	r.mu.Lock()
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[guid+l.name]++
	times := r.counts[guid+l.name]
	r.mu.Unlock()
	if times%loudRefusal == 0 {
		n.log.Warn("an agent goes on although a rate limit refuses it", "guid", guid, "limit", l.name, "refusals", times)
	}
}
