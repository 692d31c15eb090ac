package agentnet

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/bus"
)

// Category says what kind of thing went wrong, in the specification's words
// (REQ-ERROR-001).
type Category string

// The categories of an [Error].
const (
	ValidationError    Category = "ValidationError"    // the caller's argument is wrong
	NotFoundError      Category = "NotFoundError"      // no such agent, item or message, or not for the caller
	NotRegisteredError Category = "NotRegisteredError" // the agent has no place in the network
	ConflictError      Category = "ConflictError"      // somebody else holds it
	RateLimitError     Category = "RateLimitError"     // too often, see RetryAfter
	ConnectionError    Category = "ConnectionError"    // the bus cannot be used
	InternalError      Category = "InternalError"
)

// Error is what the package returns. Message and Remedy are fit for agents and
// people and hold no secrets; Err is the cause, for logs.
type Error struct {
	Category Category
	Message  string
	Remedy   string // what to do next
	// RetryAfter is when a limit allows the next try (REQ-ABUSE-005).
	RetryAfter time.Duration
	Err        error
}

// Error returns the message and the remedy.
func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Message
	}
	return fmt.Sprintf("%s %s", e.Message, e.Remedy)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

var errClosed = &Error{Category: ConnectionError, Message: "The connection to the agents' network is closed.",
	Remedy: "Restart the MCP server."}

var errNotYet = &Error{Category: ConnectionError, Message: "The agents' network has not been reached yet.",
	Remedy: "It is being tried; try again in a moment."}

var errGone = &Error{Category: NotRegisteredError, Message: "You are not registered in the agents' network any more.",
	Remedy: "Call register_agent."}

var errReplaced = &Error{Category: NotRegisteredError,
	Message: "Another process has taken over your identity, because you were not heard of for too long.",
	Remedy:  "Call register_agent to get one of your own."}

func isNotFound(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Category == NotFoundError
}

func invalid(format string, args ...any) *Error {
	return &Error{Category: ValidationError, Message: fmt.Sprintf(format, args...)}
}

// remedy adds what to do.
func (e *Error) remedy(format string, args ...any) *Error {
	e.Remedy = fmt.Sprintf(format, args...)
	return e
}

// connectionError puts a failure of the bus into words for agents.
func connectionError(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*bus.Error](err); ok {
		return &Error{Category: ConnectionError, Message: sentence(e.Message), Remedy: sentence(e.Remedy), Err: err}
	}
	return &Error{Category: ConnectionError, Message: "The agents' network did not answer as it should.",
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

// Explain returns the error's parts in words for agents.
func (e *Error) Explain() (category, message, remedy string) {
	return string(e.Category), e.Message, e.Remedy
}

// RetryIn is when to try again, 0 where there is no limit.
func (e *Error) RetryIn() time.Duration { return e.RetryAfter }
