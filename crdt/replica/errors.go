package replica

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/internal/base/fault"
)

// Code classifies an [Error]. Errors of the document itself are those of package crdt.
type Code string

// The codes of an [Error].
const (
	CodeClosed   Code = "REPLICA_CLOSED"
	CodeReadOnly Code = "DOCUMENT_READ_ONLY" // the agent must not write to the document
	CodeRefused  Code = "SESSION_REFUSED"    // another replica refused this session's changes; open the document again
	CodeInvalid  Code = "INVALID_REPLICA"    // an invalid argument
	CodeLate     Code = "EPOCH_OVER"         // the edits belong to an epoch that is over
	CodePanic    Code = "PANIC"              // the function that edits or reads panicked
)

// Error is what the package returns. Its fields are Code, Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func errClosed() error { return &Error{Code: CodeClosed, Message: "the replica is closed"} }

// unreadable returns the error for a message that cannot be decoded.
func unreadable(cause error, format string, args ...any) error {
	return &crdt.Error{Code: crdt.CodeDeserialization, Message: "the message cannot be decoded: " + fmt.Sprintf(format, args...), Err: cause}
}

// codeOf returns the code of an error of this package or package crdt.
func codeOf(err error) string {
	return cmp.Or(string(CodeOf(err)), string(crdt.CodeOf(err)))
}

func formatUint(v uint64) string { return strconv.FormatUint(v, 10) }
