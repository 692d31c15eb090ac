package hyperdht

import (
	"fmt"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/fault"
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

// Error is what the package returns. Its fields are Code, Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func peerError(code Code, key identity.PublicKey, what string, cause error) *Error {
	return &Error{Code: code, Message: fmt.Sprintf("the peer %.8s… %s", key, what), Err: cause}
}

var errClosed = &Error{Code: CodeClosed, Message: "the DHT node is closed"}
