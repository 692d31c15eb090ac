package chat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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

// requestError converts the error of a request about a channel's stream to a server that answers.
func (s *Space) requestError(b *bus.Bus, c Channel, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return connectionError(err)
	}
	e := &Error{Code: ConnectionError, Err: err,
		Message: fmt.Sprintf("The stream %s of the channel %q cannot be used at %s: %s", s.streamName(c.Name), c.Name, b.Info().URL, text.Sentence(api.Description)),
		Remedy:  "See the NATS server's log, or run `" + local.Program() + " doctor`."}
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		e.Message = "The NATS server at " + b.Info().URL + " runs without JetStream, or has disabled it for this account."
		e.Remedy = "Start it with -js, or enable JetStream for the account."
	case slices.Contains(streamOutages, api.ErrorCode):
		e.Remedy = "Make sure that a majority of the cluster's nodes runs; other channels can be used meanwhile."
	}
	return e
}

// interrupted returns the error of a connection that was lost, with the server and the known reason.
func interrupted(b *bus.Bus) *Error {
	info := b.Info()
	where, start := "the NATS server at "+info.URL, "nats-server -js"
	if info.Kind != bus.KindExternal {
		where, start = "the hub", local.Program()+" start"
	}
	message := "The connection to " + where + " is interrupted."
	last := b.Connection().Err
	if last != nil && !bus.IsOutage(last) { // such as refused credentials: nothing is restored by itself
		return connectionError(last)
	}
	if info.LastError != "" {
		message += " " + text.Sentence(info.LastError)
	}
	return &Error{Code: ConnectionError, Message: message, Err: cmp.Or(last, nats.ErrDisconnected),
		Remedy: "It is being restored, and messages that you send meanwhile are queued: try again in a moment. If the problem persists, " +
			"make sure that the server runs (" + start + "), or run `" + local.Program() + " doctor`."}
}

// unanswered converts the error of a request about a channel with a context of request. A missing permission and a
// missing answer are told apart, and with the latter whether the server answers at all.
func (s *Space) unanswered(ctx context.Context, b *bus.Bus, c Channel, err error) error {
	if denied := b.DeniedBy(ctx); denied != nil {
		return &Error{Code: ConnectionError, Err: denied,
			Message: fmt.Sprintf("The server does not let this user use the channel %q. %s", c.Name, text.Sentence(denied.(*bus.Error).Message)),
			Remedy:  "Allow it to publish on the project's subjects and to use JetStream's API, or use another user."}
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	late := isTimeout(err)
	switch {
	case !late && !bus.IsOutage(err):
		return s.requestError(b, c, err)
	case !late || lost(b.Connection()): // it was refused, or lost
		return interrupted(b)
	}
	info := b.Info()
	s.ail(c.Name)
	if answers(b) {
		return &Error{Code: ConnectionError, Err: err,
			Message: fmt.Sprintf("The stream %s of the channel %q does not answer at %s, although the server does.", s.streamName(c.Name), c.Name, info.URL),
			Remedy: "Try again in a moment; other channels can be used meanwhile. In a cluster, make sure that a majority of the nodes with " +
				"the stream's copies runs (nats stream info " + s.streamName(c.Name) + ")."}
	}
	e := &Error{Code: ConnectionError, Err: err, Message: "The NATS server at " + info.URL + " does not answer.",
		Remedy: "Try again in a moment. If the problem persists, see the server's log: it may be overloaded, or its disk full."}
	if info.Kind != bus.KindExternal {
		e.Message = "The hub does not answer."
		e.Remedy = "Try again in a moment. If the problem persists, run `" + local.Program() + " doctor`, and restart the hub: " + local.Program() + " stop, " + local.Program() + " start."
	}
	return e
}

// lost reports whether a request that has just timed out was lost with its connection, even if there is another one by now.
func lost(c bus.Connection) bool {
	return c.LostSince(time.Now().Add(-requestTimeout))
}

// denied reports whether the server refused a permission.
func denied(err error) bool { return errors.Is(err, nats.ErrPermissionViolation) }

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders)
}

// pingTimeout bounds the check whether a server answers at all.
const pingTimeout = 500 * time.Millisecond

func answers(b *bus.Bus) bool {
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	return b.Conn().FlushWithContext(ctx) == nil
}
