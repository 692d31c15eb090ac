package bus

import (
	"fmt"
)

// Code says what kind of thing went wrong with the bus.
type Code string

// The codes of an [Error].
const (
	CodeNotRunning  Code = "not-running"  // nothing listens there, or no hub runs
	CodeNoJetStream Code = "no-jetstream" // a server without JetStream, or an account without it
	CodeNetwork     Code = "network"      // name, route, TLS, or something that is not NATS
	CodeAuth        Code = "auth"         // credentials missing or refused, or not allowed to do this
	CodeConfig      Code = "config"       // the configuration is wrong
	CodeLocked      Code = "locked"       // another hub has the data directory
	CodeStorage     Code = "storage"      // the disk or the store refuses
	CodeRejected    Code = "rejected"     // JetStream refused the request; Err is its *jetstream.APIError
	CodeTimeout     Code = "timeout"      // the caller's limit, or no answer
	CodeClosed      Code = "closed"       // the Bus is closed
)

// Error is what the package returns. Message and Remedy are fit for users and
// hold no secrets; Err is the cause, for logs.
type Error struct {
	Code    Code
	Message string
	Remedy  string // what to do next, may be empty
	Err     error
}

// Error returns the message, and the remedy where there is one.
func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Message
	}
	return fmt.Sprintf("%s; %s", e.Message, e.Remedy)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

var errClosed = &Error{Code: CodeClosed, Message: "the bus is closed"}

// insecure says that a file cannot be trusted.
func insecure(path, why string) error {
	return &Error{
		Code:    CodeConfig,
		Message: fmt.Sprintf("%s %s", path, why),
		Remedy:  "remove it, or restart the hub as the user who owns it",
	}
}

// contextError says what the caller stopped waiting for.
func contextError(err error, doing string) error {
	return &Error{Code: CodeTimeout, Message: "gave up " + doing, Err: err}
}

// requestError says what JetStream could not do.
func requestError(err error, doing string) error {
	return &Error{Code: CodeRejected, Message: fmt.Sprintf("cannot %s: %v", doing, err), Err: err}
}
