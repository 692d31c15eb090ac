package negotiation

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/text"
)

// Limits of a proposal and its answers.
const (
	MaxText         = 64 << 10 // bytes of a description or a justification
	MaxCapabilities = 64       // required capabilities
	MaxDeadline     = 7 * 24 * time.Hour
	MaxEstimate     = 365 * 24 * time.Hour
)

// Complexity is the estimated amount of work.
type Complexity string

// The complexities of the specification.
const (
	Simple  Complexity = "simple"
	Medium  Complexity = "medium"
	Complex Complexity = "complex"
)

func (c Complexity) valid() bool { return c == Simple || c == Medium || c == Complex }

// Status is the state of a proposal.
type Status string

// A proposal is pending, and then one of the others for ever.
const (
	Pending  Status = "pending"
	Accepted Status = "accepted"
	Rejected Status = "rejected"
	TimedOut Status = "timed-out"
)

// Reason is why a proposal is rejected: a code in lower case.
type Reason string

// Reasons for a rejection. Agents may give others.
const (
	Declined          Reason = "declined"
	Busy              Reason = "busy"
	MissingCapability Reason = "missing-capability"
	InvalidProposal   Reason = "invalid-proposal" // given by the package itself
	Overloaded        Reason = "overloaded"       // given by the package itself
)

var reasonPattern = text.Pattern(`^[a-z0-9]+(-[a-z0-9]+)*$`)

func (r Reason) valid() bool { return len(r) <= 64 && reasonPattern().MatchString(string(r)) }

// Terms are the terms of a proposal.
type Terms struct {
	TaskDescription         string          // required, at most MaxText bytes
	RequiredCapabilities    []string        // ids; may be empty
	EstimatedComplexity     Complexity      // required
	Deadline                time.Duration   // for the answer: whole milliseconds, at least one, at most MaxDeadline
	EscalationJustification string          // required from L2 and L3 to L0 and L1
	CorrelationID           string          // of an existing thread; empty begins one
	Input                   json.RawMessage // of the task, any JSON
}

// Proposal is a snapshot of one proposed task.
type Proposal struct {
	ID                      string          `json:"proposalId"` // unique; chosen by the proposer
	TaskDescription         string          `json:"taskDescription"`
	RequiredCapabilities    []string        `json:"requiredCapabilities"`
	EstimatedComplexity     Complexity      `json:"estimatedComplexity"`
	DeadlineMs              int64           `json:"deadlineMs"`                        // for the answer, in milliseconds
	EscalationJustification string          `json:"escalationJustification,omitempty"` // why L2 or L3 ask L0 or L1
	Input                   json.RawMessage `json:"input,omitempty"`                   // of the task; empty: none
	Proposer                string          `json:"proposerAgentId"`
	Recipient               string          `json:"recipientAgentId"`
	Status                  Status          `json:"status"`
	AcceptedBy              string          `json:"acceptedBy,omitempty"`            // Recipient, once it is accepted
	EstimatedCompletionMs   int64           `json:"estimatedCompletionMs,omitempty"` // milliseconds from the acceptance
	RejectionReason         Reason          `json:"rejectionReason,omitempty"`
	RejectionMessage        string          `json:"rejectionMessage,omitempty"`      // for people, may be empty
	AlternativeSuggestion   string          `json:"alternativeSuggestion,omitempty"` // an agent that may do the task instead
	CorrelationID           string          `json:"correlationId"`                   // of the thread of all its envelopes
}

// Offer is the payload of a task-proposal.
type Offer struct {
	ProposalID           string     `json:"proposalId"` // chosen by the proposer; empty means the envelope's id
	TaskDescription      string     `json:"taskDescription"`
	RequiredCapabilities []string   `json:"requiredCapabilities"` // not nil, but may be empty
	EstimatedComplexity  Complexity `json:"estimatedComplexity"`
	// DeadlineMs is the deadline of the answer in milliseconds, on each side's own clock
	// from sending or receiving the envelope.
	DeadlineMs              int64           `json:"deadlineMs"`
	EscalationJustification string          `json:"escalationJustification,omitempty"` // required from L2 and L3 to L0 and L1
	Input                   json.RawMessage `json:"input,omitempty"`                   // of the task
}

// DecodeOffer reads the payload of a task-proposal. It returns the fields that can be
// read, and an [*Error] with CodeInvalid if a field is missing or wrong.
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
		o.ProposalID = e.ID // an answer must name the proposal
	}
	return o, err
}

// Answer is the payload of a task-accept or a task-reject. An agent without a
// [Negotiator] sends it as the reply to the proposal's envelope.
type Answer struct {
	ProposalID            string `json:"proposalId"`
	AgentID               string `json:"agentId"`                         // that answers
	EstimatedCompletionMs int64  `json:"estimatedCompletionMs,omitempty"` // of a task-accept: milliseconds from now, at least one
	RejectionReason       Reason `json:"rejectionReason,omitempty"`       // of a task-reject
	Message               string `json:"message,omitempty"`               // of a task-reject: the reason for people
	AlternativeSuggestion string `json:"alternativeSuggestion,omitempty"` // of a task-reject: an agent that may do the task
}

// Refusal is the payload of the error with which a proposer refuses an acceptance, for
// instance a late one. The agent that accepted must not begin the task.
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
	case !isText(o.TaskDescription) || !isText(o.EscalationJustification):
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
	case len(o.Input) > 0 && (!utf8.Valid(o.Input) || !json.Valid(o.Input)):
		return bad("input is not JSON")
	}
	return nil
}

func isText(s string) bool { return len(s) <= MaxText && utf8.ValidString(s) }

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
	case !isText(a.Message):
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

// proposalCost is the approximate size of a proposal without its texts, in bytes.
const proposalCost = 512

// size is the approximate size of a proposal in bytes.
func (p *Proposal) size() int {
	n := proposalCost + len(p.TaskDescription) + len(p.EscalationJustification) + len(p.Input) + len(p.RejectionMessage)
	for _, c := range p.RequiredCapabilities {
		n += len(c)
	}
	return n
}

// settle returns the answered proposal.
func (p Proposal) settle(t envelope.Type, a Answer) Proposal {
	if t == envelope.TaskAccept {
		p.Status, p.AcceptedBy, p.EstimatedCompletionMs = Accepted, a.AgentID, a.EstimatedCompletionMs
		return p
	}
	p.Status, p.RejectionReason, p.RejectionMessage, p.AlternativeSuggestion = Rejected, a.RejectionReason, a.Message, a.AlternativeSuggestion
	return p
}
