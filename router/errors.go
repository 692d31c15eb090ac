package router

import (
	"fmt"
	"slices"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/telemetry"
)

// Code is the kind of an [Error]: why an envelope was not delivered.
type Code string

// The codes of an [Error].
const (
	CodeAgentNotFound      Code = "AGENT_NOT_FOUND"      // neither local nor remote
	CodeCapabilityNotFound Code = "CAPABILITY_NOT_FOUND" //
	CodeInvalidEnvelope    Code = "INVALID_ENVELOPE"     // wraps an *envelope.Error
	CodeNoReceiver         Code = "NO_RECEIVER"          // the agent has a card but no handler
	CodeMailboxFull        Code = "MAILBOX_FULL"         // the receiver is slow; try again later
	CodeDeliveryFailed     Code = "DELIVERY_FAILED"      // the remote agent could not be reached
	CodeClosed             Code = "ROUTER_CLOSED"
	CodeInvalid            Code = "INVALID_ARGUMENT" // no registry, no handler

	// Refusals by policy: each gives a security event.
	CodeSenderUnknown      Code = "SENDER_UNKNOWN"    // no card, or not the sender's channel
	CodeMetadataMismatch   Code = "METADATA_MISMATCH" // tier or sandbox are not those of the card
	CodeTierViolation      Code = "TIER_VIOLATION"
	CodeSandboxViolation   Code = "SANDBOX_VIOLATION"
	CodeEscalationRequired Code = "ESCALATION_REQUIRED"
)

// refusal reports whether the code is a refusal by policy.
func (c Code) refusal() bool {
	return slices.Contains([]Code{CodeSenderUnknown, CodeMetadataMismatch, CodeTierViolation, CodeSandboxViolation, CodeEscalationRequired}, c)
}

// Error is what the package returns. Its fields are Code, Subject (the agent, or the capability, that could not
// be reached), Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func errorf(code Code, agentID, format string, args ...any) *Error {
	return &Error{Code: code, Subject: agentID, Message: fmt.Sprintf(format, args...)}
}

// Result describes the routing of an envelope.
type Result struct {
	// Delivered: the envelope is in the mailbox of its receiver; of a broadcast, of at least one. For a remote agent
	// it is queued for forwarding or, after [Router.SendWait], its channel has accepted it.
	Delivered bool           `json:"delivered"`
	Path      telemetry.Path `json:"path"`
	// TargetAgentID is the agent that it was delivered to, also if the recipient is a
	// capability; "*" for a broadcast.
	TargetAgentID string  `json:"targetAgentId"`
	LatencyMs     float64 `json:"latencyMs"`       // of the decision and the delivery, in milliseconds
	Error         string  `json:"error,omitempty"` // the text of the error that is returned with it

	Recipients int `json:"recipients,omitempty"` // agents that a broadcast was delivered to
	// Skipped are the agents that a broadcast was not delivered to. A sender in a sandbox learns only of those that it
	// may address and discover.
	Skipped []Skipped `json:"skipped,omitempty"`
}

// Skipped is an agent to which a broadcast was not delivered.
type Skipped struct {
	AgentID string `json:"agentId"`
	Code    Code   `json:"code"`
	Reason  string `json:"reason"` // for people
}

func notFound(id string) *Error {
	return errorf(CodeAgentNotFound, id, "no local or remote agent %q is known", id)
}

// sandboxViolation is the same for an agent outside and for one that does not exist.
func sandboxViolation(from agent.Identity, to string) *Error {
	return errorf(CodeSandboxViolation, to, "%q may not address %q, which is neither in its sandbox %q nor on the list of that sandbox", from.ID, to, from.SandboxID)
}

func noHandler(agentID string) *Error {
	return errorf(CodeInvalid, agentID, "%q needs a handler for its envelopes, and it is nil", agentID)
}

func noEnvelope() *Error {
	return errorf(CodeInvalidEnvelope, "", "there is no envelope: it is nil")
}

func senderUnknown(id string) *Error {
	return errorf(CodeSenderUnknown, id, "the sender %q has no registered card", id)
}

func noReceiver(id string) *Error {
	return errorf(CodeNoReceiver, id, "agent %q has no handler", id)
}

func full(id string) *Error {
	return errorf(CodeMailboxFull, id, "the mailbox of %q is full; try again later", id)
}

func tierViolation(from, to agent.Identity) *Error {
	return errorf(CodeTierViolation, to.ID, "%q (%v) may not address %q (%v)", from.ID, from.Tier, to.ID, to.Tier)
}
