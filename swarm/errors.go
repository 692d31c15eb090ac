package swarm

import (
	"fmt"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Code says what kind of thing went wrong.
type Code string

// The codes of an [Error].
const (
	CodeInvalid   Code = "INVALID_PLAN"
	CodeNotFound  Code = "SWARM_NOT_FOUND"
	CodeNoAgents  Code = "NO_CAPABLE_AGENT" // nobody has the capabilities, or nobody accepted
	CodeFailed    Code = "SWARM_FAILED"
	CodeNotMember Code = "NOT_A_PARTICIPANT"
	CodeState     Code = "WRONG_STATE" // the swarm or the sub-task is past that
	CodeConflict  Code = "JOURNAL_CONFLICT"
	CodeJournal   Code = "JOURNAL_FAILED"
	CodeFull      Code = "TOO_MANY_SWARMS"
	CodeFlood     Code = "TOO_MUCH_ASKED" // by one agent: what it may cost others is used up
	CodeNoRoom    Code = "JOURNALS_FULL"
	CodeClosed    Code = "COORDINATOR_CLOSED"
)

// Error is what the package returns. Its fields are Code, Subject (the swarm, or swarm/sub-task), Message and
// Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func errorf(code Code, swarmID, format string, args ...any) *Error {
	return &Error{Code: code, Subject: swarmID, Message: fmt.Sprintf(format, args...)}
}

func notFound(id string) *Error { return errorf(CodeNotFound, id, "no swarm %q is known here", id) }

var errClosed = &Error{Code: CodeClosed, Message: "the coordinator is closed"}
