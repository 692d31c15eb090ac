package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"golang.org/x/sync/errgroup"
)

// Delegation is the origin of a delegated task. It is stored in the task's metadata
// under MetaDelegation, which only the hub writes.
type Delegation struct {
	// By is the agent that delegated the task, "" for the user; Context and Task are its
	// context and task at that time.
	By      string     `json:"by,omitempty"`
	Context string     `json:"context,omitempty"`
	Task    a2a.TaskID `json:"task,omitempty"`
	// Session is the GUID of the user's session that delegated the task, "" for none: it gets the answer by mail.
	Session string `json:"session,omitempty"`
	// Chain is the delegation chain of agents, the first one first; its last is By.
	Chain []string `json:"chain,omitempty"`
	// Tasks are the tasks of Chain; the last is Task. Canceling one of them cancels this task too.
	Tasks []a2a.TaskID `json:"tasks,omitempty"`
	// TraceParent is the W3C trace context of the task.
	TraceParent string `json:"traceparent,omitempty"`
}

// DelegationOf returns the delegation of a task, nil if it was not delegated.
func DelegationOf(t *a2a.Task) *Delegation {
	stored, ok := t.Metadata[MetaDelegation]
	if !ok {
		return nil
	}
	data, err := json.Marshal(stored)
	var d Delegation
	if err != nil || json.Unmarshal(data, &d) != nil {
		return nil
	}
	return &d
}

// AskedBy returns whoever has asked for a task, for people: the agents over which it was delegated, and the sender from outside; "" is the
// hub's user alone.
func AskedBy(taskMetadata map[string]any) string {
	who := ""
	if d := DelegationOf(&a2a.Task{Metadata: taskMetadata}); d != nil {
		who = strings.Join(d.Chain, " → ")
	}
	if s := SenderOf(taskMetadata); !s.Own() {
		who = strings.TrimPrefix(who+", for "+s.String(), ", for ")
	}
	return who
}

// Working returns the task whose turn an agent runs in a context now; false if there is none.
func (h *Hub) Working(agentID, contextID string) (a2a.TaskID, bool) {
	var id a2a.TaskID
	for _, t := range h.liveWhere(func(t *task) bool { return t.agentID == agentID && t.contextID == contextID }) {
		t.mu.Lock()
		if t.turn != nil && !t.turn.over {
			id = t.id
		}
		t.mu.Unlock()
		h.release(t)
	}
	return id, id != ""
}

// delegated holds the delegated tasks of this run of the hub that have not ended, by
// the tasks of their delegation chains. Hub.mu guards it.
type delegated map[a2a.TaskID]map[a2a.TaskID]struct{}

// add adds a task; from may be nil.
func (d delegated) add(id a2a.TaskID, from *Delegation) {
	if from == nil {
		return
	}
	for _, ancestor := range from.Tasks {
		if d[ancestor] == nil {
			d[ancestor] = make(map[a2a.TaskID]struct{})
		}
		d[ancestor][id] = struct{}{}
	}
}

// remove removes a task that has ended; from may be nil.
func (d delegated) remove(id a2a.TaskID, from *Delegation) {
	if from == nil {
		return
	}
	for _, ancestor := range from.Tasks {
		delete(d[ancestor], id)
		if len(d[ancestor]) == 0 {
			delete(d, ancestor)
		}
	}
}

// admit makes a new task live, or fails if the task that it was delegated from has been
// canceled. A concurrent cancellation thus finds the new task, or prevents it.
func (h *Hub) admit(t *task, from *Delegation) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if from != nil {
		if parent, known := h.index.get(from.Task); known && parent.State == a2a.TaskStateCanceled {
			return &Error{Code: CodeUnavailable, Message: fmt.Sprintf("task %s, which delegates this one, has been canceled", from.Task)}
		}
	}
	h.delegated.add(t.id, from)
	h.live[t.id] = t
	return nil
}

// maxCanceling bounds the delegated tasks that are canceled concurrently.
const maxCanceling = 16

// cancelDelegated cancels the tasks delegated from a canceled task, directly or not.
// Tasks that are delegated meanwhile are found in the next round, or rejected by admit.
func (h *Hub) cancelDelegated(ctx context.Context, id a2a.TaskID) error {
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
		_ = group.Wait() // errs holds the errors
		failed = append(failed, errs...)
	}
	if err := errors.Join(failed...); err != nil {
		return &Error{Code: CodeInternal,
			Message: fmt.Sprintf("task %s is canceled, but not all tasks delegated from it", id),
			Remedy:  "list the tasks that still run, and cancel them", Err: err}
	}
	return nil
}

// cancelOne cancels a delegated task unless it has ended.
func (h *Hub) cancelOne(ctx context.Context, id a2a.TaskID) error {
	t, err := h.acquire(ctx, id)
	if err == nil {
		defer h.release(t)
		_, err = t.cancel(ctx)
	}
	if code := CodeOf(err); code == CodeNotCancelable || code == CodeTaskNotFound {
		return nil
	}
	return err
}

// delegatedFrom returns the tasks delegated from a task, directly or not, that have not ended.
func (h *Hub) delegatedFrom(ctx context.Context, id a2a.TaskID) ([]a2a.TaskID, error) {
	h.mu.Lock()
	ids := slices.Sorted(maps.Keys(h.delegated[id]))
	h.mu.Unlock()
	parent, known := h.index.get(id)
	if !known || parent.Created >= h.started.UnixNano() {
		return ids, nil
	}
	// The task is of an earlier run. Of that run only interrupted tasks have not ended.
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
