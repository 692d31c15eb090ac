package chat

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/bus"
)

// Category says what kind of thing went wrong, in the specification's words
// (REQ-ERROR-001).
type Category string

// The categories of an [Error].
const (
	ValidationError Category = "ValidationError" // the caller's argument is wrong
	NotFoundError   Category = "NotFoundError"   // no such channel
	ConnectionError Category = "ConnectionError" // the bus cannot be used
	ConflictError   Category = "ConflictError"   // the channel's place on the bus is taken
	InternalError   Category = "InternalError"
)

// Error is what the package returns. Message and Remedy are fit for agents and
// people and hold no secrets; Err is the cause, for logs.
type Error struct {
	Category Category
	Message  string
	Remedy   string // what to do next
	Err      error
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

// Explain returns the parts that an agent is told (REQ-ERROR-001).
func (e *Error) Explain() (category, message, remedy string) {
	return string(e.Category), e.Message, e.Remedy
}

var errClosed = &Error{Category: ConnectionError, Message: "The connection to the channels is closed.",
	Remedy: "Restart the MCP server."}

// connectionError puts a failure of the bus into words for agents.
func connectionError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*bus.Error](err); ok {
		return &Error{Category: ConnectionError, Message: sentence(e.Message), Remedy: sentence(e.Remedy), Err: err}
	}
	return &Error{Category: ConnectionError, Message: "The messages' server did not answer as it should.",
		Remedy: "Try again; if it stays so, run `parley doctor`.", Err: err}
}

// interrupted says that a connection which stood is gone, where to, and what is
// known of the reason (REQ-ERROR-002).
func interrupted(b *bus.Bus) *Error {
	info := b.Info()
	where, start := "the NATS server at "+info.URL, "nats-server -js"
	if info.Kind != bus.KindExternal {
		where, start = "the hub", "parley start"
	}
	message := "The connection to " + where + " is interrupted."
	if info.LastError != "" {
		message += " " + sentence(info.LastError)
	}
	return &Error{Category: ConnectionError, Message: message, Err: b.Conn().LastError(),
		Remedy: "It is being restored, and messages that you send meanwhile are queued: try again in a moment. If it stays so, " +
			"see that the server runs (" + start + "), or run `parley doctor`."}
}

// unanswered is connectionError over a connection that stands. Where nobody answers
// in time it says who does not (REQ-ERROR-002), and whether that is because
// something is forbidden: the server keeps silent then.
func unanswered(b *bus.Bus, err error) *Error {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
		return connectionError(err)
	}
	if denied := b.Conn().LastError(); errors.Is(denied, nats.ErrPermissionViolation) {
		return &Error{Category: ConnectionError, Message: "The server does not let this user use the channels.",
			Remedy: "Allow it to publish on the project's subjects and to use JetStream's API, or use another user.", Err: denied}
	}
	info := b.Info()
	e := &Error{Category: ConnectionError, Err: err, Message: "The NATS server at " + info.URL + " does not answer.",
		Remedy: "Try again in a moment. If it stays so, see the server's log: it may be overloaded, or its disk full."}
	if info.Kind != bus.KindExternal {
		e.Message = "The hub does not answer."
		e.Remedy = "Try again in a moment. If it stays so, run `parley doctor`, and restart the hub: parley stop, parley start."
	}
	return e
}

// sentence begins text with a capital, unless that is part of a URL, and ends
// it with a stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	word, _, _ := strings.Cut(text, " ")
	if first := text[0]; first >= 'a' && first <= 'z' && !strings.Contains(word, "://") {
		text = string(first-'a'+'A') + text[1:]
	}
	if last := text[len(text)-1]; last != '.' && last != '!' && last != '?' {
		text += "."
	}
	return text
}
