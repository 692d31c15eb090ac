package hub

import "fmt"

// Code says what kind of thing went wrong in the hub, whatever the wire.
type Code string

// The codes of an [Error]. The hub's dialect and A2A each map them to numbers.
const (
	CodeInvalid         Code = "invalid"         // a parameter is wrong: Field names it
	CodeTaskNotFound    Code = "task-not-found"  //
	CodeNotCancelable   Code = "not-cancelable"  // the task has ended
	CodeAgentNotFound   Code = "agent-not-found" //
	CodeUnavailable     Code = "unavailable"     // agent missing, circuit open, queue full, hub closing
	CodeUnsupported     Code = "unsupported"     // e.g. a message to a task that has ended
	CodeAuth            Code = "auth"            // the agent has no credentials
	CodeTimeout         Code = "timeout"         // the caller's or the agent's limit
	CodeContextNotFound Code = "context-not-found"
	CodeInternal        Code = "internal"
)

// Error is what the package returns. Message and Remedy are fit for users and
// hold no secrets; Err is the cause, for logs.
type Error struct {
	Code    Code
	Message string
	Remedy  string // what to do next, may be empty
	Field   string // for CodeInvalid: the offending parameter, e.g. "message.parts[0].text"
	Err     error
}

// Error returns the message, and the remedy where there is one.
func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Message
	}
	return fmt.Sprintf("%s; %s", e.Message, e.Remedy)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
