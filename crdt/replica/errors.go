package replica

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/internal/base/fault"
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

// Error is what the package returns. Its fields are Code, Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func errClosed() error { return &Error{Code: CodeClosed, Message: "the replica is closed"} }

// unreadable is the error of a message that cannot be read (Req 9.5).
func unreadable(cause error, format string, args ...any) error {
	return &crdt.Error{Code: crdt.CodeDeserialization, Message: "the message cannot be read: " + fmt.Sprintf(format, args...), Err: cause}
}

// codeOf returns the code of an error for the log.
func codeOf(err error) string {
	return cmp.Or(string(CodeOf(err)), string(crdt.CodeOf(err)))
}

func formatUint(v uint64) string { return strconv.FormatUint(v, 10) }
