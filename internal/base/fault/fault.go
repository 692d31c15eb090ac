// Package fault has the error types that the packages' own errors are made of:
// a code for programs, texts for people, and the cause. A package declares its
// codes and an alias:
//
//	type Code string
//	type Error = fault.Error[Code]
//
// Error types that need further fields embed one of these types; [CodeOf] works for them too.
package fault

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// Error is an error whose text is its message and the cause.
type Error[C ~string] struct {
	Code    C      `json:"code"`
	Subject string `json:"subject,omitempty"` // what it is about, e.g. an id or the name of a parameter; may be empty
	Message string `json:"message"`           // for people, without the cause
	Remedy  string `json:"remedy,omitempty"`  // what to do next, may be empty
	Err     error  `json:"-"`                 // the cause, may be nil
}

// Error returns the message and the cause.
func (e *Error[C]) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error[C]) Unwrap() error { return e.Err }

func (e *Error[C]) code() C      { return e.Code }
func (e *Error[C]) text() string { return string(e.Code) }

// UserError is an error whose text is its message and the remedy: both are fit
// for users and hold no secrets. The cause is for logs.
type UserError[C ~string] Error[C]

// Error returns the message, and the remedy where there is one.
func (e *UserError[C]) Error() string { return join(e.Message, "; ", e.Remedy) }

// Unwrap returns the cause.
func (e *UserError[C]) Unwrap() error { return e.Err }

func (e *UserError[C]) code() C      { return e.Code }
func (e *UserError[C]) text() string { return string(e.Code) }

// ToolError is the error of a tool for agents: message and remedy are sentences
// that hold no secrets. The cause is for logs.
type ToolError[C ~string] struct {
	Code       C // the category, in the words of the tools' specification
	Message    string
	Remedy     string        // what to do next, may be empty
	RetryAfter time.Duration // when a limit allows the next try, 0 where there is no limit
	Err        error         // the cause, may be nil
}

// Error returns the message, and the remedy where there is one.
func (e *ToolError[C]) Error() string { return join(e.Message, " ", e.Remedy) }

// Unwrap returns the cause.
func (e *ToolError[C]) Unwrap() error { return e.Err }

// WithRemedy sets the remedy and returns e.
func (e *ToolError[C]) WithRemedy(format string, args ...any) *ToolError[C] {
	e.Remedy = fmt.Sprintf(format, args...)
	return e
}

// Explain returns the category, the message and the remedy.
func (e *ToolError[C]) Explain() (category, message, remedy string) {
	return string(e.Code), e.Message, e.Remedy
}

// RetryIn returns when to try again, 0 where there is no limit.
func (e *ToolError[C]) RetryIn() time.Duration { return e.RetryAfter }

func (e *ToolError[C]) code() C      { return e.Code }
func (e *ToolError[C]) text() string { return string(e.Code) }

func join(message, separator, remedy string) string {
	if remedy == "" {
		return message
	}
	return message + separator + remedy
}

// CodeOf returns the code of the first error in err's tree that has a code of type C, "" if there is none.
func CodeOf[C ~string](err error) C {
	if e, ok := errors.AsType[coded[C]](err); ok {
		return e.code()
	}
	return ""
}

type coded[C ~string] interface {
	error
	code() C
}

// TextOf returns the code of the first error in err's tree that has one of any type, "" if there is none.
func TextOf(err error) string {
	if e, ok := errors.AsType[interface {
		error
		text() string
	}](err); ok {
		return e.text()
	}
	return ""
}

// Panic is a recovered panic as an error. Its text is the value; Stack is for logs.
type Panic struct {
	Value any
	Stack []byte
}

// Error returns the panic's value as text.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Detail returns the value and the stack, for an event or a log.
func (p *Panic) Detail() string { return fmt.Sprintf("%v\n%s", p, p.Stack) }

// Catch calls f, a function of the application, and returns its panic, nil if there was none. A runtime.Goexit in f
// is not caught.
func Catch(f func()) (caught *Panic) {
	defer func() {
		if v := recover(); v != nil {
			caught = &Panic{v, debug.Stack()}
		}
	}()
	f()
	return nil
}

// CatchError is Catch for a function with an error; a panic becomes its error, a [*Panic].
func CatchError(f func() error) (err error) {
	if p := Catch(func() { err = f() }); p != nil {
		return p
	}
	return err
}
