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
	TimedOut Status = "timed-out" // Req 7.4
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

// Terms is what a proposer asks for (Req 7.1).
type Terms struct {
	TaskDescription      string
	RequiredCapabilities []string
	EstimatedComplexity  Complexity
	// Deadline is how long the proposer waits for an answer: whole milliseconds,
	// at least one and at most MaxDeadline.
	Deadline time.Duration
	// EscalationJustification is needed of L2 and L3 towards L0 and L1 (Req 11.2).
	EscalationJustification string
	// CorrelationID puts the proposal into a thread that exists; empty begins one.
	CorrelationID string
	// Input is what the task works on, any JSON; it travels as it is.
	Input json.RawMessage
}

// Proposal is one proposed task. It is a snapshot: it does not change any more.
type Proposal struct {
	ID                      string          `json:"proposalId"`
	TaskDescription         string          `json:"taskDescription"`
	RequiredCapabilities    []string        `json:"requiredCapabilities"`
	EstimatedComplexity     Complexity      `json:"estimatedComplexity"`
	DeadlineMs              int64           `json:"deadlineMs"`
	EscalationJustification string          `json:"escalationJustification,omitempty"`
	Input                   json.RawMessage `json:"input,omitempty"`
	Proposer                string          `json:"proposerAgentId"`
	Recipient               string          `json:"recipientAgentId"`
	Status                  Status          `json:"status"`
	AcceptedBy              string          `json:"acceptedBy,omitempty"`
	// EstimatedCompletionMs is how long the task will take, if it is accepted.
	EstimatedCompletionMs int64  `json:"estimatedCompletionMs,omitempty"`
	RejectionReason       Reason `json:"rejectionReason,omitempty"`
	// AlternativeSuggestion is an agent that may want the task instead.
	AlternativeSuggestion string `json:"alternativeSuggestion,omitempty"`
	CorrelationID         string `json:"correlationId"`
}

// payload is what travels. A proposal uses the first fields, an answer the others.
type payload struct {
	ProposalID              string          `json:"proposalId"`
	TaskDescription         string          `json:"taskDescription"`
	RequiredCapabilities    []string        `json:"requiredCapabilities"`
	EstimatedComplexity     Complexity      `json:"estimatedComplexity"`
	DeadlineMs              int64           `json:"deadlineMs"`
	EscalationJustification string          `json:"escalationJustification,omitempty"`
	Input                   json.RawMessage `json:"input,omitempty"`
}

// answer is the payload of a task-accept (Req 7.2) or a task-reject (Req 7.3).
type answer struct {
	ProposalID            string `json:"proposalId"`
	AgentID               string `json:"agentId"`
	EstimatedCompletionMs int64  `json:"estimatedCompletionMs,omitempty"`
	RejectionReason       Reason `json:"rejectionReason,omitempty"`
	AlternativeSuggestion string `json:"alternativeSuggestion,omitempty"`
}

// refusal is the payload of the error that answers an answer.
type refusal struct {
	ProposalID string `json:"proposalId"`
	Code       Code   `json:"code"`
	Message    string `json:"message"`
}

func (t Terms) payload(id string) payload {
	capabilities := t.RequiredCapabilities
	if capabilities == nil {
		capabilities = []string{}
	}
	return payload{
		ProposalID: id, TaskDescription: t.TaskDescription, RequiredCapabilities: capabilities,
		EstimatedComplexity: t.EstimatedComplexity, DeadlineMs: t.Deadline.Milliseconds(),
		EscalationJustification: t.EscalationJustification, Input: t.Input,
	}
}

func (p payload) deadline() time.Duration { return time.Duration(p.DeadlineMs) * time.Millisecond }

// check returns nil for a proposal as Req 7.1 wants it.
func (p payload) check() *Error {
	bad := func(format string, args ...any) *Error { return errorf(CodeInvalid, p.ProposalID, format, args...) }
	switch {
	case agent.CheckID(p.ProposalID) != nil:
		return bad("proposalId must be 1 to %d characters without spaces", agent.MaxIDLength)
	case strings.TrimSpace(p.TaskDescription) == "":
		return bad("taskDescription is missing")
	case !text(p.TaskDescription) || !text(p.EscalationJustification):
		return bad("taskDescription and escalationJustification must be UTF-8 of at most %d bytes", MaxText)
	case p.RequiredCapabilities == nil:
		return bad("requiredCapabilities is missing")
	case len(p.RequiredCapabilities) > MaxCapabilities:
		return bad("there are %d requiredCapabilities, at most %d are allowed", len(p.RequiredCapabilities), MaxCapabilities)
	case slices.ContainsFunc(p.RequiredCapabilities, func(c string) bool { return agent.CheckID(c) != nil }):
		return bad("requiredCapabilities must be ids of capabilities")
	case !p.EstimatedComplexity.valid():
		return bad("estimatedComplexity must be %q, %q or %q, not %q", Simple, Medium, Complex, p.EstimatedComplexity)
	case p.DeadlineMs < 1 || p.DeadlineMs > MaxDeadline.Milliseconds():
		return bad("deadlineMs must be 1 to %d, not %d", MaxDeadline.Milliseconds(), p.DeadlineMs)
	case len(p.Input) > 0 && !json.Valid(p.Input):
		return bad("input is not JSON")
	}
	return nil
}

func text(s string) bool { return len(s) <= MaxText && utf8.ValidString(s) }

// check returns nil for an answer of this type as Req 7.2 and 7.3 want it.
func (a answer) check(t envelope.Type) *Error {
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
	case a.AlternativeSuggestion != "" && agent.CheckID(a.AlternativeSuggestion) != nil:
		return bad("alternativeSuggestion must be an agent's id, not %q", a.AlternativeSuggestion)
	}
	return nil
}

func (p payload) proposal(from, to, thread string) Proposal {
	return Proposal{
		ID: p.ProposalID, TaskDescription: p.TaskDescription, RequiredCapabilities: slices.Clone(p.RequiredCapabilities),
		EstimatedComplexity: p.EstimatedComplexity, DeadlineMs: p.DeadlineMs, EscalationJustification: p.EscalationJustification,
		Input: slices.Clone(p.Input), Proposer: from, Recipient: to, Status: Pending, CorrelationID: thread,
	}
}

// settle returns the proposal as the answer leaves it.
func (p Proposal) settle(t envelope.Type, a answer) Proposal {
	if t == envelope.TaskAccept {
		p.Status, p.AcceptedBy, p.EstimatedCompletionMs = Accepted, a.AgentID, a.EstimatedCompletionMs
		return p
	}
	p.Status, p.RejectionReason, p.AlternativeSuggestion = Rejected, a.RejectionReason, a.AlternativeSuggestion
	return p
}
