package hub

import (
	"container/list"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
)

// Limits of a TaskQuery.
const (
	defaultPage = 50
	maxPage     = 1000
	// maxPageBytes bounds a page, so that thousands of long answers are not held or sent at
	// once. A page has at least one task.
	maxPageBytes = 16 << 20
)

// Task returns a task with at most historyLength messages, the latest; nil means all.
func (h *Hub) Task(ctx context.Context, id a2a.TaskID, historyLength *int) (*a2a.Task, error) {
	if err := checkHistoryLength(historyLength); err != nil {
		return nil, err
	}
	t, err := h.present(ctx, id, true)
	if err != nil {
		return nil, err
	}
	return WithHistory(t, historyLength), nil
}

// present returns a task from memory or the store. Without artifacts it does not make a
// running answer visible, see turn.
func (h *Hub) present(ctx context.Context, id a2a.TaskID, artifacts bool) (*a2a.Task, error) {
	if t := h.presentLive(id, artifacts); t != nil {
		return t, nil
	}
	rec, err := h.read(ctx, id)
	if err != nil {
		return nil, err
	}
	// It may have become live meanwhile. Then the store may be ahead of what others are shown, which would seem to go back.
	if t := h.presentLive(id, artifacts); t != nil {
		return t, nil
	}
	if rec.Status.State.Terminal() {
		h.cache.put(rec, taskSize(rec.Task))
	}
	return rec.Task, nil
}

// presentLive returns a live task, nil if it is not live.
func (h *Hub) presentLive(id a2a.TaskID, artifacts bool) *a2a.Task {
	t := h.acquireLive(id)
	if t == nil {
		return nil
	}
	defer h.release(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	if artifacts || t.turn == nil {
		return t.snapshot()
	}
	return &a2a.Task{ID: t.id, ContextID: t.contextID, Status: t.status, Metadata: t.shownMeta(), History: slices.Clip(t.history)}
}

// WithHistory returns a copy of a task with at most n messages of its history, the latest;
// nil means all. It shares everything else.
func WithHistory(t *a2a.Task, n *int) *a2a.Task {
	if n == nil || *n >= len(t.History) {
		return t
	}
	short := *t
	short.History = nil
	if *n > 0 {
		short.History = t.History[len(t.History)-*n:]
	}
	return &short
}

func checkHistoryLength(n *int) error {
	if n != nil && *n < 0 {
		return invalid("historyLength", "historyLength must not be negative")
	}
	return nil
}

// Tasks returns a page of the selected tasks, the most recently changed first. A cursor continues exactly where its
// page ended: tasks that are added or changed meanwhile are newer, so that none is repeated. A page with fewer tasks
// than its limit need not be the last: it also ends after 16 MiB.
func (h *Hub) Tasks(ctx context.Context, q TaskQuery) (TaskPage, error) {
	s, err := q.selection()
	if err != nil {
		return TaskPage{}, err
	}
	heads, total, more := h.index.find(s)
	page := TaskPage{Tasks: make([]*a2a.Task, 0, len(heads)), Total: total}
	last := len(heads) - 1
	size := 0
	for i, hd := range heads {
		t, err := h.present(ctx, hd.ID, q.WithArtifacts)
		if CodeOf(err) == CodeTaskNotFound {
			continue // removed meanwhile
		}
		if errors.Is(err, errUnreadable) {
			h.log.Error("a listed task cannot be read", "task", hd.ID, "error", err)
			t, err = hd.bare(), nil
		}
		if err != nil {
			return TaskPage{}, err
		}
		t = q.trim(t)
		page.Tasks = append(page.Tasks, t)
		if size += taskSize(t); size >= maxPageBytes && i < last {
			last, more = i, true
			break
		}
	}
	if more {
		page.NextCursor = encodeCursor(heads[last].Updated)
	}
	return page, nil
}

// TasksLike returns the ids of up to limit tasks (at most 1,000) that begin or end with part, the most recently
// changed first. Every id begins with "".
func (h *Hub) TasksLike(part string, limit int) []a2a.TaskID {
	return h.index.resembling(part, min(limit, maxPage))
}

// bare returns a task whose body cannot be read, so that the others can be listed.
func (h head) bare() *a2a.Task {
	at := time.Unix(0, h.Updated).UTC()
	return &a2a.Task{
		ID: h.ID, ContextID: h.Context, Status: a2a.TaskStatus{State: h.State, Timestamp: &at},
		Metadata: map[string]any{MetaAgent: h.Agent, MetaNotices: []any{"the task is stored in a form that cannot be read"}},
	}
}

func (q TaskQuery) trim(t *a2a.Task) *a2a.Task {
	t = WithHistory(t, q.HistoryLength)
	if q.WithArtifacts || len(t.Artifacts) == 0 {
		return t
	}
	slim := *t
	slim.Artifacts = nil
	return &slim
}

func (q TaskQuery) selection() (selection, error) {
	s := selection{context: q.ContextID, agent: q.AgentID, state: q.State, offset: q.Offset, limit: q.Limit}
	switch {
	case q.Limit < 0 || q.Limit > maxPage:
		return s, invalid("limit", "limit must be 1 to %d", maxPage)
	case q.Offset < 0:
		return s, invalid("offset", "offset must not be negative")
	case q.State != "" && !knownState(q.State):
		return s, invalid("state", "there is no task state %q", text.Clip(StateName(q.State), 40))
	}
	if err := checkHistoryLength(q.HistoryLength); err != nil {
		return s, err
	}
	if s.limit == 0 {
		s.limit = defaultPage
	}
	if !q.After.IsZero() {
		s.after = q.After.UnixNano()
	}
	if q.Cursor != "" {
		at, err := decodeCursor(q.Cursor)
		if err != nil {
			return s, invalid("cursor", "the cursor is not from this hub")
		}
		s.before, s.offset = at, 0
	}
	return s, nil
}

func knownState(s a2a.TaskState) bool {
	_, ok := transitions[s]
	return ok || s.Terminal()
}

// A cursor is the stamp of the last task of its page.
func encodeCursor(at int64) string {
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(at)))
}

func decodeCursor(s string) (int64, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) != 8 || int64(binary.BigEndian.Uint64(b)) <= 0 {
		return 0, fmt.Errorf("malformed cursor %q", text.Clip(s, 40))
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// Cancel cancels a task and all tasks delegated from it, directly or not, and returns when their processes have
// ended. When ctx ends first, the cancellation continues. The error is CodeNotCancelable if the task has ended, or
// ends by itself meanwhile; the tasks delegated from it then continue.
func (h *Hub) Cancel(ctx context.Context, id a2a.TaskID) (*a2a.Task, error) {
	return h.cancel(ctx, id, h.cancelDelegated)
}

// CancelAlone is [Hub.Cancel], but tasks delegated from the task continue.
func (h *Hub) CancelAlone(ctx context.Context, id a2a.TaskID) (*a2a.Task, error) {
	return h.cancel(ctx, id, func(context.Context, a2a.TaskID) error { return nil })
}

func (h *Hub) cancel(ctx context.Context, id a2a.TaskID, then func(context.Context, a2a.TaskID) error) (*a2a.Task, error) {
	if err := h.begin(); err != nil {
		return nil, err
	}
	type result struct {
		task *a2a.Task
		err  error
	}
	done := make(chan result, 1)
	go func() { // the cancellation completes even if the caller stops waiting
		defer h.wg.Done()
		ctx := context.WithoutCancel(ctx)
		t, err := h.acquire(ctx, id)
		if err != nil {
			done <- result{nil, err}
			return
		}
		defer h.release(t)
		canceled, err := t.cancel(ctx)
		if err == nil {
			err = then(ctx, id)
		}
		done <- result{canceled, err}
	}()
	select {
	case r := <-done:
		return r.task, r.err
	case <-ctx.Done():
		return nil, contextError(ctx.Err())
	}
}

func (t *task) cancel(ctx context.Context) (*a2a.Task, error) {
	t.mu.Lock()
	if err := t.whileSettling(ctx); err != nil {
		return nil, err
	}
	if s := t.status.State; s.Terminal() {
		t.mu.Unlock()
		return nil, t.notCancelable(s)
	}
	if err := t.endTurns(ctx, errCanceled); err != nil {
		return nil, err
	}
	if Interrupted(t.status.State) && t.hasAgent() {
		turn := t.turns
		t.mu.Unlock()
		t.agent.withdraw(ctx, t.id, turn, errCanceled)
		t.mu.Lock()
	}
	defer t.mu.Unlock()
	switch s := t.status.State; {
	case s == a2a.TaskStateCanceled:
		return t.snapshot(), nil
	case s.Terminal():
		return nil, t.notCancelable(s)
	}
	t.reopen()
	if err := t.settle(ending{state: a2a.TaskStateCanceled}); err != nil {
		return nil, &Error{Code: CodeInternal, Message: "the task could not be canceled", Err: err}
	}
	return t.snapshot(), nil
}

// endTurns ends the running and the waiting turns for a reason, and returns when none is
// left. mu is held before and after, except after an error.
func (t *task) endTurns(ctx context.Context, cause error) error {
	for t.turn != nil || len(t.waiting) > 0 {
		if t.suspended { // the hub stops, and its next run goes on with them
			t.mu.Unlock()
			return suspendedError(t.id)
		}
		if t.turn == nil && t.agent.dequeue(t) {
			next := t.turns + 1
			t.mu.Unlock()
			t.agent.withdraw(ctx, t.id, next, cause)
			t.endWaiting(cause)
			t.hub.release(t) // the turn's reference
			t.mu.Lock()
			continue
		}
		if t.turn != nil {
			t.turn.cancel(cause)
		}
		if err := t.waitChange(ctx); err != nil {
			return err
		}
	}
	return t.whileSettling(ctx)
}

func (t *task) notCancelable(s a2a.TaskState) *Error {
	return &Error{Code: CodeNotCancelable, Message: fmt.Sprintf("task %s has ended already (%s)", t.id, StateName(s))}
}

// taskCache keeps the most recently ended or read tasks, bounded in number and bytes.
type taskCache struct {
	mu       sync.Mutex
	max      int
	maxBytes int
	bytes    int
	recent   list.List // of cached, the most recent first
	byID     map[a2a.TaskID]*list.Element
}

type cached struct {
	rec   record
	bytes int
}

func newTaskCache(n, bytes int) *taskCache {
	return &taskCache{max: n, maxBytes: bytes, byID: map[a2a.TaskID]*list.Element{}}
}

func (c *taskCache) get(id a2a.TaskID) (record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byID[id]
	if e == nil {
		return record{}, false
	}
	c.recent.MoveToFront(e)
	return e.Value.(cached).rec, true
}

func (c *taskCache) put(rec record, bytes int) {
	bytes += 1 << 10 // the overhead of a task
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(rec.ID)
	if bytes > c.maxBytes/4 {
		return
	}
	c.byID[rec.ID] = c.recent.PushFront(cached{rec, bytes})
	c.bytes += bytes
	for c.bytes > c.maxBytes || c.recent.Len() > c.max {
		c.drop(c.recent.Back().Value.(cached).rec.ID)
	}
}

func (c *taskCache) remove(id a2a.TaskID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(id)
}

func (c *taskCache) drop(id a2a.TaskID) {
	if e := c.byID[id]; e != nil {
		c.bytes -= e.Value.(cached).bytes
		c.recent.Remove(e)
		delete(c.byID, id)
	}
}

// ContentSize estimates the bytes of an event of a task, encoded, 0 for an unknown one.
func ContentSize(event a2a.Event) int {
	switch e := event.(type) {
	case *a2a.Task:
		return taskSize(e)
	case *a2a.Message:
		return messageSize(e)
	case *a2a.TaskStatusUpdateEvent:
		return messageSize(e.Status.Message) + dataSize(e.Metadata)
	case *a2a.TaskArtifactUpdateEvent:
		return partsSize(e.Artifact.Parts) + dataSize(e.Metadata)
	}
	return 0
}

// taskSize estimates the bytes of a task in a response.
func taskSize(t *a2a.Task) int {
	n := dataSize(t.Metadata) + messageSize(t.Status.Message)
	for _, m := range t.History {
		n += messageSize(m)
	}
	for _, a := range t.Artifacts {
		n += partsSize(a.Parts) + dataSize(a.Metadata)
	}
	return n
}

func messageSize(m *a2a.Message) int {
	if m == nil {
		return 0
	}
	return partsSize(m.Parts) + dataSize(m.Metadata)
}
