package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// view keeps an MCP server equal to what a caller may see of the box.
type view struct {
	box    *Box
	server *mcp.Server // nil for a [Watch]
	caller string
	only   string // the agent whose entries it shows, "" for those of all

	mu      sync.Mutex // one sync at a time
	closed  bool
	have    offers
	changes [kinds]uint64
	changed func() // called after changes; nil for none
}

// Serve adds everything that a caller may see of the box to an MCP server and updates it, notifying the server's
// clients, until stop is called. The server's own tools stay; their names must not have the form "agent.tool". All
// connections of the server act for the same caller.
//
// Tool calls forward progress and cancellation. A failure is a result with IsError,
// whose _meta has {"code","message","sourceAgent"} under [MetaError]. The _meta of a
// listed tool has the agent that offers it under [MetaSource].
func (b *Box) Serve(server *mcp.Server, caller string) (stop func()) {
	return b.serve(server, caller, "")
}

// ServeAgent is Serve for what one agent offers, under unqualified names ("lint" for
// "venus.lint"), for another box that mounts the agent under its own name.
func (b *Box) ServeAgent(server *mcp.Server, caller, agentID string) (stop func()) {
	return b.serve(server, caller, agentID)
}

func (b *Box) serve(server *mcp.Server, caller, only string) (stop func()) {
	w := &view{box: b, server: server, caller: caller, only: only}
	b.mu.Lock()
	b.views[w] = struct{}{}
	b.mu.Unlock()
	w.sync()
	return w.stop
}

func (w *view) stop() {
	w.box.mu.Lock()
	delete(w.box.views, w)
	w.box.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for k := range kinds {
		w.show(k, nil)
	}
}

// sync updates the server to what the caller may see now.
func (w *view) sync() {
	w.mu.Lock()
	before, changed := w.changes, w.changed
	for k := range kinds {
		if !w.closed {
			w.show(k, slices.DeleteFunc(w.box.visible(w.caller, k), func(o offer) bool { return w.only != "" && o.base().id != w.only }))
		}
	}
	same := w.changes == before
	w.mu.Unlock()
	if !same && changed != nil {
		changed()
	}
}

// show updates the offers of one kind to the wanted ones, with as few additions and removals as possible. w.mu is
// held; the SDK's servers notify their clients from timers, so this waits for no peer.
func (w *view) show(k kind, wanted []offer) {
	have := w.have[k]
	if len(have) == 0 && len(wanted) == 0 {
		return
	}
	now := make(map[string]offer, len(wanted))
	for _, o := range wanted {
		now[o.base().key] = o
	}
	var gone []string
	for key := range have {
		if now[key] == nil {
			gone = append(gone, w.name(k, key))
		}
	}
	if len(gone) > 0 {
		w.changes[k]++
		w.remove(k, gone)
	}
	w.have[k] = now
	for _, o := range wanted {
		if e := o.base(); have[e.key] != o {
			w.changes[k]++
			w.add(e)
		}
	}
}

// name is an offer's key in the view: without the agent, if it shows only one.
func (w *view) name(k kind, key string) string {
	if k == kindTool || k == kindPrompt {
		return strings.TrimPrefix(key, w.prefix())
	}
	return key
}

func (w *view) prefix() string {
	if w.only == "" {
		return ""
	}
	return w.only + "."
}

func (w *view) add(e *entry) {
	if w.server == nil {
		return
	}
	switch shown := e.shown.(type) {
	case *mcp.Tool:
		t := *shown
		t.Name = w.name(e.kind, e.key)
		w.server.AddTool(&t, w.callTool)
	case *mcp.Resource:
		w.server.AddResource(shown, w.readResource)
	case *mcp.ResourceTemplate:
		w.server.AddResourceTemplate(shown, w.readResource)
	case *mcp.Prompt:
		x := *shown
		x.Name = w.name(e.kind, e.key)
		w.server.AddPrompt(&x, w.getPrompt)
	}
}

func (w *view) remove(k kind, names []string) {
	if w.server == nil {
		return
	}
	switch k {
	case kindTool:
		w.server.RemoveTools(names...)
	case kindResource:
		w.server.RemoveResources(names...)
	case kindTemplate:
		w.server.RemoveResourceTemplates(names...)
	case kindPrompt:
		w.server.RemovePrompts(names...)
	}
}

func (w *view) callTool(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	out, err := w.box.call(ctx, w.caller, w.prefix()+req.Params.Name, req.Params.Arguments, progressTo(ctx, req))
	if err == nil {
		return out.result(asText), nil
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return nil, err
	}
	return e.result(), nil
}

// progressTo returns the function that reports progress to the client, nil if it did not ask for that.
func progressTo(ctx context.Context, req *mcp.CallToolRequest) func(Progress) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	return func(p Progress) {
		// After an error the client is gone; its call ends with its context.
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: p.Done, Total: p.Total, Message: p.Message})
	}
}

// The keys in the _meta of results and of listed tools.
const (
	// MetaError has the parts of a failure. Clients would refuse them in the structured
	// content, which must match the tool's output schema.
	MetaError = "io.parley/error"
	// MetaSource is the id of the agent that offers the tool.
	MetaSource = "io.parley/sourceAgent"
)

// failure is the structured error of a tool call.
type failure struct {
	Code        Code   `json:"code"`
	Message     string `json:"message"`
	SourceAgent string `json:"sourceAgent,omitempty"`
}

// result returns the error for a model: the tool's own result, if there is one.
func (e *Error) result() *mcp.CallToolResult {
	result := mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: e.Error()}}}
	if e.Result != nil {
		result = *e.Result
	}
	result.Meta = with(result.Meta, MetaError, failure{Code: e.Code, Message: e.Error(), SourceAgent: e.SourceAgent})
	return &result
}

// with returns a copy of a _meta with one more entry.
func with(m mcp.Meta, key string, value any) mcp.Meta {
	made := mcp.Meta{}
	maps.Copy(made, m)
	made[key] = value
	return made
}

func (w *view) readResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	result, err := w.box.read(ctx, w.caller, w.only, req.Params.URI)
	if CodeOf(err) == CodeResourceNotFound {
		return nil, mcp.ResourceNotFoundError(req.Params.URI)
	}
	return result, asProtocolError(err)
}

func (w *view) getPrompt(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	result, err := w.box.Render(ctx, w.caller, w.prefix()+req.Params.Name, req.Params.Arguments)
	return result, asProtocolError(err)
}

// asProtocolError returns a protocol error with the structured error as its data.
func asProtocolError(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	code := int64(jsonrpc.CodeInternalError)
	if e.Code == CodeArguments || e.Code == CodePromptNotFound {
		code = jsonrpc.CodeInvalidParams
	}
	data, _ := json.Marshal(failure{Code: e.Code, Message: e.Error(), SourceAgent: e.SourceAgent}) // strings always marshal
	return &jsonrpc.Error{Code: code, Message: e.Error(), Data: data}
}
