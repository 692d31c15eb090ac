package server

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/mcp/wire"
	"github.com/parleyhub/parley/toolbox"
)

// directly returns what answers calls of tools on a connection over lines without the SDK's connection, which would decode each part of
// them with a buffer of 32 KiB, and pass them between goroutines. The arguments and results of shared tools are forwarded as text.
func (s *Server) directly(session *mcp.ServerSession) directCalls {
	return func(request *jsonrpc.Request, read time.Time) *directCall {
		call, ok := wire.ReadToolCall(request.Params)
		_, newer := call.Meta[mcp.MetaKeyProtocolVersion]
		if !ok || newer || session.InitializeParams() == nil {
			return nil
		}
		if s.has(call.Name) {
			return s.ownCall(session, call)
		}
		if g := s.shared; g == nil || !g.isReady() || !g.box.Offers(s.caller.Agent, call.Name) {
			return nil
		}
		return &directCall{answer: func(ctx context.Context) (json.RawMessage, error) { return s.callShared(ctx, session, call, read), nil }}
	}
}

// ownCall returns a call of one of Parley's tools, which passes all that surrounds the SDK's calls; nil if the SDK would refuse it.
func (s *Server) ownCall(session *mcp.ServerSession, call wire.ToolCall) *directCall {
	params := &mcp.CallToolParamsRaw{Meta: mcp.Meta{}, Name: call.Name, Arguments: call.Arguments}
	for key, text := range call.Meta {
		var value any
		if json.Unmarshal(text, &value) != nil { // a number that is too large
			return nil
		}
		params.Meta[key] = value
	}
	return &directCall{ordered: true, answer: func(ctx context.Context) (json.RawMessage, error) {
		result, err := s.handle(ctx, "tools/call", &mcp.CallToolRequest{Session: session, Params: params})
		if err != nil {
			return nil, err
		}
		return rawjson.Append(nil, result)
	}}
}

// callShared calls a shared tool and returns the JSON of its result.
func (s *Server) callShared(ctx context.Context, session *mcp.ServerSession, call wire.ToolCall, read time.Time) (result json.RawMessage) {
	defer func() {
		if v := recover(); v != nil {
			s.service.log.Error("a call made the server panic", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			result = failedJSON("internal error")
		}
	}()
	if s.service.idle != nil {
		s.service.idle.Reset(idleAfter)
	}
	line := func() string { return "" }
	if s.attends != nil {
		line = s.attends(ctx, call.Text(metaThread), read)
	}
	running, cancel := s.service.whileRunning(ctx)
	defer cancel()
	result, known := s.shared.box.CallJSON(running, s.caller.Agent, call.Name, call.Arguments, progressTo(running, session, call))
	if !known { // since it was asked
		return failedJSON(fmt.Sprintf("there is no tool %q any more", call.Name))
	}
	if more := line(); more != "" {
		return addLine(result, more)
	}
	return result
}

// progressTo returns what reports the progress of a call to the client, nil if the client has not asked for that.
func progressTo(ctx context.Context, session *mcp.ServerSession, call wire.ToolCall) func(toolbox.Progress) {
	token, asked := call.Meta["progressToken"]
	if !asked || string(token) == "null" {
		return nil
	}
	return func(p toolbox.Progress) {
		// After an error the client is gone; its call ends with its context.
		_ = session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: p.Done, Total: p.Total, Message: p.Message})
	}
}

// addLine returns a result with a line behind what another program returns.
func addLine(result json.RawMessage, line string) json.RawMessage {
	r := new(mcp.CallToolResult)
	if json.Unmarshal(result, r) != nil {
		return result
	}
	longer, err := json.Marshal(withLine(r, line, false))
	if err != nil {
		return result
	}
	return longer
}

// failedJSON is a result with an error.
func failedJSON(message string) json.RawMessage {
	data, err := json.Marshal(&mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: message}}})
	if err != nil {
		panic(err) // a text can always be encoded
	}
	return data
}

// isReady reports whether lists do not wait.
func (g *Toolbox) isReady() bool {
	if g.ready == nil {
		return true
	}
	select {
	case <-g.ready:
		return true
	default:
		return false
	}
}
