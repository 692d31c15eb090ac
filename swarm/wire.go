package swarm

import (
	"context"
	"encoding/json"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/router"
)

// message is the payload of the envelopes between coordinator and participants. The
// envelope's correlation id is the swarm's. Exactly one of the pointers is set.
type message struct {
	Swarm string `json:"swarmId"`
	Epoch int    `json:"epoch,omitempty"` // the coordinator's; participants obey the latest

	// From the coordinator:

	Work *work `json:"work,omitempty"` // a request
	// Stored lists sub-tasks whose result is in the journal, or is ignored.
	Stored []string `json:"stored,omitempty"`
	Stop   []string `json:"stop,omitempty"`   // sub-tasks that are canceled or assigned to another agent
	Over   bool     `json:"over,omitempty"`   // the swarm has ended
	Leader bool     `json:"leader,omitempty"` // the sender leads now
	// Document offers the shared state, after a Watch.
	Document *document `json:"document,omitempty"`
	// Refused reports that a request of the participant was refused.
	Refused *refused `json:"refused,omitempty"`

	// From a participant:

	Result *result  `json:"result,omitempty"` // a response
	Beat   []string `json:"beat,omitempty"`   // sub-tasks that it works on
	Set    *set     `json:"set,omitempty"`    // a change of the shared state
	Watch  bool     `json:"watch,omitempty"`  // asks for the shared state and its changes
	Leave  bool     `json:"leave,omitempty"`
	// Lost reports that the participant does not know the swarm, after a restart for
	// instance. It may be invited again.
	Lost bool `json:"lost,omitempty"`
}

// work is a sub-task for a participant.
type work struct {
	Job
	LeaseMs int64 `json:"leaseMs"`
}

// result is the result of a sub-task.
type result struct {
	SubTask string          `json:"subTask"`
	Attempt int             `json:"attempt"`
	Value   json.RawMessage `json:"value,omitempty"`
	Error   string          `json:"error,omitempty"` // it failed
}

// refused is why a request was refused. Not every refusal is sent.
type refused struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// document is the epoch of the leader's document; package replica sends its content.
type document struct {
	Epoch uint64 `json:"epoch"`
}

// invitation is the input of a proposal to join a swarm.
type invitation struct {
	Swarm string `json:"swarmId"`
	// Coordinators may lead the swarm. The participant accepts messages of no others.
	Coordinators []string `json:"coordinators"`
}

// Concerns reports whether an envelope is an invitation or a message about a swarm, for
// agents that handle other proposals and requests themselves.
func Concerns(e *envelope.Envelope) bool {
	if e.CorrelationID == "" {
		return false // without reading the payload
	}
	switch e.Type {
	case envelope.TaskProposal:
		var p struct {
			Input json.RawMessage `json:"input"`
		}
		var i invitation
		return e.Unmarshal(&p) == nil && json.Unmarshal(p.Input, &i) == nil && i.Swarm != "" && i.Swarm == e.CorrelationID
	case envelope.Request, envelope.Response, envelope.Notification:
		var m message
		return e.Unmarshal(&m) == nil && m.Swarm != "" && m.Swarm == e.CorrelationID && m.says()
	}
	return false
}

// says reports whether a message has any content.
func (m *message) says() bool {
	return m.Work != nil || m.Stored != nil || m.Stop != nil || m.Over || m.Leader || m.Document != nil || m.Refused != nil ||
		m.Result != nil || m.Beat != nil || m.Set != nil || m.Watch || m.Leave || m.Lost
}

// send sends a message of one agent to another.
func (m *message) send(ctx context.Context, r *router.Router, from, to string) error {
	e, err := envelope.New(from, to, m.kind(), m)
	if err != nil {
		return err
	}
	e.CorrelationID = m.Swarm
	_, err = r.Send(ctx, e)
	return err
}

// kind returns the envelope's type for a message.
func (m *message) kind() envelope.Type {
	switch {
	case m.Work != nil:
		return envelope.Request
	case m.Result != nil:
		return envelope.Response
	}
	return envelope.Notification
}
