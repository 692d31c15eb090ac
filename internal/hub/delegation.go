package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"golang.org/x/sync/errgroup"
)

// Delegation is who handed a task over, and on whose behalf. It stands in the task's
// metadata under MetaDelegation, where only the hub writes.
type Delegation struct {
	// By is the agent that handed it over, "" for the user, and Context and Task the
	// conversation and the task in which it did.
	By      string     `json:"by,omitempty"`
	Context string     `json:"context,omitempty"`
	Task    a2a.TaskID `json:"task,omitempty"`
	// Chain is the agents over whom the work came, the first one first; its last is By.
	Chain []string `json:"chain,omitempty"`
	// Tasks are the tasks over which it came, those of Chain; its last is Task. To
	// cancel one of them cancels this one, too.
	Tasks []a2a.TaskID `json:"tasks,omitempty"`
	// TraceParent is the W3C trace context of the task.
	TraceParent string `json:"traceparent,omitempty"`
}

// DelegationOf returns how a task was handed over, nil if it was not.
func DelegationOf(t *a2a.Task) *Delegation {
	said, ok := t.Metadata[MetaDelegation]
	if !ok {
		return nil
	}
	data, err := json.Marshal(said)
	if err != nil {
		return nil
	}
	var d Delegation
	if json.Unmarshal(data, &d) != nil {
		return nil
	}
	return &d
}

// Working returns the task whose turn an agent has in a conversation now; false if
// there is none.
func (h *Hub) Working(agentID, contextID string) (a2a.TaskID, bool) {
	h.mu.Lock()
	var candidates []*task
	for _, t := range h.live {
		if t.agentID == agentID && t.contextID == contextID {
			t.refs++
			candidates = append(candidates, t)
		}
	}
	h.mu.Unlock()
	var id a2a.TaskID
	for _, t := range candidates {
		t.mu.Lock()
		if t.turn != nil && !t.turn.over {
			id = t.id
		}
		t.mu.Unlock()
		h.release(t)
	}
	return id, id != ""
}

// descent knows the delegated tasks that have not ended, of this run of the hub, by
// the tasks over which they came. Hub.mu guards it.
type descent map[a2a.TaskID]map[a2a.TaskID]struct{}

// add enters a task.
func (d descent) add(id a2a.TaskID, from *Delegation) {
	if from == nil {
		return
	}
	for _, over := range from.Tasks {
		if d[over] == nil {
			d[over] = make(map[a2a.TaskID]struct{})
		}
		d[over][id] = struct{}{}
	}
}

// remove forgets a task that has ended.
func (d descent) remove(id a2a.TaskID, from *Delegation) {
	if from == nil {
		return
	}
	for _, over := range from.Tasks {
		delete(d[over], id)
		if len(d[over]) == 0 {
			delete(d, over)
		}
	}
}

// admit makes a new task known, unless the task that it was delegated from has been
// canceled: whoever cancels that one sees this one, or this one is not begun.
func (h *Hub) admit(t *task, from *Delegation) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if from != nil {
		if parent, known := h.index.get(from.Task); known && parent.State == a2a.TaskStateCanceled {
			return &Error{Code: CodeUnavailable, Message: fmt.Sprintf("task %s, for which this was to be done, has been canceled", from.Task)}
		}
	}
	h.descent.add(t.id, from)
	h.live[t.id] = t
	return nil
}

// maxCanceling bounds how many delegated tasks are ended at once.
const maxCanceling = 16

// cancelDescent cancels what was delegated from a task that has been canceled, over
// any number of hops. What is delegated meanwhile is found in the next round, or
// refused by admit.
func (h *Hub) cancelDescent(ctx context.Context, id a2a.TaskID) error {
	tried := make(map[a2a.TaskID]bool)
	var failed []error
	for {
		ids, err := h.delegatedFrom(ctx, id)
		if err != nil {
			failed = append(failed, err)
		}
		ids = slices.DeleteFunc(ids, func(id a2a.TaskID) bool { return tried[id] })
		if len(ids) == 0 {
			break
		}
		errs := make([]error, len(ids))
		var group errgroup.Group
		group.SetLimit(maxCanceling)
		for i, id := range ids {
			tried[id] = true
			group.Go(func() error { errs[i] = h.cancelOne(ctx, id); return nil })
		}
		_ = group.Wait() // errs has them
		failed = append(failed, errs...)
	}
	if err := errors.Join(failed...); err != nil {
		return &Error{
			Code: CodeInternal, Message: fmt.Sprintf("task %s is canceled, but not everything that was delegated from it", id),
			Remedy: "look for what still runs, and cancel it by itself", Err: err,
		}
	}
	return nil
}

// cancelOne cancels a delegated task, if it has not ended.
func (h *Hub) cancelOne(ctx context.Context, id a2a.TaskID) error {
	t, err := h.acquire(ctx, id)
	if err == nil {
		defer h.release(t)
		_, err = t.cancel(ctx)
	}
	if he, ok := errors.AsType[*Error](err); ok && (he.Code == CodeNotCancelable || he.Code == CodeTaskNotFound) {
		return nil
	}
	return err
}

// delegatedFrom returns the tasks delegated from one, over any number of hops, that
// have not ended.
func (h *Hub) delegatedFrom(ctx context.Context, id a2a.TaskID) ([]a2a.TaskID, error) {
	h.mu.Lock()
	ids := slices.Sorted(maps.Keys(h.descent[id]))
	h.mu.Unlock()
	parent, known := h.index.get(id)
	if !known || parent.Created >= h.started.UnixNano() {
		return ids, nil
	}
	// It is of an earlier run, from which only tasks that wait for somebody are left.
	for _, waiting := range h.index.unfinished(parent.Created, h.started.UnixNano()) {
		t, err := h.present(ctx, waiting, false)
		if err != nil {
			return ids, err
		}
		if d := DelegationOf(t); d != nil && slices.Contains(d.Tasks, id) && !slices.Contains(ids, waiting) {
			ids = append(ids, waiting)
		}
	}
	return ids, nil
}
