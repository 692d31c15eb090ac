package drivers

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// rpcMessage is a message of an agent that speaks JSON-RPC 2.0.
type rpcMessage struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *rpcError       `json:"error,omitempty"`
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

func (e *rpcError) Error() string { return e.Message }

// Error codes of JSON-RPC.
const (
	codeInvalidRequest = -32600
	codeMethodNotFound = -32601
	codeInvalidParams  = -32602
)

// rpcRequest is a request of this client; without an ID a notification.
type rpcRequest struct {
	Version string `json:"jsonrpc,omitempty"`
	ID      int64  `json:"id,omitempty"`
	Method  string `json:"method"`
	Params  any    `json:"params,omitempty"`
}

// rpcAnswer answers a request of the agent.
type rpcAnswer struct {
	Version string          `json:"jsonrpc,omitempty"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

// rpc is a connection of JSON-RPC, one message a line.
type rpc struct {
	*calls[rpcMessage]
	version string // the field jsonrpc, which codex leaves out
}

func newRPC(pipes duplex.Pipes, version string) rpc {
	return rpc{calls: newCalls[rpcMessage](pipes.Stdin), version: version}
}

// serve passes requests and notifications of the agent on, until its output ends. It
// ignores what is not JSON, such as a warning of a wrapper script.
func (c *rpc) serve(pipes duplex.Pipes, requested func(id json.RawMessage, method string, params json.RawMessage),
	notified func(method string, params json.RawMessage)) {
	c.read(pipes, func(line []byte) {
		var m rpcMessage
		if json.Unmarshal(line, &m) != nil {
			return
		}
		switch {
		case m.Method != "" && isID(m.ID):
			requested(m.ID, m.Method, m.Params)
		case m.Method != "":
			notified(m.Method, m.Params)
		case isID(m.ID):
			c.answered(string(m.ID), m)
		}
	})
}

// request sends a request and blocks until its answer is decoded into result. The
// error is a *rpcError, a *runner.Error, duplex.ErrClosed or ctx's.
func (c *rpc) request(ctx context.Context, method string, params, result any) error {
	id := c.id()
	m, err := c.call(ctx, strconv.FormatInt(id, 10), rpcRequest{c.version, id, method, params})
	switch {
	case err != nil:
		return err
	case m.Error != nil:
		return m.Error
	case len(m.Result) == 0: // some agents leave an empty one out
		return nil
	}
	if err := json.Unmarshal(m.Result, result); err != nil {
		return &runner.Error{Code: runner.CodeProtocol, Message: "the agent's answer to " + method + " could not be understood", Err: err}
	}
	return nil
}

// answer answers a request. After a failure the connection has ended, or the agent does
// not read: the turn's end or its time limit reports that.
func (c *rpc) answer(id json.RawMessage, result any) {
	_ = c.send(rpcAnswer{Version: c.version, ID: id, Result: result})
}

// refuse answers a request with an error.
func (c *rpc) refuse(id json.RawMessage, code int, message string) {
	_ = c.send(rpcAnswer{Version: c.version, ID: id, Error: &rpcError{Code: code, Message: message}})
}
