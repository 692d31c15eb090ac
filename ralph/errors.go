package ralph

import (
	"fmt"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Code says what kind of thing went wrong.
type Code string

// The codes of an [Error].
const (
	CodeList        Code = "LIST_UNUSABLE"   // the task list cannot be read, or has changed under the loop
	CodeState       Code = "STATE_UNUSABLE"  // the state file cannot be read or written
	CodeRunning     Code = "LOOP_RUNNING"    // another loop works with the state file
	CodeUnavailable Code = "AGENTS_AWAY"     // nobody can be given work now; the item is not to blame
	CodeLost        Code = "WORK_LOST"       // of a reference: there is no such work (any more)
	CodeRecord      Code = "STEP_NOT_LOGGED" // the log of the steps cannot be written
	CodeInvalid     Code = "OPTIONS_INVALID" //
	CodeStopped     Code = "LOOP_STOPPED"    // somebody asked for it
	CodeValidator   Code = "CHECK_NOT_RUN"   // the validation could not be made at all
)

// Error is what the package returns. Its fields are Code, Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func wrap(code Code, err error, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: err}
}
