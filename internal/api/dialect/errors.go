package dialect

import (
	"context"
	"errors"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
)

// The specification's error codes beside those of JSON-RPC.
const (
	CodeTaskNotFound         = -32001
	CodeTaskNotCancelable    = -32002
	CodeAgentNotFound        = -32003
	CodeAgentUnavailable     = -32004
	CodeUnsupportedOperation = -32005
	CodeAuthenticationError  = -32006
	CodeTimeoutError         = -32007
	CodeContextNotFound      = -32008
)

type wireCode struct {
	number int
	name   string
}

// error returns the JSON-RPC error with this code, or err if it has none (ok is false).
func (c wireCode) error(ok bool, err error, message string, details jsonrpc.Details) error {
	if !ok {
		return err
	}
	details.Code = c.name
	return jsonrpc.NewError(c.number, message, details)
}

var wireCodes = map[hub.Code]wireCode{
	hub.CodeInvalid:         {jsonrpc.CodeInvalidParams, "INVALID_PARAMS"},
	hub.CodeTaskNotFound:    {CodeTaskNotFound, "TASK_NOT_FOUND"},
	hub.CodeNotCancelable:   {CodeTaskNotCancelable, "TASK_NOT_CANCELABLE"},
	hub.CodeAgentNotFound:   {CodeAgentNotFound, "AGENT_NOT_FOUND"},
	hub.CodeUnavailable:     {CodeAgentUnavailable, "AGENT_UNAVAILABLE"},
	hub.CodeUnsupported:     {CodeUnsupportedOperation, "UNSUPPORTED_OPERATION"},
	hub.CodeAuth:            {CodeAuthenticationError, "AUTHENTICATION_ERROR"},
	hub.CodeTimeout:         {CodeTimeoutError, "TIMEOUT_ERROR"},
	hub.CodeContextNotFound: {CodeContextNotFound, "CONTEXT_NOT_FOUND"},
}

// rpcError translates an error that the caller can act on. The hub's own errors stay as they are, for the log.
func rpcError(err error) error {
	var he *hub.Error
	switch {
	case errors.As(err, &he):
		code, ok := wireCodes[he.Code]
		return code.error(ok, err, he.Message, jsonrpc.Details{Field: he.Subject, Remedy: he.Remedy})
	case errors.Is(err, context.DeadlineExceeded):
		return jsonrpc.NewError(CodeTimeoutError, "The request took too long",
			jsonrpc.Details{Code: "TIMEOUT_ERROR", Remedy: "ask for the task with tasks/get; it keeps running"})
	case errors.Is(err, context.Canceled):
		return jsonrpc.NewError(CodeAgentUnavailable, "The request was interrupted because the hub stops",
			jsonrpc.Details{Code: "AGENT_UNAVAILABLE", Remedy: "start the hub again and ask for the task with tasks/get"})
	default:
		return err
	}
}

// busError translates an error of the bus that the caller can act on.
func busError(err error) error {
	var be *bus.Error
	if !errors.As(err, &be) {
		return err
	}
	code, ok := map[bus.Code]wireCode{
		bus.CodeConfig:      {jsonrpc.CodeInvalidParams, "INVALID_PARAMS"},
		bus.CodeLimit:       {jsonrpc.CodeServerBusy, "SERVER_BUSY"},
		bus.CodeClosed:      {jsonrpc.CodeServerBusy, "SERVER_BUSY"},
		bus.CodeUnsupported: {CodeUnsupportedOperation, "UNSUPPORTED_OPERATION"},
		bus.CodeNotRunning:  {CodeAgentUnavailable, "CLUSTER_UNAVAILABLE"}, // reached through the hub's link
	}[be.Code]
	return code.error(ok, err, be.Message, jsonrpc.Details{Remedy: be.Remedy})
}

func unsupported(message, remedy string) error {
	return jsonrpc.NewError(CodeUnsupportedOperation, message,
		jsonrpc.Details{Code: "UNSUPPORTED_OPERATION", Remedy: remedy})
}
