package hub

import (
	"encoding/json"

	"github.com/a2aproject/a2a-go/v2/a2a"
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
