package hub

import (
	"github.com/parleyhub/parley/internal/base/fault"
)

// Code is the kind of an error of the hub, independent of the wire format.
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
// hold no secrets; Subject is, for CodeInvalid, the offending parameter, e.g.
// "message.parts[0].text"; Err is the cause, for logs.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }
