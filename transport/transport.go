// Package transport defines the connections that carry a link between two agents. Each transport has a
// package of its own. Package channel builds ordered, acknowledged, resumable channels on any of them, and
// package channel/transporttest tests each of them.
//
// A transport carries [Frame]s over a [Conn]. While a connection lives, frames arrive once and in order.
// After it breaks, it is unknown which frames have arrived; the channel resends.
package transport

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/fault"
)

// Conn is one connection. Send and Receive may be used concurrently, each by one goroutine at a time; Close
// and Peer by any number.
type Conn interface {
	// Send sends frames in order. It blocks while the connection's buffers are full, at most until ctx ends, and
	// does not keep the slice. An [*Error] with CodeNotSent or CodeTooLarge means that none of the frames was sent
	// and the connection is still usable. After any other error only Receive is of use, to return what has arrived;
	// a [*Unsent] among them means that certainly none of the frames has left, and without it some may have.
	Send(ctx context.Context, frames []Frame) error
	// Receive returns the next frames, at least one, in order. It blocks until some arrive, ctx ends or the
	// connection breaks. The slice is valid until the next call.
	Receive(ctx context.Context) ([]Frame, error)
	// Peer returns the authenticated identity of the other end, "" if there is none.
	Peer() string
	// Close ends the connection and unblocks Send and Receive. Frames sent before still arrive unless the connection
	// breaks. Close may wait for that, at most a second or two, and may be called more than once.
	Close() error
}

// Pusher is a Conn that can call a function with the frames that arrive, instead of Receive. A connection
// is read in one of the two ways, not both.
type Pusher interface {
	// Push makes the connection call f with the frames that arrive, in order and one call at a time, and finally
	// once with the error that ended the connection. f must not block: the goroutine that sends or closes calls it.
	Push(f func(frames []Frame, err error))
}

// Dialer opens connections.
type Dialer interface {
	// Dial connects to an endpoint. It blocks until the connection is open or ctx ends.
	Dial(ctx context.Context, to agent.Endpoint) (Conn, error)
}

// Listener accepts connections.
type Listener interface {
	// Accept returns the next connection. It blocks until there is one, ctx ends or the listener is closed
	// (CodeClosed).
	Accept(ctx context.Context) (Conn, error)
	// Endpoint returns the endpoint to dial.
	Endpoint() agent.Endpoint
	// Close stops the listener and unblocks Accept. Accepted connections stay open.
	Close() error
}

// Kind is the kind of a frame.
type Kind uint8

// The kinds of frame.
const (
	Open   Kind = iota + 1 // the opener requests a channel, or resumes one; has Hello
	Accept                 // the acceptor agrees; has Hello
	Ready                  // the opener acknowledges: the channel is open at both ends
	Refuse                 // the acceptor refuses; has Reason
	Data                   // one envelope
	Ack                    // acknowledges envelopes
	Close                  // the channel ends; has Reason
	Reject                 // an envelope arrived but cannot be decoded; has Seq and Reason
)

// Frame is the unit that a connection carries.
type Frame struct {
	Kind Kind // determines which of the other fields are used
	// Seq of Data and Reject numbers the envelopes of one direction of a channel from 1; of Ack it is the
	// highest number up to which all have arrived.
	Seq uint64
	// Ack, of Data and Ack, is the highest number up to which all were handled.
	Ack uint64
	// Envelope of Data; nil means that the sender has given this number up.
	Envelope *envelope.Envelope
	// Err, of received Data without Envelope, is why the envelope cannot be decoded, e.g. its size or its
	// schema version. It is not sent.
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
	// Secret was chosen by the opener. It is needed to resume the channel.
	Secret string `json:"secret,omitempty"`
	// Instance was chosen at random by the opener's process. It distinguishes processes that use the same
	// agent id. Only the acceptor receives it.
	Instance string `json:"instance,omitempty"`
	From     string `json:"from"`             // agent id of this end
	To       string `json:"to"`               // agent id of the other end
	Resume   bool   `json:"resume,omitempty"` // the channel was open before
	// Received is the highest number up to which this end has received all envelopes.
	Received uint64 `json:"received"`
	// Base is the highest number up to which this end knows that the other has handled all; it can send
	// what follows again.
	Base   uint64 `json:"base"`
	Window int    `json:"window"` // unhandled envelopes that this end accepts
	// WindowBytes is the total size of unhandled envelopes that this end accepts, as envelope.Size counts
	// it; a larger envelope is sent alone. 0 means not stated.
	WindowBytes int `json:"windowBytes,omitempty"`
	// Card is this end's agent card, as JSON, if it introduces itself.
	Card json.RawMessage `json:"card,omitempty"`
}

// Reason is why a channel or envelope was refused or a channel has ended.
type Reason struct {
	Code    string `json:"code"`    // for programs
	Message string `json:"message"` // for people
}

// Code classifies an [Error].
type Code string

// The codes of an [Error].
const (
	CodeClosed       Code = "TRANSPORT_CLOSED"       // the connection or the listener is closed
	CodeUnreachable  Code = "TRANSPORT_UNREACHABLE"  // the endpoint does not answer
	CodeUnauthorized Code = "TRANSPORT_UNAUTHORIZED" // one end does not trust the other
	CodeNotSent      Code = "TRANSPORT_NOT_SENT"     // not sent this time; the connection is usable
	CodeTooLarge     Code = "TRANSPORT_TOO_LARGE"    // can never be sent; the connection is usable
	CodeInvalid      Code = "TRANSPORT_INVALID"      // an invalid frame, option or endpoint
)

// Error is what transports return. Its fields are Code, Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

// Unsent is the error of a Send that found the connection over: certainly nothing of its frames has left, so the next
// connection may send them without the risk of a repetition. Its text and code are those of Err.
type Unsent struct {
	Err error // why the connection is over
}

// Error returns the text of Err.
func (e *Unsent) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Unsent) Unwrap() error { return e.Err }

// NothingSent reports whether err, returned by Send, says that certainly nothing has left.
func NothingSent(err error) bool {
	if code := CodeOf(err); code == CodeNotSent || code == CodeTooLarge {
		return true
	}
	_, ok := errors.AsType[*Unsent](err)
	return ok
}

// ErrClosed returns the error for the use of something closed, e.g. "the connection".
func ErrClosed(what string, cause error) *Error {
	return &Error{Code: CodeClosed, Message: what + " is closed", Err: cause}
}
