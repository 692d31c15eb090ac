package natslog

import (
	"fmt"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Code classifies an [Error]. Errors of the document itself are those of packages crdt and replica.
type Code string

// The codes of an [Error].
const (
	CodeInvalid Code = "INVALID_LOG"     // an invalid argument
	CodeStorage Code = "LOG_UNAVAILABLE" // the server does not respond as it should
	CodeFull    Code = "LOG_BACKLOG"     // too many changes wait for the server
	CodeEntry   Code = "LOG_ENTRY_BAD"   // an entry of the log cannot be decoded
	CodeLost    Code = "LOG_EDITS_LOST"  // the epoch ended before edits were in the log, and they could not be carried over
)

// Error is what the package returns. Its fields are Code, Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func failed(code Code, cause error, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: cause}
}
