package registry

import (
	"fmt"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/fault"
)

// Code is the kind of an [Error].
type Code string

// The codes of an [Error].
const (
	CodeInvalidCard     Code = "INVALID_CARD"             // fields are missing or wrong; wraps an *agent.Error
	CodeWrongTier       Code = "WRONG_TIER"               // not the tier that Options.Tiers gives to this id
	CodeAgentNotFound   Code = "AGENT_NOT_FOUND"          //
	CodeConflict        Code = "AGENT_CONFLICT"           // another agent has this id
	CodeFull            Code = "REGISTRY_FULL"            // Options.MaxCards is reached
	CodeClosed          Code = "REGISTRY_CLOSED"          //
	CodeDiscovery       Code = "DISCOVERY_EXISTS"         // a source of this name is enabled
	CodeNotConfigured   Code = "DISCOVERY_NOT_CONFIGURED" // a source that can do nothing
	CodeInvalidRegistry Code = "INVALID_REGISTRY"         // not the JSON of a registry
)

// Error is what the package returns. Its fields are Code, Subject (the agent, if it is about one), Message and
// Err (the cause, may be nil). Its text is the message.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

var errClosed = &Error{Code: CodeClosed, Message: "the registry is closed"}

func notFound(id string) *Error {
	return &Error{Code: CodeAgentNotFound, Subject: id, Message: fmt.Sprintf("no agent %q is known", id)}
}

func wrongTier(card *agent.Card, want agent.Tier) *Error {
	return &Error{Code: CodeWrongTier, Subject: card.ID, Message: fmt.Sprintf("agent %q has tier %s and may not have %s: "+
		"correct its card, take another id, or let the registry's Options.Tiers make an exception", card.ID, want, card.Tier)}
}

func conflict(id, why string) *Error {
	return &Error{Code: CodeConflict, Subject: id, Message: fmt.Sprintf("agent %q cannot be merged: %s", id, why)}
}

func full(id string, limit int) *Error {
	return &Error{Code: CodeFull, Subject: id, Message: fmt.Sprintf("the registry is full: it holds %d cards", limit)}
}
