package toolbox

import (
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Code says what kind of thing went wrong.
type Code string

// The codes of an [Error].
const (
	CodeToolNotFound     Code = "TOOL_NOT_FOUND"
	CodeResourceNotFound Code = "RESOURCE_NOT_FOUND"
	CodePromptNotFound   Code = "PROMPT_NOT_FOUND"
	CodeDuplicateTool    Code = "DUPLICATE_TOOL"
	CodeDuplicate        Code = "DUPLICATE" // a resource, template, prompt or provider
	CodeInvalid          Code = "INVALID_REGISTRATION"
	CodeFull             Code = "TOOLBOX_FULL"
	CodeArguments        Code = "INVALID_ARGUMENTS"
	CodeResult           Code = "INVALID_RESULT" // the tool broke its own output schema
	CodeFailed           Code = "TOOL_FAILED"
	CodePanic            Code = "TOOL_PANIC"
	CodeCanceled         Code = "CANCELED"
	CodeTimeout          Code = "TIMEOUT"             // the mounted server does not answer this call
	CodeUnavailable      Code = "BACKEND_UNAVAILABLE" // the mounted server is gone; it may come back
	CodeClosed           Code = "PROVIDER_CLOSED"
)

// Error is what the package returns.
type Error struct {
	Code Code
	// Name is the tool, prompt or URI that it is about.
	Name string
	// SourceAgent is the agent that offers it, empty if there is none.
	SourceAgent string
	Message     string
	// Result is what the tool itself said of its failure, nil if it said nothing.
	Result *mcp.CallToolResult
	Err    error // the cause, may be nil
}

// Error returns the message and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
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

func errorf(code Code, name, source, format string, args ...any) *Error {
	return &Error{Code: code, Name: name, SourceAgent: source, Message: fmt.Sprintf(format, args...)}
}

func toolNotFound(name string) *Error {
	return errorf(CodeToolNotFound, name, "", "there is no tool %q; list the tools to see which there are", name)
}

func resourceNotFound(uri string) *Error {
	return errorf(CodeResourceNotFound, uri, "", "there is no resource %q", uri)
}

func promptNotFound(name string) *Error {
	return errorf(CodePromptNotFound, name, "", "there is no prompt %q", name)
}
