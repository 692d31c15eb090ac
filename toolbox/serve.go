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
	server *mcp.Server
	caller string
	only   string // the agent whose entries it shows, "" for those of all

	mu        sync.Mutex // one sync at a time
	closed    bool
	tools     map[string]*tool
	resources map[string]*resource
	templates map[string]*template
	prompts   map[string]*prompt
}

// Serve adds everything that a caller may see of the box to an MCP server and updates
// it, notifying the server's clients, until stop is called. The server's own tools stay;
// their names must not have the form "agent.tool". All connections of the server act
// for the same caller.
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
	w := &view{
		box: b, server: server, caller: caller, only: only, tools: make(map[string]*tool), resources: make(map[string]*resource),
		templates: make(map[string]*template), prompts: make(map[string]*prompt),
	}
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
	w.show(nil, nil, nil, nil)
}

// sync updates the server to what the caller may see now.
func (w *view) sync() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	b := w.box
	w.show(shown(w, b.tools), shown(w, b.resources), shown(w, b.templates), shown(w, b.prompts))
}

// shown returns the entries of m that the view shows.
func shown[V owned](w *view, m map[string]V) []V {
	return slices.DeleteFunc(visible(w.box, w.caller, m), func(v V) bool { return w.only != "" && v.owner().id != w.only })
}

// short is a name in the view, long the same name in the box.
func (w *view) short(name string) string { return strings.TrimPrefix(name, w.prefix()) }
func (w *view) long(name string) string  { return w.prefix() + name }

func (w *view) prefix() string {
	if w.only == "" {
		return ""
	}
	return w.only + "."
}

// show updates the server. w.mu is held; the SDK's servers notify their clients from
// timers, so this waits for no peer.
func (w *view) show(tools []*tool, resources []*resource, templates []*template, prompts []*prompt) {
	update(w.tools, tools, func(t *tool) string { return w.short(t.shown.Name) },
		func(t *tool) { x := *t.shown; x.Name = w.short(x.Name); w.server.AddTool(&x, w.callTool) }, w.server.RemoveTools)
	update(w.resources, resources, func(r *resource) string { return r.shown.URI },
		func(r *resource) { w.server.AddResource(r.shown, w.readResource) }, w.server.RemoveResources)
	update(w.templates, templates, func(t *template) string { return t.shown.URITemplate },
		func(t *template) { w.server.AddResourceTemplate(t.shown, w.readResource) }, w.server.RemoveResourceTemplates)
	update(w.prompts, prompts, func(x *prompt) string { return w.short(x.shown.Name) },
		func(x *prompt) { y := *x.shown; y.Name = w.short(y.Name); w.server.AddPrompt(&y, w.getPrompt) }, w.server.RemovePrompts)
}

// update makes have equal to want with as few additions and removals as possible.
func update[V comparable](have map[string]V, want []V, key func(V) string, add func(V), remove func(...string)) {
	wanted := make(map[string]bool, len(want))
	for _, v := range want {
		wanted[key(v)] = true
	}
	var gone []string
	for k := range have {
		if !wanted[k] {
			gone = append(gone, k)
			delete(have, k)
		}
	}
	if len(gone) > 0 {
		remove(gone...)
	}
	for _, v := range want {
		if old, there := have[key(v)]; there && old == v {
			continue
		}
		have[key(v)] = v
		add(v)
	}
}

func (w *view) callTool(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	result, err := w.box.Call(ctx, w.caller, w.long(req.Params.Name), req.Params.Arguments, progressTo(ctx, req))
	if err == nil {
		return result, nil
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return nil, err
	}
	return e.result(), nil
}

// progressTo returns the function that reports progress to the client, nil if it did
// not ask for that.
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
	return result, wire(err)
}

func (w *view) getPrompt(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	result, err := w.box.Render(ctx, w.caller, w.long(req.Params.Name), req.Params.Arguments)
	return result, wire(err)
}

// wire returns a protocol error with the structured error as its data.
func wire(err error) error {
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
