package negotiation

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
)

// Limits of a proposal and its answers.
const (
	MaxText         = 64 << 10 // bytes of a description or a justification
	MaxCapabilities = 64       // required capabilities
	MaxDeadline     = 7 * 24 * time.Hour
	MaxEstimate     = 365 * 24 * time.Hour
)

// Complexity is how much work a task is thought to be.
type Complexity string

// The complexities of the specification.
const (
	Simple  Complexity = "simple"
	Medium  Complexity = "medium"
	Complex Complexity = "complex"
)

func (c Complexity) valid() bool { return c == Simple || c == Medium || c == Complex }

// Status is where a proposal stands.
type Status string

// A proposal is pending, and then one of the others for ever.
const (
	Pending  Status = "pending"
	Accepted Status = "accepted"
	Rejected Status = "rejected"
	TimedOut Status = "timed-out"
)

// Reason is why a proposal is rejected: a code in lower case for programs, such
// as these.
type Reason string

// Reasons for a rejection. Agents may give others.
const (
	Declined          Reason = "declined"
	Busy              Reason = "busy"
	MissingCapability Reason = "missing-capability"
	InvalidProposal   Reason = "invalid-proposal" // given by the package itself
	Overloaded        Reason = "overloaded"       // given by the package itself
)

var reasonPattern = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

func (r Reason) valid() bool { return len(r) <= 64 && reasonPattern.MatchString(string(r)) }

// Terms is what a proposer asks for.
type Terms struct {
	TaskDescription      string     // what is to be done; required, at most MaxText bytes
	RequiredCapabilities []string   // ids that the other agent's card should have; may be empty
	EstimatedComplexity  Complexity // required
	// Deadline is how long the proposer waits for an answer: whole milliseconds,
	// at least one and at most MaxDeadline.
	Deadline time.Duration
	// EscalationJustification is needed of L2 and L3 towards L0 and L1.
	EscalationJustification string
	// CorrelationID puts the proposal into a thread that exists; empty begins one.
	CorrelationID string
	// Input is what the task works on, any JSON; it travels as it is.
	Input json.RawMessage
}

// Proposal is one proposed task. It is a snapshot: it does not change any more.
type Proposal struct {
	ID                   string     `json:"proposalId"` // unique; chosen by the proposer
	TaskDescription      string     `json:"taskDescription"`
	RequiredCapabilities []string   `json:"requiredCapabilities"`
	EstimatedComplexity  Complexity `json:"estimatedComplexity"`
	// DeadlineMs is how many milliseconds the proposer waits for an answer.
	DeadlineMs              int64           `json:"deadlineMs"`
	EscalationJustification string          `json:"escalationJustification,omitempty"` // why L2 or L3 ask L0 or L1
	Input                   json.RawMessage `json:"input,omitempty"`                   // what the task works on; empty: nothing
	Proposer                string          `json:"proposerAgentId"`                   // who proposed it
	Recipient               string          `json:"recipientAgentId"`                  // who was asked
	Status                  Status          `json:"status"`
	AcceptedBy              string          `json:"acceptedBy,omitempty"` // Recipient, once it is accepted
	// EstimatedCompletionMs is how many milliseconds the task will take, if it is
	// accepted, from then on.
	EstimatedCompletionMs int64  `json:"estimatedCompletionMs,omitempty"`
	RejectionReason       Reason `json:"rejectionReason,omitempty"`  // why it is rejected
	RejectionMessage      string `json:"rejectionMessage,omitempty"` // the same for people, if it was said
	// AlternativeSuggestion is an agent that may want the task instead.
	AlternativeSuggestion string `json:"alternativeSuggestion,omitempty"`
	CorrelationID         string `json:"correlationId"` // of the thread that all its envelopes are in
}

// Offer is the payload of a task-proposal.
type Offer struct {
	// ProposalID is chosen by the proposer, and said again in each answer. Without
	// one the envelope's id is meant.
	ProposalID           string     `json:"proposalId"`
	TaskDescription      string     `json:"taskDescription"`
	RequiredCapabilities []string   `json:"requiredCapabilities"` // not nil, but maybe empty
	EstimatedComplexity  Complexity `json:"estimatedComplexity"`
	// DeadlineMs is how many milliseconds the proposer waits for an answer. Each
	// side counts them on its own clock, from when it sends or gets the envelope.
	DeadlineMs              int64           `json:"deadlineMs"`
	EscalationJustification string          `json:"escalationJustification,omitempty"` // of L2 and L3 towards L0 and L1
	Input                   json.RawMessage `json:"input,omitempty"`                   // what the task works on
}

// DecodeOffer reads the payload of a task-proposal. It returns what can be read of
// it, and an [*Error] with CodeInvalid if a field is missing or wrong.
func DecodeOffer(e *envelope.Envelope) (Offer, error) {
	var o Offer
	err := e.Unmarshal(&o)
	if o.ProposalID == "" {
		o.ProposalID = e.ID
	}
	if err != nil {
		err = &Error{Code: CodeInvalid, Message: "the payload is not a proposal", Err: err}
	} else if bad := o.check(); bad != nil {
		err = bad
	}
	if agent.CheckID(o.ProposalID) != nil {
		o.ProposalID = e.ID // the answer must name something
	}
	return o, err
}

// Answer is the payload of a task-accept or a task-reject. An
// agent that answers without a [Negotiator] writes it itself, as the reply to the
// envelope of the proposal.
type Answer struct {
	ProposalID string `json:"proposalId"`
	AgentID    string `json:"agentId"` // who answers
	// EstimatedCompletionMs, of a task-accept, is how many milliseconds the task
	// will take from now on; at least one.
	EstimatedCompletionMs int64  `json:"estimatedCompletionMs,omitempty"`
	RejectionReason       Reason `json:"rejectionReason,omitempty"`       // of a task-reject
	Message               string `json:"message,omitempty"`               // of a task-reject: the reason for people
	AlternativeSuggestion string `json:"alternativeSuggestion,omitempty"` // of a task-reject: an agent that may want the task
}

// Refusal is the payload of the error with which a proposer answers an acceptance
// that does not count: it came too late, say. Who accepted must not begin the task.
type Refusal struct {
	ProposalID string `json:"proposalId"`
	Code       Code   `json:"code"`
	Message    string `json:"message"` // for people
}

func (t Terms) offer(id string) Offer {
	capabilities := t.RequiredCapabilities
	if capabilities == nil {
		capabilities = []string{}
	}
	return Offer{
		ProposalID: id, TaskDescription: t.TaskDescription, RequiredCapabilities: capabilities,
		EstimatedComplexity: t.EstimatedComplexity, DeadlineMs: t.Deadline.Milliseconds(),
		EscalationJustification: t.EscalationJustification, Input: t.Input,
	}
}

func (o Offer) deadline() time.Duration { return time.Duration(o.DeadlineMs) * time.Millisecond }

// check returns nil for a valid proposal.
func (o Offer) check() *Error {
	bad := func(format string, args ...any) *Error { return errorf(CodeInvalid, o.ProposalID, format, args...) }
	switch {
	case agent.CheckID(o.ProposalID) != nil:
		return bad("proposalId must be 1 to %d characters without spaces", agent.MaxIDLength)
	case strings.TrimSpace(o.TaskDescription) == "":
		return bad("taskDescription is missing")
	case !text(o.TaskDescription) || !text(o.EscalationJustification):
		return bad("taskDescription and escalationJustification must be UTF-8 of at most %d bytes", MaxText)
	case o.RequiredCapabilities == nil:
		return bad("requiredCapabilities is missing")
	case len(o.RequiredCapabilities) > MaxCapabilities:
		return bad("there are %d requiredCapabilities, at most %d are allowed", len(o.RequiredCapabilities), MaxCapabilities)
	case slices.ContainsFunc(o.RequiredCapabilities, func(c string) bool { return agent.CheckID(c) != nil }):
		return bad("requiredCapabilities must be ids of capabilities")
	case !o.EstimatedComplexity.valid():
		return bad("estimatedComplexity must be %q, %q or %q, not %q", Simple, Medium, Complex, o.EstimatedComplexity)
	case o.DeadlineMs < 1 || o.DeadlineMs > MaxDeadline.Milliseconds():
		return bad("deadlineMs must be 1 to %d, not %d", MaxDeadline.Milliseconds(), o.DeadlineMs)
	case len(o.Input) > 0 && !json.Valid(o.Input):
		return bad("input is not JSON")
	}
	return nil
}

func text(s string) bool { return len(s) <= MaxText && utf8.ValidString(s) }

// check returns nil for a valid answer of this type.
func (a Answer) check(t envelope.Type) *Error {
	bad := func(format string, args ...any) *Error { return errorf(CodeInvalid, a.ProposalID, format, args...) }
	if t == envelope.TaskAccept {
		if a.EstimatedCompletionMs < 1 || a.EstimatedCompletionMs > MaxEstimate.Milliseconds() {
			return bad("estimatedCompletionMs must be 1 to %d, not %d", MaxEstimate.Milliseconds(), a.EstimatedCompletionMs)
		}
		return nil
	}
	switch {
	case !a.RejectionReason.valid():
		return bad("rejectionReason must be a code of lower-case letters, digits and hyphens, not %q", a.RejectionReason)
	case !text(a.Message):
		return bad("message must be UTF-8 of at most %d bytes", MaxText)
	case a.AlternativeSuggestion != "" && agent.CheckID(a.AlternativeSuggestion) != nil:
		return bad("alternativeSuggestion must be an agent's id, not %q", a.AlternativeSuggestion)
	}
	return nil
}

func (o Offer) proposal(from, to, thread string) Proposal {
	return Proposal{
		ID: o.ProposalID, TaskDescription: o.TaskDescription, RequiredCapabilities: slices.Clone(o.RequiredCapabilities),
		EstimatedComplexity: o.EstimatedComplexity, DeadlineMs: o.DeadlineMs, EscalationJustification: o.EscalationJustification,
		Input: slices.Clone(o.Input), Proposer: from, Recipient: to, Status: Pending, CorrelationID: thread,
	}
}

// proposalCost is what a proposal takes beside its texts, in bytes, about.
const proposalCost = 512

// size is how many bytes a proposal takes, about.
func (p *Proposal) size() int {
	n := proposalCost + len(p.TaskDescription) + len(p.EscalationJustification) + len(p.Input) + len(p.RejectionMessage)
	for _, c := range p.RequiredCapabilities {
		n += len(c)
	}
	return n
}

// settle returns the proposal as the answer leaves it.
func (p Proposal) settle(t envelope.Type, a Answer) Proposal {
	if t == envelope.TaskAccept {
		p.Status, p.AcceptedBy, p.EstimatedCompletionMs = Accepted, a.AgentID, a.EstimatedCompletionMs
		return p
	}
	p.Status, p.RejectionReason, p.RejectionMessage, p.AlternativeSuggestion = Rejected, a.RejectionReason, a.Message, a.AlternativeSuggestion
	return p
}
