package mesh

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

// take uses a limit up by one, or says when it allows the next
// (REQ-ABUSE-005). The times of the last uses are on the bus: they count for
// whichever process has the agent's identity.
func (n *Network) take(ctx context.Context, b *bus.Bus, guid string, l limit) error {
	var refused *Error
	key := cell{bucketStream + n.limitsBucket(), bucketKeys + n.limitsBucket() + "." + guid + "." + l.name}
	_, err := key.change(ctx, b, func(v value) ([]byte, error) {
		now := n.clock.now()
		uses := recent(v.data, now.Add(-l.per), now)
		if len(uses) < l.most {
			return encodeUses(append(uses, now)), nil
		}
		wait := uses[0].Add(l.per).Sub(now)
		refused = &Error{
			Category:   RateLimitError,
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
			return &Error{Category: RateLimitError, Message: "Too many requests at once.", Remedy: "Try again in a second.",
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
