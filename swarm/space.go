package swarm

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// The part of the journal storage that must be free, so that running swarms can continue
// when changes of the shared state and new swarms are already refused.
const (
	spaceForNew     = 4 // a quarter, to begin a swarm
	spaceForChanges = 8 // an eighth, for a change of the shared state
)

// ensureSpace makes sure that there is space for a record of n bytes and, if share is not
// 0, for that part of the storage besides. It deletes the journals of ended swarms, the
// oldest first; if that is not enough it returns [ErrFull].
func (c *Coordinator) ensureSpace(ctx context.Context, n int, share int64) error {
	enough := func() (bool, error) {
		free, total, err := c.o.Journal.Room(ctx)
		if err != nil {
			return true, nil //nolint:nilerr // storing the record will show the error
		}
		wanted := int64(n)
		if share > 0 {
			wanted += total / share
		}
		c.nearlyFull.Store(free < total/spaceForChanges)
		if wanted > total {
			return false, ErrFull // deleting cannot help
		}
		return free >= wanted, nil
	}
	if ok, err := enough(); ok || err != nil {
		return err
	}
	select {
	case c.evicting <- struct{}{}: // one at a time, or too many would be deleted
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
			return nil //nolint:nilerr // as above
		}
		if !gave {
			return ErrFull
		}
	}
}

// evict deletes the journal of the swarm that ended first, except for recently ended ones.
// It reports whether there was one; the error is the journal's.
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
		c.o.Logger.Warn("the journal of an ended swarm is deleted early: the storage is full", "swarm", id, "status", s.Status)
		return true, nil
	}
	return false, ctx.Err()
}

// evicted is evict without the error.
func (c *Coordinator) evicted(ctx context.Context) bool {
	gave, err := c.evict(ctx)
	return gave && err == nil
}

// noSpace converts ErrFull for a swarm's creator.
func noSpace(id string, err error) error {
	if !errors.Is(err, ErrFull) {
		return err
	}
	return &Error{Code: CodeNoRoom, Subject: id, Message: "swarm journal storage is full; stop a swarm or raise bus.maxStore"}
}

// graceTime is how long the journal of an ended swarm is kept in any case, for its outcome.
const graceTime = time.Minute

func (c *Coordinator) noteEnd(l *leader) {
	if l.end.Load() == nil {
		return // another coordinator leads it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.ended, func(_ string, at time.Time) bool { return time.Since(at) > graceTime })
	c.ended[l.id] = time.Now()
}

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

// failFull fails a swarm without space for its records: it drops this batch, which had no effects, and stores the
// failure in the reserve. It reports false if even that cannot be stored, or another coordinator leads the swarm.
func (l *leader) failFull(ctx context.Context) bool {
	x, err := load(ctx, l.c.o.Journal, l.id)
	if err != nil {
		l.c.o.Logger.Error("a swarm's leader stops", "swarm", l.id, "error", err)
		return false
	}
	if x.s.Sequence != l.x.s.Sequence { // another coordinator has written
		l.c.o.Logger.Warn("another coordinator leads the swarm now", "swarm", l.id)
		return false
	}
	l.c.o.Logger.Error("a swarm fails: the journal storage is full of running swarms", "swarm", l.id)
	l.x, l.events, l.effects = x, nil, nil
	clear(l.changed)
	l.bulk = 0
	l.fail(ctx, ErrFull.Message+"; stop other swarms, or give the journals more storage")
	return l.commit(ctx)
}

// final reports whether events may use the reserve: a swarm's failure, and the takeover before it.
func final(events []event) bool {
	return slices.ContainsFunc(events, func(e event) bool { return e.Took != nil || e.Status != nil && e.Status.Status == Failed })
}
