// Package transport defines how the bytes of a link between two agents travel.
// Each transport has a package of its own; package channel builds ordered,
// acknowledged, resumable channels on any of them, and package
// transport/transporttest has the tests that each must pass.
//
// A transport carries [Frame]s over a [Conn]. It promises little: while a
// connection lives, frames arrive once and in order; when it breaks, nobody
// knows which have arrived. The rest is the channel's work.
package transport

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
)

// Conn is one connection. Send and Receive may be used at the same time, each
// from one goroutine at a time; Close and Peer from any.
type Conn interface {
	// Send hands frames on in order. It blocks while the connection takes no
	// more, at most until ctx ends. It does not keep the slice. An [*Error] with
	// CodeNotSent or CodeTooLarge means that none of the frames was sent and the
	// connection still lives; after any other error it is of no more use, but for
	// Receive to return what has arrived.
	Send(ctx context.Context, frames []Frame) error
	// Receive returns the next frames, at least one, in order. It blocks until
	// some arrive, ctx ends or the connection breaks. The slice is the caller's
	// until the next call.
	Receive(ctx context.Context) ([]Frame, error)
	// Peer names who is at the other end, as the transport has authenticated
	// them; "" means it does not know.
	Peer() string
	// Close ends the connection and wakes whoever uses it. What was sent before
	// still arrives, unless the connection breaks: a peer's last word is not lost.
	// It may wait for that, at most a second or two, and is safe to call more than
	// once.
	Close() error
}

// Pusher is a Conn that can call when frames arrive, so that nobody has to wait
// in Receive. A connection is read in one of the two ways, not both.
type Pusher interface {
	// Push has f called with what arrives, in order and one call at a time, and at
	// last, once, with the error that ended the connection. f must not block; it
	// is called from the goroutine of whoever sends or closes.
	Push(f func(frames []Frame, err error))
}

// Dialer opens connections.
type Dialer interface {
	// Dial connects to an endpoint. It blocks until that is done or ctx ends.
	Dial(ctx context.Context, to agent.Endpoint) (Conn, error)
}

// Listener takes connections.
type Listener interface {
	// Accept returns the next connection. It blocks until there is one, ctx ends
	// or the listener is closed (CodeClosed).
	Accept(ctx context.Context) (Conn, error)
	// Endpoint is where to dial.
	Endpoint() agent.Endpoint
	// Close ends the listener and wakes whoever waits in Accept. Connections that
	// were accepted live on.
	Close() error
}

// Kind is what a frame says.
type Kind uint8

// The kinds of frame.
const (
	Open   Kind = iota + 1 // the opener asks for a channel, or to resume one; has Hello
	Accept                 // the acceptor agrees; has Hello
	Ready                  // the opener acknowledges: the channel is open at both ends
	Refuse                 // the acceptor does not agree; has Reason
	Data                   // one envelope
	Ack                    // what has arrived
	Close                  // the channel ends; has Reason
	Reject                 // an envelope arrived and cannot be read; has Seq and Reason
)

// Frame is what a connection carries.
type Frame struct {
	Kind Kind // says which of the other fields count
	// Seq of Data and Reject numbers the envelopes of one direction of a channel
	// from 1; of Ack it is the highest number up to which all have arrived.
	Seq uint64
	// Ack, of Data and Ack, is the highest number up to which all were handled.
	Ack uint64
	// Envelope of Data; nil says that the sender has given this number up.
	Envelope *envelope.Envelope
	// Err, of Data that was received without Envelope, says why that cannot be
	// read: too large for this end, say, or of another schema version. It does not
	// travel.
	Err    error
	Hello  *Hello  // of Open and Accept
	Reason *Reason // of Refuse, Close and Reject
}

// Version is the version of the frames' protocol.
const Version = 1

// Hello opens or resumes a channel.
type Hello struct {
	Version int    `json:"version"` // of the protocol: [Version]
	Channel string `json:"channel"` // the channel's id
	// Secret was chosen by the opener; only who knows it can resume the channel.
	Secret string `json:"secret,omitempty"`
	// Instance was chosen by the opener's process, at random. It tells two processes
	// apart that speak for an agent of the same id; only the acceptor sees it.
	Instance string `json:"instance,omitempty"`
	From     string `json:"from"`             // agent id of this end
	To       string `json:"to"`               // agent id of the other end
	Resume   bool   `json:"resume,omitempty"` // the channel was open before
	// Received is the highest number up to which this end has all envelopes.
	Received uint64 `json:"received"`
	// Base is the highest number up to which this end knows that the other has
	// handled all; it can send again what follows.
	Base   uint64 `json:"base"`
	Window int    `json:"window"` // unhandled envelopes that this end takes
	// WindowBytes is how many bytes they may have together, as envelope.Size counts
	// them; an envelope that is larger goes alone. 0 means not stated.
	WindowBytes int `json:"windowBytes,omitempty"`
	// Card is this end's agent card, as JSON, if it introduces itself.
	Card json.RawMessage `json:"card,omitempty"`
}

// Reason says why something ended.
type Reason struct {
	Code    string `json:"code"`    // for programs
	Message string `json:"message"` // for people
}

// Code says what kind of thing went wrong.
type Code string

// The codes of an [Error].
const (
	CodeClosed       Code = "TRANSPORT_CLOSED"       // the connection or the listener is gone
	CodeUnreachable  Code = "TRANSPORT_UNREACHABLE"  // nobody answers at the endpoint
	CodeUnauthorized Code = "TRANSPORT_UNAUTHORIZED" // the other side does not know us
	CodeNotSent      Code = "TRANSPORT_NOT_SENT"     // not sent this time; the connection lives
	CodeTooLarge     Code = "TRANSPORT_TOO_LARGE"    // can never be sent; the connection lives
	CodeInvalid      Code = "TRANSPORT_INVALID"      // not a frame, or an endpoint of another transport
)

// Error is what transports return.
type Error struct {
	Code    Code   // for programs
	Message string // for people, without the cause
	Err     error  // the cause, may be nil
}

// Error returns the message and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// ErrClosed returns the error of something that is closed, e.g. "the connection".
func ErrClosed(what string, cause error) *Error {
	return &Error{Code: CodeClosed, Message: what + " is closed", Err: cause}
}
