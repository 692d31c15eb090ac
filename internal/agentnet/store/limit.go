package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/bus"
)

// Limit is a rate limit: how often something may be done within any period.
type Limit struct {
	Name string // in the key
	What string // in messages
	Most int
	Per  time.Duration
	// Whose completes "are allowed" in messages, such as " to an agent"; may be empty.
	Whose string
}

// The limits of an agent.
var (
	UpdateLimit    = Limit{Name: "updates", What: "changes of your registry entry", Most: 1, Per: 10 * time.Second}
	DiscoverLimit  = Limit{Name: "discoveries", What: "queries of the registry", Most: 10, Per: time.Minute}
	MessageLimit   = Limit{Name: "messages", What: "direct messages", Most: 100, Per: time.Minute}
	BroadcastLimit = Limit{Name: "broadcasts", What: "work broadcasts", Most: 10, Per: time.Minute}
)

// refusalsPerWarning is how many refusals of an agent are one warning in the log.
const refusalsPerWarning = 3

// ownerFactor is how many times the limit of one agent the agents of one project on a computer share, so that more
// agents are not more requests for ever.
const ownerFactor = 10

// Owner returns the key of the limits that an agent shares with all agents of its project on this computer.
func Owner(cfg Config) string { return Digest(cfg.Hostname, cfg.Username, cfg.ProjectPath) }

// Use counts one use of a limit by an agent, or returns a RateLimitError that says when the next is allowed. All agents
// of the project on this computer share a ceiling of ownerFactor times the limit, because a new process may get
// another GUID.
func (s *Store) Use(ctx context.Context, b *bus.Bus, guid string, l Limit) error {
	l.Whose = " to an agent"
	if err := s.UseKey(ctx, b, guid, guid, l); err != nil || s.cfg.GUID != "" { // then the server permits no other key
		return err
	}
	l.Most *= ownerFactor
	l.Whose = ""
	l.What += " of this project's agents on this computer together"
	return s.UseKey(ctx, b, Owner(s.cfg), guid, l)
}

// UseKey counts one use of a limit under a key. The bus keeps the times of the last
// uses, so they count for every process. guid is for the log.
func (s *Store) UseKey(ctx context.Context, b *bus.Bus, key, guid string, l Limit) error {
	var refused *Error
	_, err := s.limitKey(key, l.Name).Update(ctx, b, func(v Value) (any, error) {
		now := s.Now()
		uses := usesSince(v.Data, now.Add(-l.Per), now)
		if len(uses) < l.Most {
			return encodeUses(append(uses, now)), nil
		}
		wait := uses[0].Add(l.Per).Sub(now)
		refused = &Error{
			Code:       RateLimitError,
			Message:    fmt.Sprintf("Too many %s: at most %d in %v are allowed%s.", l.What, l.Most, l.Per, l.Whose),
			Remedy:     fmt.Sprintf("Try again in %d seconds.", int(wait/time.Second)+1),
			RetryAfter: wait,
		}
		return nil, refused
	})
	switch {
	case refused != nil:
		if times := s.refusals.count(guid + l.Name); times%refusalsPerWarning == 0 {
			s.log.Warn("an agent ignores a rate limit", "guid", guid, "limit", l.Name, "refusals", times)
		}
		return refused
	case errors.Is(err, ErrConflict):
		return &Error{Code: RateLimitError, Message: "Too many requests at once.", Remedy: "Try again in a second.",
			RetryAfter: time.Second, Err: err}
	}
	return AsError(err)
}

// Turn reports whether this process is the first of all within the period.
func (s *Store) Turn(ctx context.Context, b *bus.Bus, name string, period time.Duration) (bool, error) {
	first := false
	_, err := s.limitKey("collector", name).Update(ctx, b, func(v Value) (any, error) {
		now := s.Now()
		first = len(usesSince(v.Data, now.Add(-period), now)) == 0
		if !first {
			return nil, nil
		}
		return encodeUses([]time.Time{now}), nil
	})
	return first && err == nil, AsError(err)
}

func (s *Store) limitKey(key, name string) Key {
	bucket := s.cfg.LimitsBucket()
	return Key{BucketStream + bucket, BucketKeys + bucket + "." + key + "." + name}
}

// usesSince decodes the times of uses since a moment. Times in the future, written by a
// fast clock, do not count: they would lock an agent out.
func usesSince(data []byte, since, now time.Time) []time.Time {
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

// counter counts events by name. It is safe for concurrent use.
type counter struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *counter) count(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[name]++
	return c.counts[name]
}
