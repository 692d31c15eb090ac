package documents

import (
	"errors"
	"fmt"
)

// Code says what kind of thing went wrong with a document.
type Code string

// The codes of an [Error].
const (
	CodeInvalid  Code = "invalid"   // a name, path or edit that is wrong
	CodeNotFound Code = "not-found" // no such document
	CodeStorage  Code = "storage"   // the bus does not store, or what it has is broken
	CodeClosed   Code = "closed"
)

// Error is what the package returns. Message and Remedy are fit for users.
type Error struct {
	Code    Code
	Message string
	Remedy  string
	Err     error
}

// Error returns the message and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Explain puts the error into words for agents.
func (e *Error) Explain() (category, message, remedy string) {
	switch e.Code {
	case CodeInvalid:
		return "ValidationError", e.Error(), e.Remedy
	case CodeNotFound:
		return "NotFoundError", e.Message, "Call list_documents; the first edit_document makes a document."
	default:
		return "StorageError", e.Message, "Try again later."
	}
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func invalid(format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Message: fmt.Sprintf(format, args...)}
}

func storage(err error, format string, args ...any) *Error {
	return &Error{Code: CodeStorage, Message: fmt.Sprintf(format, args...), Err: err}
}
