package hub

import (
	"sync"
	"time"
)

const (
	// holdLease is how long turns are held after the last call of Drain.
	holdLease = 5 * time.Second
	// maxHold is how long turns are held at most, and holdPause how long they are not held after that.
	maxHold   = time.Minute
	holdPause = 4 * time.Minute
)

// holding is the time in which no turn begins, because another program waits to replace the hub. mu is locked before an agent's lock.
type holding struct {
	mu    sync.Mutex
	timer *time.Timer // ends it; nil without one
	end   time.Time   // its end, unless Drain is called again
	until time.Time   // its end at the latest
	after time.Time   // the next one begins no earlier
}

// Drain rejects further messages if the end of the hub would interrupt no task, and else returns how many tasks it would
// interrupt. Then the turns that have not begun are held for some seconds, in the queues of the agents that the hub has
// started with, so that a hub with much to do becomes idle, too; those of delegated tasks are not, because others may wait for them.
// After a minute of repeated calls the hub works as before for four. Tasks that are held do not count, and are begun by the
// next hub; tasks of durable agents do not count either: they survive the hub. Whoever has drained the hub closes it.
func (h *Hub) Drain() (busy int) {
	h.holding.mu.Lock()
	defer h.holding.mu.Unlock()
	h.hold()
	if busy = h.interruptible(); busy > 0 {
		return busy
	}
	h.draining.Store(true) // a message that is accepted from here on is rejected, and one that is being accepted counts
	if busy = h.interruptible(); busy > 0 {
		h.draining.Store(false)
	}
	return busy
}

// hold begins to hold turns, or goes on. holding.mu is held.
func (h *Hub) hold() {
	now := time.Now()
	p := &h.holding
	if p.timer != nil {
		lease := min(holdLease, p.until.Sub(now))
		p.end = now.Add(lease)
		p.timer.Reset(lease)
		return
	}
	if now.Before(p.after) {
		return
	}
	p.end, p.until = now.Add(holdLease), now.Add(maxHold)
	p.timer = time.AfterFunc(holdLease, h.endHold)
	for _, a := range h.agents.all() {
		a.holdTurns(true)
	}
}

// endHold begins the turns that were held, unless the hub is about to end.
func (h *Hub) endHold() {
	p := &h.holding
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if h.draining.Load() || now.Before(p.end) || h.begin() != nil {
		return
	}
	defer h.wg.Done()
	p.timer = nil
	if !now.Before(p.until) {
		p.after = now.Add(holdPause)
	}
	for _, a := range h.agents.all() {
		a.holdTurns(false)
	}
}

// stopHold ends what endHold would do.
func (h *Hub) stopHold() {
	h.holding.mu.Lock()
	defer h.holding.mu.Unlock()
	if h.holding.timer != nil {
		h.holding.timer.Stop()
	}
}

// holdTurns lets no further turn begin, or lets them begin again.
func (a *agent) holdTurns(held bool) {
	if !a.configured {
		return
	}
	a.mu.Lock()
	a.queue.held = held
	next := a.queue.next()
	a.mu.Unlock()
	a.start(next...)
}

// interruptible returns how many tasks the end of the hub would interrupt, and messages that are becoming tasks.
func (h *Hub) interruptible() int {
	accepting := int(h.accepting.Load()) // first: a message that is accepted meanwhile is in the index then
	held := h.held()
	active := h.index.activeOf(func(id string) bool {
		a := h.agents.get(id)
		return a == nil || !a.durable
	})
	if h.held() != held {
		active = max(active, held+1) // a task was canceled or added meanwhile: ask again
	}
	return accepting + active - held
}

// held returns how many active tasks wait for turns that are held.
func (h *Hub) held() (n int) {
	for _, a := range h.agents.all() {
		a.mu.Lock()
		waiting := a.queue.holding()
		a.mu.Unlock()
		for _, t := range waiting {
			if hd, ok := h.index.get(t.id); ok && isActive(hd.State) {
				n++
			}
		}
	}
	return n
}

// keep marks a task whose turn has not begun for the next hub.
func (t *task) keep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 || t.delegated {
		return
	}
	t.held, t.stored = true, false
	t.setMeta(MetaDeadline, time.Now().Add(t.waiting[0].timeout).UTC().Format(time.RFC3339))
}

// isDraining returns the error of a message that comes after Drain.
func (h *Hub) isDraining() error {
	if !h.draining.Load() {
		return nil
	}
	return &Error{Code: CodeUnavailable, Message: "the hub is being replaced by another version", Remedy: "send the message again in a moment"}
}
