package chat

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
)

// Code is the category of an [Error], as the specification names it.
type Code string

// The categories of an [Error].
const (
	ValidationError Code = "ValidationError" // the caller's argument is wrong
	NotFoundError   Code = "NotFoundError"   // no such channel
	ConnectionError Code = "ConnectionError" // the bus cannot be used
	ConflictError   Code = "ConflictError"   // the channel's stream or subject belongs to another program
	InternalError   Code = "InternalError"
)

// Error is what the package returns. Message and Remedy are fit for agents and
// people and hold no secrets; Err is the cause, for logs.
type Error = fault.ToolError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

var errClosed = &Error{Code: ConnectionError, Message: "The connection to the channels is closed.",
	Remedy: "Restart the MCP server."}

// invalid returns a ValidationError.
func invalid(remedy, format string, args ...any) *Error {
	return &Error{Code: ValidationError, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

// connectionError converts a failure of the bus.
func connectionError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*bus.Error](err); ok {
		return &Error{Code: ConnectionError, Message: text.Sentence(e.Message), Remedy: text.Sentence(e.Remedy), Err: err}
	}
	return &Error{Code: ConnectionError, Message: "The NATS server returned an unexpected error.",
		Remedy: "Try again; if the problem persists, run `" + local.Program() + " doctor`.", Err: err}
}

// interrupted returns the error of a connection that was lost, with the server and the known reason.
func interrupted(b *bus.Bus) *Error {
	info := b.Info()
	where, start := "the NATS server at "+info.URL, "nats-server -js"
	if info.Kind != bus.KindExternal {
		where, start = "the hub", local.Program()+" start"
	}
	message := "The connection to " + where + " is interrupted."
	if info.LastError != "" {
		message += " " + text.Sentence(info.LastError)
	}
	return &Error{Code: ConnectionError, Message: message, Err: b.Conn().LastError(),
		Remedy: "It is being restored, and messages that you send meanwhile are queued: try again in a moment. If the problem persists, " +
			"make sure that the server runs (" + start + "), or run `" + local.Program() + " doctor`."}
}

// unanswered is connectionError for an established connection. A timeout is reported with the server's name, or as
// missing permissions: the server does not answer what it forbids.
func unanswered(b *bus.Bus, err error) *Error {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
		return connectionError(err)
	}
	if denied := b.Conn().LastError(); errors.Is(denied, nats.ErrPermissionViolation) {
		return &Error{Code: ConnectionError, Message: "The server does not let this user use the channels.",
			Remedy: "Allow it to publish on the project's subjects and to use JetStream's API, or use another user.", Err: denied}
	}
	info := b.Info()
	e := &Error{Code: ConnectionError, Err: err, Message: "The NATS server at " + info.URL + " does not answer.",
		Remedy: "Try again in a moment. If the problem persists, see the server's log: it may be overloaded, or its disk full."}
	if info.Kind != bus.KindExternal {
		e.Message = "The hub does not answer."
		e.Remedy = "Try again in a moment. If the problem persists, run `" + local.Program() + " doctor`, and restart the hub: " + local.Program() + " stop, " + local.Program() + " start."
	}
	return e
}
