package toolbox

import (
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Code is the kind of an [Error].
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
	CodeUnavailable      Code = "BACKEND_UNAVAILABLE" // the mounted server is not connected; try again later
	CodeClosed           Code = "PROVIDER_CLOSED"
	CodeRefused          Code = "TOOL_REFUSED" // only of security events: the policy's error has no code; for the caller the tool does not exist
)

type base = fault.Error[Code]

// Error is what the package returns. Besides its own fields it has Code, Subject (the tool, prompt or
// URI that it is about), Message and Err (the cause, may be nil).
type Error struct {
	base
	SourceAgent string              // the agent that offers it, empty if there is none
	Result      *mcp.CallToolResult // the tool's own result of the failure, may be nil
}

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func errorf(code Code, name, source, format string, args ...any) *Error {
	return failed(code, name, source, nil, fmt.Sprintf(format, args...))
}

func failed(code Code, name, source string, cause error, message string) *Error {
	return &Error{base{Code: code, Subject: name, Message: message, Err: cause}, source, nil}
}

func resourceNotFound(uri string) *Error {
	return errorf(CodeResourceNotFound, uri, "", "there is no resource %q", uri)
}
