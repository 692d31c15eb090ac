package channel

import (
	"errors"

	"github.com/parleyhub/parley/transport"
)

// Code says what kind of thing went wrong with a channel.
type Code string

// The codes of an [Error].
const (
	CodeClosed         Code = "CHANNEL_CLOSED"
	CodeDeliveryFailed Code = "DELIVERY_FAILED"     // all retries failed, or the channel closed before the end
	CodeRefused        Code = "CHANNEL_REFUSED"     // the other end does not want this channel
	CodeUnreachable    Code = "CHANNEL_UNREACHABLE" // no connection within the time allowed
	CodeNoEndpoint     Code = "NO_ENDPOINT"         // no endpoint of the agent can be dialled
	CodeWrongSender    Code = "WRONG_SENDER"        // an envelope of somebody else's
	CodeInvalid        Code = "INVALID_CHANNEL"     // a wrong argument or a broken protocol
	CodeTooMany        Code = "TOO_MANY_CHANNELS"
)

// Error is what the package returns.
type Error struct {
	Code      Code   // for programs
	ChannelID string // empty if there is none yet
	Message   string // for people, without the cause
	Err       error  // the cause, may be nil
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

// codeOf returns the code of an error, "" if it has none.
func codeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// lasting reports whether connecting again cannot help.
func lasting(err error) bool {
	switch codeOf(err) {
	case CodeRefused, CodeInvalid, CodeNoEndpoint:
		return true
	}
	switch transport.CodeOf(err) {
	case transport.CodeUnauthorized, transport.CodeInvalid, transport.CodeTooLarge:
		return true
	}
	return false
}
