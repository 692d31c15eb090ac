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
	CodeClosed   Code = "closed"    // the hub stops, or another epoch takes the document's place; nothing was changed
	// CodeUncertain is that of an edit of which it is not known whether it is stored: it may
	// be in the document, as a whole, or not at all.
	CodeUncertain Code = "uncertain"
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
	case CodeUncertain:
		return "UncertainError", e.Message, "Look with read_document before you make the edit again."
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

// uncertain is the error of an edit that was made and may not be stored.
func uncertain(name string, err error) *Error {
	return &Error{
		Code: CodeUncertain, Err: err,
		Message: "the edit of the document " + name + " was not confirmed: all of it may be there, or nothing",
		Remedy:  "look at the document before you make the edit again",
	}
}

func storage(err error, format string, args ...any) *Error {
	return &Error{Code: CodeStorage, Message: fmt.Sprintf(format, args...), Err: err}
}
