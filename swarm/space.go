package swarm

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// How much of the journals' room must be free: a share of all of it. So changes of the
// shared state and new swarms are refused while those that run can still go on.
const (
	spaceForNew     = 4 // a quarter, to begin a swarm
	spaceForChanges = 8 // an eighth, for a change of the shared state
)

// room sees to it that a record of n bytes fits, and, with a share that is not 0, that
// a part of all the room is free besides. The journals of swarms that have ended give
// way, the oldest first; where that is not enough the error is [ErrFull].
func (c *Coordinator) ensureSpace(ctx context.Context, n int, share int64) error {
	enough := func() (bool, error) {
		free, total, err := c.o.Journal.Room(ctx)
		if err != nil {
			return true, nil //nolint:nilerr // storing the record will show what is wrong
		}
		wanted := int64(n)
		if share > 0 {
			wanted += total / share
		}
		c.nearlyFull.Store(free < total/spaceForChanges)
		if wanted > total {
			return false, ErrFull // whatever gives way
		}
		return free >= wanted, nil
	}
	if ok, err := enough(); ok || err != nil {
		return err
	}
	select {
	case c.evicting <- struct{}{}: // one at a time, or more would give way than have to
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.evicting }()
	for {
		if ok, err := enough(); ok || err != nil {
			return err
		}
		gave, err := c.evict(ctx)
		if err != nil {
			return nil //nolint:nilerr // as above: nobody knows that nothing can give way
		}
		if !gave {
			return ErrFull
		}
	}
}

// giveWay forgets the swarm that ended the longest time ago, but none that has just
// ended. It reports whether there was one; the error is that of a journal that does not
// tell.
func (c *Coordinator) evict(ctx context.Context) (bool, error) {
	last, err := c.o.Journal.Last(ctx)
	if err != nil {
		return false, err
	}
	ids := slices.SortedFunc(maps.Keys(last), func(a, b string) int { return cmp.Compare(last[a], last[b]) })
	for _, id := range ids {
		if c.leader(id) != nil || c.endedRecently(id) {
			continue
		}
		s, err := c.cache.sessionAt(ctx, id, last[id])
		if err != nil || !s.Status.Ended() {
			continue
		}
		if err := c.forget(ctx, id); err != nil {
			c.o.Logger.Warn("the journal of a swarm cannot be deleted", "swarm", id, "error", err)
			continue
		}
		c.o.Logger.Warn("a swarm that has ended is forgotten early: the journals are full", "swarm", id, "status", s.Status)
		return true, nil
	}
	return false, ctx.Err()
}

// gaveWay is giveWay for who tries again anyway.
func (c *Coordinator) evicted(ctx context.Context) bool {
	gave, err := c.evict(ctx)
	return gave && err == nil
}

// noRoom is what the creator of a swarm is told.
func noSpace(id string, err error) error {
	if !errors.Is(err, ErrFull) {
		return err
	}
	return &Error{Code: CodeNoRoom, Subject: id, Message: "there is no room for another swarm: those that run need what is left of the journals' room"}
}

// graceTime is for how long a swarm that has ended does not give way: somebody may be
// about to fetch its outcome.
const graceTime = time.Minute

// noteEnd notes when a swarm has ended.
func (c *Coordinator) noteEnd(l *leader) {
	if l.end.Load() == nil {
		return // another leads it on
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.ended, func(_ string, at time.Time) bool { return time.Since(at) > graceTime })
	c.ended[l.id] = time.Now()
}

// fresh reports whether a swarm has just ended.
func (c *Coordinator) endedRecently(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.ended[id]
	return ok && time.Since(at) <= graceTime
}

// forget deletes a swarm's journal.
func (c *Coordinator) forget(ctx context.Context, id string) error {
	c.cache.forget(id)
	return c.o.Journal.Forget(ctx, id)
}

// overflow ends a swarm that the journals have no room for: what this batch has decided
// is not stored, and nobody was told of it. The end has room kept for it. It reports
// false if not even that can be stored, or another leads the swarm meanwhile.
func (l *leader) failFull(ctx context.Context) bool {
	x, err := load(ctx, l.c.o.Journal, l.id)
	if err != nil {
		l.c.o.Logger.Error("a swarm cannot be led on", "swarm", l.id, "error", err)
		return false
	}
	if x.s.Sequence != l.x.s.Sequence { // nothing was appended that would have shown it
		l.c.o.Logger.Warn("another coordinator leads the swarm now", "swarm", l.id)
		return false
	}
	l.c.o.Logger.Error("a swarm fails: the journals are full, and hold nothing but swarms that run", "swarm", l.id)
	l.x, l.events, l.effects = x, nil, nil
	clear(l.changed)
	l.bulk = 0
	l.fail(ctx, ErrFull.Message+"; stop other swarms, or give the journals more room")
	return l.commit(ctx)
}

// final reports whether events have room kept for them: a swarm's failure, and that
// somebody leads it who can tell of it.
func final(events []event) bool {
	return slices.ContainsFunc(events, func(e event) bool { return e.Took != nil || e.Status != nil && e.Status.Status == Failed })
}
