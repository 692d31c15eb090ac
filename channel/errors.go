package channel

import (
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/transport"
)

// Code is the kind of an [Error].
type Code string

// The codes of an [Error].
const (
	CodeClosed         Code = "CHANNEL_CLOSED"
	CodeDeliveryFailed Code = "DELIVERY_FAILED"     // all retries failed, or the channel closed before the end
	CodeRefused        Code = "CHANNEL_REFUSED"     // the other end does not want this channel
	CodeUnreachable    Code = "CHANNEL_UNREACHABLE" // no connection within the time allowed
	CodeNoEndpoint     Code = "NO_ENDPOINT"         // no endpoint of the agent can be dialled
	CodeWrongSender    Code = "WRONG_SENDER"        // the envelope is of another agent
	CodeInvalid        Code = "INVALID_CHANNEL"     // a wrong argument or a broken protocol
	CodeTooMany        Code = "TOO_MANY_CHANNELS"
	// CodeAbsent is for errors of Options.Authorize, Options.Introduced and Options.Policy: the agent is not there, or
	// not yet. A channel that was open before tries again until Options.ReconnectTimeout; any other one is refused.
	CodeAbsent Code = "AGENT_ABSENT"
)

// Error is what the package returns. Its fields are Code, Subject (the channel's id, empty if there is none
// yet), Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

// lasting reports whether a retry cannot help. A server that was a peer and answers as none may be starting: c was open.
func (c *Channel) lasting(err error) bool {
	if transport.CodeOf(err) == transport.CodeInvalid && CodeOf(err) == "" && c.Status() == Reconnecting {
		return false
	}
	switch CodeOf(err) {
	case CodeRefused, CodeInvalid, CodeNoEndpoint:
		return true
	}
	switch transport.CodeOf(err) {
	case transport.CodeUnauthorized, transport.CodeInvalid, transport.CodeTooLarge:
		return true
	}
	return false
}
