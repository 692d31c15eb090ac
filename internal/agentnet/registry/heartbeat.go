package registry

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// writesAtOnce bounds the heartbeats that are written at the same time.
const writesAtOnce = 16

// heartbeats writes those of a Registry's agents. Between two heartbeats an agent has no goroutine: a hub has thousands that do nothing.
type heartbeats struct {
	changed wait.Signal // there is a new heartbeat, or one is due earlier

	mu  sync.Mutex
	all map[*heartbeat]struct{}
}

// heartbeat is that of an agent that is entered.
type heartbeat struct {
	agent   *Agent
	bus     *bus.Bus
	ctx     context.Context // ends when the agent is not active any more
	cancel  context.CancelFunc
	atEnd   []func()
	writing sync.WaitGroup // the lock of heartbeats guards the first Add
	due     time.Time      // guarded by the lock of heartbeats

	// Whoever writes may use these.
	failures int
	retry    wait.Backoff
}

// start begins the heartbeat of an agent that is entered. It ends with ctx; ended is called then, from another goroutine.
func (h *heartbeats) start(ctx context.Context, cancel context.CancelFunc, a *Agent, b *bus.Bus, ended func()) {
	beat := &heartbeat{agent: a, bus: b, ctx: ctx, cancel: cancel, due: time.Now().Add(a.interval())}
	for _, f := range a.onEntered {
		beat.atEnd = append(beat.atEnd, f(ctx, b))
	}
	if a.reg.cfg.Admission != nil {
		answers, err := b.Conn().Subscribe(a.heartbeatAnswers(), func(*nats.Msg) { h.hurry(beat) })
		if err != nil {
			a.log.Error("the hub cannot report that it lost the agent's entry", "error", err)
		} else {
			beat.atEnd = append(beat.atEnd, func() { _ = answers.Unsubscribe() }) // it fails if the connection has ended, and the subscription with it
		}
	}
	h.mu.Lock()
	h.all[beat] = struct{}{}
	h.mu.Unlock()
	h.changed.Send()
	context.AfterFunc(ctx, func() {
		defer ended()
		h.end(beat)
	})
}

// end ends a heartbeat. It waits until it is not being written.
func (h *heartbeats) end(beat *heartbeat) {
	h.mu.Lock()
	delete(h.all, beat)
	h.mu.Unlock()
	beat.writing.Wait()
	for _, f := range slices.Backward(beat.atEnd) {
		f()
	}
}

// hurry has heartbeats written at once, each with the whole entry.
func (h *heartbeats) hurry(beats ...*heartbeat) {
	for _, beat := range beats {
		beat.agent.markDirty() // before it is due: else only a part may be written
	}
	h.mu.Lock()
	for _, beat := range beats {
		beat.due = time.Time{}
	}
	h.mu.Unlock()
	h.changed.Send()
}

// isDue reports whether the heartbeat is to be written now. The lock of heartbeats is held.
func (beat *heartbeat) isDue() bool { return time.Until(beat.due) <= 0 }

// those returns the heartbeats that are selected.
func (h *heartbeats) those(selected func(*heartbeat) bool) (those []*heartbeat) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for beat := range h.all {
		if selected(beat) {
			those = append(those, beat)
		}
	}
	return those
}

// run writes heartbeats until ctx ends.
func (h *heartbeats) run(ctx context.Context, b *bus.Bus) {
	changes := b.Conn().StatusChanged(nats.CONNECTED)
	defer b.Conn().RemoveStatusListener(changes)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := h.changed.Wait()
		timer.Reset(h.untilNext())
		select {
		case <-ctx.Done():
			return
		case <-changes: // the server may have lost what was not on its disk
			h.hurry(h.those(func(*heartbeat) bool { return true })...)
		case <-changed:
		case <-timer.C:
			h.writeDue()
		}
	}
}

// untilNext returns after which time the next heartbeat is due.
func (h *heartbeats) untilNext() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := maximumHeartbeat
	for beat := range h.all {
		next = min(next, time.Until(beat.due))
	}
	return next
}

// writeDue writes the heartbeats that are due, some at a time: on a slow bus an agent must not wait for all others.
func (h *heartbeats) writeDue() {
	var writing errgroup.Group
	writing.SetLimit(writesAtOnce)
	for _, beat := range h.those((*heartbeat).isDue) {
		if h.begin(beat) {
			writing.Go(func() error {
				h.done(beat, beat.write())
				return nil
			})
		}
	}
	_ = writing.Wait() // none fails
}

// begin reports whether a heartbeat is to be written now; its end waits for it then.
func (h *heartbeats) begin(beat *heartbeat) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, exists := h.all[beat]; !exists || !beat.isDue() {
		return false
	}
	beat.due = time.Now().Add(maximumHeartbeat) // until it is known
	beat.writing.Add(1)
	return true
}

// done decides when the next heartbeat is due, unless that was hurried during the write.
func (h *heartbeats) done(beat *heartbeat, after time.Duration) {
	defer beat.writing.Done()
	h.mu.Lock()
	defer h.mu.Unlock()
	if next := time.Now().Add(after); next.Before(beat.due) {
		beat.due = next
	}
}

// write writes the heartbeat and returns the time until the next, which is short after a failure. It blocks for at most 2*RequestTimeout.
func (beat *heartbeat) write() (next time.Duration) {
	a := beat.agent
	err := a.beat(beat.ctx, beat.bus)
	switch {
	case err == nil:
		beat.failures, beat.retry = 0, wait.Backoff{}
		return a.interval()
	case beat.ctx.Err() != nil:
		return maximumHeartbeat
	case errors.Is(err, store.ErrReplaced):
		beat.writing.Go(beat.replaced)
		return maximumHeartbeat
	}
	beat.failures++
	beat.retry.Most = min(store.MaxBackoff, a.interval())
	next = beat.retry.Next()
	a.log.Error("a heartbeat failed", "error", err, "attempt", beat.failures, "retryIn", next.String())
	return next
}

// replaced ends the activity of an agent whose identity another process has.
func (beat *heartbeat) replaced() {
	a := beat.agent
	a.log.Error("another process has taken over this agent's identity")
	a.fail(store.ErrReplaced)
	a.identity.Unlock()
	beat.cancel()
	a.left(store.ErrReplaced)
}
