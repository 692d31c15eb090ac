package swarm

import (
	"fmt"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Code is the kind of an [Error].
type Code string

// The codes of an [Error].
const (
	CodeInvalid   Code = "INVALID_PLAN"
	CodeNotFound  Code = "SWARM_NOT_FOUND"
	CodeUnknown   Code = "AGENT_NOT_FOUND"
	CodeNoAgents  Code = "NO_CAPABLE_AGENT" // no agent has the capabilities, or none accepted
	CodeFailed    Code = "SWARM_FAILED"
	CodeNotMember Code = "NOT_A_PARTICIPANT"
	CodeState     Code = "WRONG_STATE" // of the swarm or the sub-task
	CodeConflict  Code = "JOURNAL_CONFLICT"
	CodeJournal   Code = "JOURNAL_FAILED"
	CodeFull      Code = "TOO_MANY_SWARMS"
	CodeLimit     Code = "SWARM_LIMIT_EXCEEDED" // of one swarm's participants or shared state
	CodeFlood     Code = "TOO_MUCH_ASKED"       // an agent's rate limit is exceeded
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

func notFound(id string) *Error { return errorf(CodeNotFound, id, "no swarm %q is known", id) }

var errClosed = &Error{Code: CodeClosed, Message: "the coordinator is closed"}
