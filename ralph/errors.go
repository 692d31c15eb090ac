package ralph

import (
	"fmt"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Code is the kind of an [Error].
type Code string

// The codes of an [Error].
const (
	CodeList        Code = "LIST_UNUSABLE"   // the task list cannot be read, or has changed under the loop
	CodeState       Code = "STATE_UNUSABLE"  // the state file cannot be read or written
	CodeRunning     Code = "LOOP_RUNNING"    // another loop uses the state file
	CodeUnavailable Code = "AGENTS_AWAY"     // no agent is available; the item did not fail
	CodeLost        Code = "WORK_LOST"       // the reference's work does not exist (any more)
	CodeRecord      Code = "STEP_NOT_LOGGED" // the log of the steps cannot be written
	CodeInvalid     Code = "OPTIONS_INVALID" //
	CodeStopped     Code = "LOOP_STOPPED"    // on request
	CodeValidator   Code = "CHECK_NOT_RUN"   // the validation could not run
)

// Error is what the package returns. Its fields are Code, Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func wrap(code Code, err error, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: err}
}
