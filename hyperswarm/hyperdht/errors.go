package hyperdht

import (
	"errors"
	"fmt"

	"github.com/parleyhub/parley/identity"
)

// Code classifies an [Error].
type Code string

// The codes of an [Error].
const (
	CodeInvalid        Code = "DHT_INVALID"         // an option or argument cannot be used
	CodeClosed         Code = "DHT_CLOSED"          // the node or the listener is closed
	CodeNoNodes        Code = "DHT_NO_NODES"        // no node of the DHT answers
	CodeNotFound       Code = "DHT_NOT_FOUND"       // no node has such a record
	CodePeerNotFound   Code = "DHT_PEER_NOT_FOUND"  // no node knows the peer
	CodeUnanswered     Code = "DHT_PEER_UNANSWERED" // the peer is offline or refuses this key: it does not say which
	CodeIncompatible   Code = "DHT_INCOMPATIBLE"    // the peer speaks another version
	CodeRefused        Code = "DHT_PEER_ERROR"      // the peer answered with an error
	CodeUnreachable    Code = "DHT_UNREACHABLE"     // the peer answers, but there is no path to it
	CodeTooLarge       Code = "DHT_TOO_LARGE"       // the record does not fit a datagram
	CodeStale          Code = "DHT_STALE"           // a later version of the record is stored
	CodeExists         Code = "DHT_SEQ_USED"        // another value has this version
	CodeAlreadyStarted Code = "DHT_LISTENS"         // the key is listened on already
)

// Error is what the package returns.
type Error struct {
	Code    Code
	Message string
	Err     error // the cause, may be nil
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

func peerError(code Code, key identity.PublicKey, what string, cause error) *Error {
	return &Error{Code: code, Message: fmt.Sprintf("the peer %.8s… %s", key, what), Err: cause}
}

var errClosed = &Error{Code: CodeClosed, Message: "the DHT node is closed"}
