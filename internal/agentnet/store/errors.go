package store

import (
	"errors"
	"fmt"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
)

// Code is the code of an [Error]: a category, in the specification's words.
type Code string

// The codes of an [Error].
const (
	ValidationError    Code = "ValidationError"    // the caller's argument is wrong
	NotFoundError      Code = "NotFoundError"      // no such agent, item or message, or none the caller may see
	NotRegisteredError Code = "NotRegisteredError" // the agent is not registered
	ConflictError      Code = "ConflictError"      // another agent holds it
	RateLimitError     Code = "RateLimitError"     // too often, see RetryAfter
	ConnectionError    Code = "ConnectionError"    // the bus cannot be used
	InternalError      Code = "InternalError"
)

// Error is the error type of the agents' network. Message and Remedy are fit for
// agents and people and hold no secrets; Err is the cause, for logs.
type Error = fault.ToolError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

// Invalid returns a ValidationError.
func Invalid(format string, args ...any) *Error {
	return &Error{Code: ValidationError, Message: fmt.Sprintf(format, args...)}
}

// The states in which a network or an agent cannot be used.
var (
	ErrClosed = &Error{Code: ConnectionError, Message: "The connection to the agents' network is closed.",
		Remedy: "Restart the MCP server."}
	ErrNotYet = &Error{Code: ConnectionError, Message: "The agents' network has not been reached yet.",
		Remedy: "The connection is being retried; try again in a moment."}
	ErrNotRegistered = &Error{Code: NotRegisteredError, Message: "You are not registered in the agents' network any more.",
		Remedy: "Call register_agent."}
	ErrReplaced = &Error{Code: NotRegisteredError,
		Message: "Another process has taken over your identity, because your heartbeats were missing for too long.",
		Remedy:  "Call register_agent to get an identity of your own."}
)

// IsNotFound reports whether err is a NotFoundError.
func IsNotFound(err error) bool {
	return CodeOf(err) == NotFoundError
}

// IsUnreachable reports whether err says that the bus cannot be used now. A closed
// network is not unreachable: it stays closed.
func IsUnreachable(err error) bool {
	return CodeOf(err) == ConnectionError && !errors.Is(err, ErrClosed)
}

// AsError returns an [Error] that explains a failure of the bus; nil for nil, and an Error unchanged.
func AsError(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*bus.Error](err); ok {
		return &Error{Code: ConnectionError, Message: text.Sentence(e.Message), Remedy: text.Sentence(e.Remedy), Err: err}
	}
	if statefile.IsShortage(err) {
		return &Error{Code: InternalError, Message: "No file can be opened now: descriptors or memory are missing.",
			Remedy: "Try again; if it fails again, raise the limit (ulimit -n) of the program that has started this one.", Err: err}
	}
	return &Error{Code: ConnectionError, Message: "The agents' network did not answer as expected.",
		Remedy: "Try again; if it fails again, run `" + local.Program() + " doctor`.", Err: err}
}

// Quote quotes what somebody typed, shortened to 80 bytes.
func Quote(typed string) string { return text.Quote(typed, 80) }
