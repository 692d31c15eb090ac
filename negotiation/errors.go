package negotiation

import (
	"cmp"
	"fmt"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/text"
)

// Code is the kind of an [Error].
type Code string

// The codes of an [Error].
const (
	CodeInvalid  Code = "INVALID_PROPOSAL"   // fields are missing or wrong
	CodeNotFound Code = "PROPOSAL_NOT_FOUND" // unknown, or settled so long ago that it was dropped
	CodeTimeout  Code = "PROPOSAL_TIMEOUT"   // the deadline has passed
	CodeRejected Code = "PROPOSAL_REJECTED"  // the recipient has rejected it
	CodeSettled  Code = "PROPOSAL_SETTLED"   // it is already answered
	CodeForged   Code = "ANSWER_FORGED"      // from an agent that was not asked, or in another thread
	CodeNotYours Code = "PROPOSAL_NOT_YOURS" // only the recipient can answer
	CodeFull     Code = "TOO_MANY_PROPOSALS" // Options.MaxPending is reached
	CodeSend     Code = "PROPOSAL_NOT_SENT"  // wraps the router's error
	CodeClosed   Code = "NEGOTIATOR_CLOSED"
	CodeTaken    Code = "NEGOTIATOR_EXISTS" // the agent has a negotiator

	CodeInvalidSetup Code = "INVALID_NEGOTIATOR" // no router, or no handler
)

// Error is what the package returns. Its fields are Code, Subject (the proposal, empty if there is none yet),
// Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func errorf(code Code, id, format string, args ...any) *Error {
	return &Error{Code: code, Subject: id, Message: text.Valid(fmt.Sprintf(format, args...), maxMessage)}
}

// maxMessage bounds an error's text for the other side and in events, in bytes: it may
// include the other side's text.
const maxMessage = 1000

var errClosed = &Error{Code: CodeClosed, Message: "the negotiator is closed"}

func notFound(id string) *Error {
	return errorf(CodeNotFound, id, "no proposal %q is known", id)
}

// codeOf returns the code of an error, CodeSend for one of another package.
func codeOf(err error) Code {
	return cmp.Or(CodeOf(err), CodeSend)
}
