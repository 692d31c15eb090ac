package crdt

import (
	"errors"
	"fmt"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Code classifies an [Error].
type Code string

// The codes of an [Error].
const (
	CodeDeserialization Code = "CRDT_DESERIALIZATION_FAILED" // not a valid update, state vector or snapshot
	CodeLimit           Code = "CRDT_LIMIT_EXCEEDED"         // more than the limits allow
	CodeRefused         Code = "CRDT_UPDATE_REFUSED"         // a well-formed update that does not fit the document
	CodeEquivocation    Code = "CRDT_EQUIVOCATION"           // different content under existing ids
	CodeInvalid         Code = "CRDT_INVALID_EDIT"           // an invalid index, value or time of a local edit
)

// Error is what the package returns. Its fields are Code, Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func errorf(code Code, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: cause}
}

// Errors of malformed updates.
var (
	errEmptyRange    = errors.New("a range or struct has no length")
	errInfo          = errors.New("a struct has an unknown kind")
	errParent        = errors.New("a parent is neither a name nor an id")
	errTypeRef       = errors.New("a shared type is of an unknown kind")
	errOwnFuture     = errors.New("a struct refers to a later one of its own client")
	errClientTwice   = errors.New("a client is listed twice")
	errNoStructs     = errors.New("a client is listed without structs")
	errTrailing      = errors.New("bytes follow the update")
	errJSON          = errors.New("a value is not valid JSON")
	errOptions       = errors.New("the options of a subdocument are not an object")
	errTooManyClocks = errors.New("a struct is longer than allowed")
)
