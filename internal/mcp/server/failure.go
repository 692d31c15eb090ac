package server

import (
	"errors"
	"math"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/documents"
)

// The categories of failures that arise in this package; groups may have further
// ones (REQ-ERROR-001).
const (
	ValidationError  = "ValidationError"  // an argument is wrong
	InterruptedError = "InterruptedError" // the call was cancelled, or the server stops
	InternalError    = "InternalError"    // a mistake of ours
)

// Failure is a tool's error as the agent sees it (REQ-ERROR-001). Message and
// Remedy are plain English and hold no secrets; Err is the cause, for logs.
type Failure struct {
	Category string
	Message  string
	Remedy   string // what to do next
	Err      error
	// RetryAfter is when a limit allows the next try; 0 where there is none.
	RetryAfter time.Duration
}

// Error returns all three parts, the way the agent reads them (REQ-USE-001,
// REQ-USE-002, REQ-ACCESS-002).
func (f *Failure) Error() string {
	text := f.Category + ": " + f.Message
	if f.Remedy != "" {
		text += "\nWhat to do: " + f.Remedy
	}
	return text
}

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// explained is what the errors of the packages behind the tools have in common.
type explained interface {
	error
	// Explain returns the category, the message and the remedy for agents. An
	// error that has a method RetryIn says by it when to try again.
	Explain() (category, message, remedy string)
}

// failureOf puts any error into words for agents. What nobody has put into words
// is a mistake of ours and stays in the log: it may hold anything.
func failureOf(err error) *Failure {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	if f := explain(err); f != nil {
		return f
	}
	return &Failure{Category: InternalError, Message: "The tool failed unexpectedly.",
		Remedy: "Try again; the server's log on standard error says more.", Err: err}
}

// explain returns what the package that an error is of says about it to agents, nil if it
// says nothing.
func explain(err error) *Failure {
	if e, ok := errors.AsType[*documents.Error](err); ok {
		category, message, remedy := documents.Explain(e)
		return &Failure{Category: category, Message: message, Remedy: remedy, Err: e.Err}
	}
	e, ok := errors.AsType[explained](err)
	if !ok {
		return nil
	}
	category, message, remedy := e.Explain()
	f := &Failure{Category: category, Message: message, Remedy: remedy, Err: errors.Unwrap(e)}
	if limited, ok := e.(interface{ RetryIn() time.Duration }); ok {
		f.RetryAfter = limited.RetryIn()
	}
	return f
}

// errorMeta is where a result carries the parts of a failure for programs. They
// cannot stand in the structured content, which must match the tool's schema.
const errorMeta = "io.parley/error"

// result is the tool result of a failure: not a protocol error, so that the model
// sees it and can mend its call.
func (f *Failure) result() *mcp.CallToolResult {
	parts := map[string]any{"category": f.Category, "message": f.Message, "remedy": f.Remedy}
	if f.RetryAfter > 0 {
		parts["retryAfterSeconds"] = int(math.Ceil(f.RetryAfter.Seconds()))
	}
	return &mcp.CallToolResult{
		Meta:    mcp.Meta{errorMeta: parts},
		Content: []mcp.Content{&mcp.TextContent{Text: f.Error()}},
		IsError: true,
	}
}
