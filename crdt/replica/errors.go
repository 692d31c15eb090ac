package replica

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/parleyhub/parley/crdt"
)

// Code says what kind of thing went wrong with a replica. Errors about the
// document itself are those of package crdt.
type Code string

// The codes of an [Error].
const (
	CodeClosed   Code = "REPLICA_CLOSED"
	CodeReadOnly Code = "DOCUMENT_READ_ONLY" // the agent must not write to the document
	CodeRefused  Code = "SESSION_REFUSED"    // others refused what this replica wrote; it must begin anew
	CodeInvalid  Code = "INVALID_REPLICA"    // a wrong argument
	CodeLate     Code = "EPOCH_OVER"         // edits were written for an epoch that is over
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

func errClosed() error { return &Error{Code: CodeClosed, Message: "the replica is closed"} }

// unreadable is the error of a message that cannot be read (Req 9.5).
func unreadable(cause error, format string, args ...any) error {
	return &crdt.Error{Code: crdt.CodeDeserialization, Message: "the message cannot be read: " + fmt.Sprintf(format, args...), Err: cause}
}

// codeOf returns the code of an error for the log.
func codeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return string(e.Code)
	}
	return string(crdt.CodeOf(err))
}

func formatUint(v uint64) string { return strconv.FormatUint(v, 10) }
