package server

import (
	"errors"
	"math"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/documents"
)

// Categories of failures of this package; groups may have others.
const (
	ValidationError  = "ValidationError"  // an invalid argument
	InterruptedError = "InterruptedError" // the call was cancelled, or the server stops
	InternalError    = "InternalError"    // a bug
)

// Failure is a tool's error for the agent. Message and Remedy contain no secrets; Err is the cause, for logs.
type Failure struct {
	Category string
	Message  string
	Remedy   string // what to do next
	Err      error
	// RetryAfter is the time until a rate limit allows a retry; 0 for no limit.
	RetryAfter time.Duration
}

// Error returns category, message and remedy, as the agent receives them.
func (f *Failure) Error() string {
	text := f.Category + ": " + f.Message
	if f.Remedy != "" {
		text += "\nWhat to do: " + f.Remedy
	}
	return text
}

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// explained is an error that is fit for agents. A method RetryIn returns the time until a retry.
type explained interface {
	error
	// Explain returns the category, the message and the remedy for agents.
	Explain() (category, message, remedy string)
}

// failureOf converts any error. An error that is not explained may contain secrets and is only logged, as a bug.
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

// explain returns the failure of an error that is fit for agents, nil for any other error.
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

// errorMeta is the key of a failure's parts in a result's _meta. Structured content must match the tool's schema.
const errorMeta = "io.parley/error"

// result converts the failure to a tool result. A model sees it, unlike a protocol error, and can correct its call.
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
