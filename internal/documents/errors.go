package documents

import (
	"fmt"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Code is the kind of an [Error].
type Code string

// The codes of an [Error].
const (
	CodeInvalid   Code = "invalid"   // an invalid name, path, edit or role
	CodeNotFound  Code = "not-found" // no such document
	CodeChanged   Code = "changed"   // not the version that the edit was made for; nothing was changed
	CodeStorage   Code = "storage"   // the bus is unavailable
	CodeDamaged   Code = "damaged"   // what is stored of a document is damaged, and no state can be made of it
	CodeClosed    Code = "closed"    // the hub stops, or a new epoch began; nothing was changed
	CodeUncertain Code = "uncertain" // an edit may be stored, as a whole, or not at all
)

// Error is what the package returns. Message and Remedy are fit for users; the text is the message and the cause.
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

// Explain returns the parts of the error that agents receive.
func Explain(e *Error) (category, message, remedy string) {
	switch e.Code {
	case CodeInvalid:
		return "ValidationError", e.Error(), e.Remedy
	case CodeNotFound:
		return "NotFoundError", e.Message, "Call list_documents; the first edit_document creates a document."
	case CodeUncertain:
		return "UncertainError", e.Message, "Check with read_document before you repeat the edit."
	case CodeDamaged:
		return "StorageError", e.Message, "Tell the user; use another document meanwhile."
	default:
		return "StorageError", e.Message, "Try again later."
	}
}

func invalid(format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Message: fmt.Sprintf(format, args...)}
}

// uncertain returns the error of an edit that was applied and may not be stored.
func uncertain(err error, format string, args ...any) *Error {
	return &Error{
		Code: CodeUncertain, Err: err, Message: fmt.Sprintf(format, args...),
		Remedy: "read the document before you repeat the edit",
	}
}

// storage wraps a failure of the store; it returns nil for nil.
func storage(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Error{Code: CodeStorage, Message: fmt.Sprintf(format, args...), Err: err}
}
