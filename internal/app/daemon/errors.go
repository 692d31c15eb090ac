package daemon

import "fmt"

// Code says what kind of thing went wrong.
type Code string

// The codes of an [Error].
const (
	CodeRunning  Code = "already-running" // another hub has the data directory
	CodeStart    Code = "start-failed"
	CodeInUse    Code = "address-in-use" // another program has the port, or another hub the socket
	CodeStop     Code = "stop-failed"
	CodeDataDir  Code = "data-directory"
	CodeInternal Code = "internal"
)

// Error is what the package returns. Message and Remedy are fit for users and
// hold no secrets; Err is the cause, for logs.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
	Err     error  `json:"-"`
}

// Error returns the message, and the remedy where there is one.
func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Message
	}
	return fmt.Sprintf("%s; %s", e.Message, e.Remedy)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
