package daemon

import (
	"github.com/parleyhub/parley/internal/base/fault"
)

// Code says what kind of thing went wrong.
type Code string

// The codes of an [Error].
const (
	CodeRunning  Code = "already-running" // another hub has locked the data directory
	CodeStart    Code = "start-failed"
	CodeInUse    Code = "address-in-use" // another program uses the port, or another hub the socket
	CodeStop     Code = "stop-failed"
	CodeDataDir  Code = "data-directory"
	CodeInternal Code = "internal"
)

// Error is what the package returns. Message and Remedy are fit for users and
// hold no secrets; Err is the cause, for logs.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }
