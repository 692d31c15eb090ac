package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/events"
)

// A context exists while it has tasks. Its sessions and its working directory are released when it expires. The hub
// remembers an expired context for a while, so that a message to it does not start another conversation.

// Contexts returns up to limit contexts (0 means 50, at most 1,000), the most recently used first.
func (h *Hub) Contexts(ctx context.Context, limit int) ([]ContextInfo, error) {
	if limit < 0 || limit > maxPage {
		return nil, invalid("limit", "limit must be 1 to %d", maxPage)
	}
	if err := ctx.Err(); err != nil {
		return nil, contextError(err)
	}
	infos := h.index.recentContexts(cmp.Or(limit, defaultPage), func(id string) bool { return h.expired.check(id) == nil })
	for i := range infos {
		infos[i].ExpiresAt = infos[i].LastUsedAt.Add(h.cfg.ContextTTL)
		infos[i].WorkDirs = h.pool.workDirs(infos[i].ID, infos[i].AgentIDs)
	}
	return infos, nil
}

// ContextsLike returns the ids of up to limit contexts (at most 1,000) that begin or end with part, the most recently
// used first. Every id begins with "".
func (h *Hub) ContextsLike(part string, limit int) []string {
	ids := []string{}
	for _, info := range h.index.recentContexts(min(limit, maxPage), func(id string) bool {
		return resembles(id, part) && h.expired.check(id) == nil
	}) {
		ids = append(ids, info.ID)
	}
	return ids
}

// expiredContexts holds the contexts that have expired.
type expiredContexts struct {
	mu sync.Mutex
	at map[string]time.Time
}

// expiredRecord is the stored form.
type expiredRecord struct {
	Context string    `json:"context"`
	At      time.Time `json:"at"`
}

// maxExpired bounds the expired contexts without tasks; the oldest are forgotten first.
const maxExpired = 10_000

func (x *expiredContexts) check(id string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	at, ok := x.at[id]
	if !ok {
		return nil
	}
	return &Error{Code: CodeContextNotFound,
		Message: fmt.Sprintf("context %q expired on %s", text.Clip(id, 64), at.Format(time.DateOnly)),
		Remedy:  "send the message without a contextId: that begins a new conversation"}
}

func (x *expiredContexts) add(id string, at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.at[id] = at
}

// forget removes and returns the contexts that expired before a time, and the oldest
// above the bound, but none that is needed.
func (x *expiredContexts) forget(before time.Time, needed func(id string) bool) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	ids := make([]string, 0, len(x.at))
	for id := range x.at {
		if !needed(id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return x.at[a].Compare(x.at[b]) })
	n := max(len(ids)-maxExpired, 0)
	for n < len(ids) && x.at[ids[n]].Before(before) {
		n++
	}
	for _, id := range ids[:n] {
		delete(x.at, id)
	}
	return ids[:n]
}

// upkeepEvery is the interval of upkeep.
const upkeepEvery = time.Minute

// upkeep expires contexts, removes old tasks and closes idle sessions, until ctx ends.
func (h *Hub) upkeep(ctx context.Context) {
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	for {
		if err := h.store.saveHeads(ctx); err != nil && ctx.Err() == nil {
			h.log.Warn("the next start may take longer: the heads of the tasks could not be saved", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		h.pool.closeIdle()
		h.expireContexts(ctx)
		h.removeOldTasks(ctx)
		h.trimTraces(ctx)
	}
}

// expireContexts releases the contexts that were unused for Config.ContextTTL.
func (h *Hub) expireContexts(ctx context.Context) {
	now := time.Now().UTC()
	for _, id := range h.index.idleContexts(now.Add(-h.cfg.ContextTTL)) {
		if h.expired.check(id) != nil {
			continue
		}
		if err := h.expireContext(ctx, id, now); err != nil {
			h.log.Warn("a context could not be released", "error", err)
		}
	}
	for _, id := range h.expired.forget(now.Add(-2*h.cfg.ContextTTL), h.index.hasContext) {
		if err := h.store.deleteRecord(ctx, kindExpired, id); err != nil {
			h.log.Warn("an expired context could not be forgotten", "error", err)
		}
	}
}

func (h *Hub) expireContext(ctx context.Context, id string, now time.Time) error {
	value, err := json.Marshal(expiredRecord{Context: id, At: now})
	if err != nil {
		return err
	}
	if err := h.store.putRecord(ctx, kindExpired, id, value); err != nil {
		return err
	}
	h.expired.add(id, now)
	info, _ := h.index.context(id)
	for _, task := range info.TaskIDs {
		h.endExpired(ctx, task)
	}
	return h.pool.release(ctx, id)
}

// endExpired fails an interrupted task of an expired context.
func (h *Hub) endExpired(ctx context.Context, id a2a.TaskID) {
	if hd, ok := h.index.get(id); !ok || !Interrupted(hd.State) {
		return
	}
	t, err := h.acquire(ctx, id)
	if err != nil {
		h.log.Warn("a task of an expired context could not be ended", "task", id, "error", err)
		return
	}
	defer h.release(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.settling || t.turn != nil || len(t.waiting) > 0 || !Interrupted(t.status.State) {
		return
	}
	t.reopen()
	msg := t.errorMessage(string(CodeContextNotFound), "the task waited for an answer until its context expired", "send the message again without a contextId")
	if err := t.settle(ending{state: a2a.TaskStateFailed, message: msg, history: true}); err != nil {
		h.log.Warn("a task of an expired context could not be ended", "task", id, "error", err)
	}
}

// removeOldTasks removes ended tasks after Config.TaskTTL, and the oldest above Config.MaxTasks.
func (h *Hub) removeOldTasks(ctx context.Context) {
	_, total := h.index.totals()
	surplus := total - h.cfg.MaxTasks
	deadline := time.Now().Add(-h.cfg.TaskTTL).UnixNano()
	var old []a2a.TaskID
	h.index.oldest(func(hd head) bool {
		if len(old) >= surplus && hd.Updated >= deadline || len(old) >= 10_000 {
			return false // the next round removes the rest
		}
		if hd.State.Terminal() {
			old = append(old, hd.ID)
		}
		return true
	})
	for _, id := range old {
		if err := h.store.deleteTask(ctx, id); err != nil {
			h.log.Warn("an old task could not be removed", "task", id, "error", err)
			return
		}
		h.cache.remove(id)
		contextID, gone := h.index.remove(id)
		h.cfg.Events.Publish(events.Event{Kind: events.TaskRemoved, Task: string(id), Context: contextID})
		if !gone {
			continue
		}
		if err := h.pool.release(ctx, contextID); err != nil {
			h.log.Warn("a context without tasks could not be released", "error", err)
		}
	}
}
