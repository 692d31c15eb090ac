package server

import "fmt"

// Code says what kept the server from starting.
type Code string

// The codes of an [Error].
const (
	CodeConfig    Code = "config"    // the configuration is wrong or would be unsafe
	CodeInUse     Code = "in-use"    // another server has the address or the socket
	CodeForbidden Code = "forbidden" // the address or path may not be used
	CodeInternal  Code = "internal"
)

// Error is what New and Start return. Message and Remedy are fit for users.
type Error struct {
	Code    Code
	Message string
	Remedy  string // what to do next, may be empty
	Err     error
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
