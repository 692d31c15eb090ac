package swarm

import (
	"maps"
	"time"
)

// watchJournal takes over swarms without a leader, and deletes old journals.
func (c *Coordinator) watchJournal() {
	type seen struct {
		sequence uint64
		at       time.Time
		ended    bool
	}
	known := make(map[string]seen)
	for first := true; ; {
		last, err := c.o.Journal.Last(c.ctx)
		if err != nil && c.ctx.Err() == nil {
			c.o.Logger.Warn("the journal of swarms cannot be read", "error", err)
		}
		now := time.Now()
		maps.DeleteFunc(known, func(id string, _ seen) bool { return err == nil && last[id] == 0 })
		for id, sequence := range last {
			s := known[id]
			if s.sequence != sequence {
				s = seen{sequence: sequence, at: now}
				if first && c.o.Sole {
					s.ended = c.takeOver(id, true)
				}
				known[id] = s
				continue
			}
			switch rested := now.Sub(s.at); {
			case s.ended && rested > c.o.Keep:
				if err := c.forget(c.ctx, id); err != nil {
					c.o.Logger.Warn("the journal of a swarm cannot be deleted", "swarm", id, "error", err)
				}
			case !s.ended && rested > c.o.Takeover && c.leader(id) == nil:
				s.ended = c.takeOver(id, false)
				known[id] = s
			}
		}
		first = first && err != nil // later swarms are led by their creators
		select {
		case <-time.After(c.o.Takeover / 3):
		case <-c.ctx.Done():
			return
		}
	}
}

// takeOver leads a swarm whose coordinator is silent; with own, only one of this agent.
// It reports whether the swarm has ended, so that there is nothing to lead.
func (c *Coordinator) takeOver(id string, own bool) (ended bool) {
	if !c.hasCapacity() {
		return false // before the journal is read, since this may last long
	}
	x, err := load(c.ctx, c.o.Journal, id)
	if err != nil {
		c.o.Logger.Warn("a swarm cannot be taken over", "swarm", id, "error", err)
		return false
	}
	if x.s.Status.Ended() {
		return true
	}
	if own && x.s.Coordinator != c.id || c.leader(id) != nil {
		return false
	}
	s, err := c.lead(c.ctx, id, x, event{Took: &took{Coordinator: c.id}})
	switch code := CodeOf(err); {
	case err == nil:
		c.o.Logger.Info("a swarm is taken over", "swarm", id, "epoch", s.Epoch)
	case code == CodeState, code == CodeFull, code == CodeClosed, code == CodeConflict: // it is led, or cannot be
	default:
		c.o.Logger.Warn("a swarm cannot be taken over", "swarm", id, "error", err)
	}
	return false
}
