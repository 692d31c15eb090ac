package agentnet

import (
	"errors"
	"fmt"
	"strings"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/bus"
)

// Category says what kind of thing went wrong, in the specification's words
// (REQ-ERROR-001).
type Code string

// The categories of an [Error].
const (
	ValidationError    Code = "ValidationError"    // the caller's argument is wrong
	NotFoundError      Code = "NotFoundError"      // no such agent, item or message, or not for the caller
	NotRegisteredError Code = "NotRegisteredError" // the agent has no place in the network
	ConflictError      Code = "ConflictError"      // somebody else holds it
	RateLimitError     Code = "RateLimitError"     // too often, see RetryAfter
	ConnectionError    Code = "ConnectionError"    // the bus cannot be used
	InternalError      Code = "InternalError"
)

// Error is what the package returns. Message and Remedy are fit for agents and
// people and hold no secrets; Err is the cause, for logs.
type Error = fault.ToolError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

var errClosed = &Error{Code: ConnectionError, Message: "The connection to the agents' network is closed.",
	Remedy: "Restart the MCP server."}

var errNotYet = &Error{Code: ConnectionError, Message: "The agents' network has not been reached yet.",
	Remedy: "It is being tried; try again in a moment."}

var errGone = &Error{Code: NotRegisteredError, Message: "You are not registered in the agents' network any more.",
	Remedy: "Call register_agent."}

var errReplaced = &Error{Code: NotRegisteredError,
	Message: "Another process has taken over your identity, because you were not heard of for too long.",
	Remedy:  "Call register_agent to get one of your own."}

func isNotFound(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == NotFoundError
}

func invalid(format string, args ...any) *Error {
	return &Error{Code: ValidationError, Message: fmt.Sprintf(format, args...)}
}

// connectionError puts a failure of the bus into words for agents.
func connectionError(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*bus.Error](err); ok {
		return &Error{Code: ConnectionError, Message: sentence(e.Message), Remedy: sentence(e.Remedy), Err: err}
	}
	return &Error{Code: ConnectionError, Message: "The agents' network did not answer as it should.",
		Remedy: "Try again; if it stays so, run `parley doctor`.", Err: err}
}

// sentence begins text with a capital and ends it with a stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	if first := text[0]; first >= 'a' && first <= 'z' {
		text = string(first-'a'+'A') + text[1:]
	}
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}

// quote shows what somebody typed, shortened.
func quote(text string) string {
	if len(text) > 80 {
		text = strings.ToValidUTF8(text[:80], "") + "…"
	}
	return fmt.Sprintf("%q", text)
}
