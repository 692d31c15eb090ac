package registry

import "fmt"

// Code says what kind of thing went wrong.
type Code string

// The codes of an [Error].
const (
	CodeInvalidCard     Code = "INVALID_CARD"     // fields are missing or wrong; wraps an *agent.Error
	CodeAgentNotFound   Code = "AGENT_NOT_FOUND"  //
	CodeConflict        Code = "AGENT_CONFLICT"   // somebody else has this id
	CodeFull            Code = "REGISTRY_FULL"    // Options.MaxCards is reached
	CodeClosed          Code = "REGISTRY_CLOSED"  //
	CodeDiscovery       Code = "DISCOVERY_EXISTS" // a source of this name is enabled
	CodeInvalidRegistry Code = "INVALID_REGISTRY" // not the JSON of a registry
)

// Error is what the package returns.
type Error struct {
	Code    Code   // for programs
	AgentID string // if it is about one agent
	Message string // for people, without the cause
	Err     error  // the cause, may be nil
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

var errClosed = &Error{Code: CodeClosed, Message: "the registry is closed"}

func notFound(id string) *Error {
	return &Error{Code: CodeAgentNotFound, AgentID: id, Message: fmt.Sprintf("no agent %q is known", id)}
}

func conflict(id, why string) *Error {
	return &Error{Code: CodeConflict, AgentID: id, Message: fmt.Sprintf("agent %q cannot be merged: %s", id, why)}
}

func full(id string, limit int) *Error {
	return &Error{Code: CodeFull, AgentID: id, Message: fmt.Sprintf("the registry is full: it holds %d cards", limit)}
}
