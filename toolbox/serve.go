package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// face is an MCP server that shows a caller's part of the box.
type face struct {
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

// Serve adds to an MCP server everything that a caller may see of the box, and
// keeps that so until stop is called: the server's sessions are told of tools that
// come and go. What the server has of its own stays; it must not have names of the
// form "agent.tool". The sessions of one server all act for the same caller.
//
// Tool calls carry progress and cancellation both ways. A failure is a result with
// IsError, whose _meta has {"code","message","sourceAgent"} under [MetaError]. The
// _meta of a listed tool has the agent that offers it under [MetaSource].
func (b *Box) Serve(server *mcp.Server, caller string) (stop func()) {
	return b.serve(server, caller, "")
}

// ServeAgent is Serve for what one agent offers, under the names that the agent gave,
// "lint" for "venus.lint": for another box that takes the agent in under a name of
// its own.
func (b *Box) ServeAgent(server *mcp.Server, caller, agentID string) (stop func()) {
	return b.serve(server, caller, agentID)
}

func (b *Box) serve(server *mcp.Server, caller, only string) (stop func()) {
	f := &face{
		box: b, server: server, caller: caller, only: only, tools: make(map[string]*tool), resources: make(map[string]*resource),
		templates: make(map[string]*template), prompts: make(map[string]*prompt),
	}
	b.mu.Lock()
	b.faces[f] = struct{}{}
	b.mu.Unlock()
	f.sync()
	return f.stop
}

func (f *face) stop() {
	f.box.mu.Lock()
	delete(f.box.faces, f)
	f.box.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.show(nil, nil, nil, nil)
}

// sync shows what the caller may see now. Several changes at once end with the
// latest state, since each sync looks anew.
func (f *face) sync() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	b := f.box
	f.show(shown(f, b.tools), shown(f, b.resources), shown(f, b.templates), shown(f, b.prompts))
}

// shown is what of m the face's caller may see.
func shown[V owned](f *face, m map[string]V) []V {
	return slices.DeleteFunc(visible(f.box, f.caller, m), func(v V) bool { return f.only != "" && v.owner().id != f.only })
}

// short is a name as the face shows it, long the one that it has in the box.
func (f *face) short(name string) string { return strings.TrimPrefix(name, f.prefix()) }
func (f *face) long(name string) string  { return f.prefix() + name }

func (f *face) prefix() string {
	if f.only == "" {
		return ""
	}
	return f.only + "."
}

// show changes the server to what is given. f.mu is held; the SDK's servers notify
// their sessions from timers of their own, so nothing here waits for a peer.
func (f *face) show(tools []*tool, resources []*resource, templates []*template, prompts []*prompt) {
	update(f.tools, tools, func(t *tool) string { return f.short(t.shown.Name) },
		func(t *tool) { x := *t.shown; x.Name = f.short(x.Name); f.server.AddTool(&x, f.callTool) }, f.server.RemoveTools)
	update(f.resources, resources, func(r *resource) string { return r.shown.URI },
		func(r *resource) { f.server.AddResource(r.shown, f.readResource) }, f.server.RemoveResources)
	update(f.templates, templates, func(t *template) string { return t.shown.URITemplate },
		func(t *template) { f.server.AddResourceTemplate(t.shown, f.readResource) }, f.server.RemoveResourceTemplates)
	update(f.prompts, prompts, func(x *prompt) string { return f.short(x.shown.Name) },
		func(x *prompt) { y := *x.shown; y.Name = f.short(y.Name); f.server.AddPrompt(&y, f.getPrompt) }, f.server.RemovePrompts)
}

// update makes have equal to want with the least additions and removals.
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

func (f *face) callTool(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	result, err := f.box.Call(ctx, f.caller, f.long(req.Params.Name), req.Params.Arguments, progressTo(ctx, req))
	if err == nil {
		return result, nil
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return nil, err
	}
	return e.result(), nil
}

// progressTo returns what tells the session of progress, nil if it did not ask.
func progressTo(ctx context.Context, req *mcp.CallToolRequest) func(Progress) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	return func(p Progress) {
		// A session that is gone misses it; its call ends by its context.
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: p.Done, Total: p.Total, Message: p.Message})
	}
}

// The keys in the _meta of results and of listed tools.
const (
	// MetaError has the parts of a failure. They cannot stand in the structured
	// content: that must match the tool's output schema, and clients refuse what does
	// not.
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

// result returns the error as a model is to read it. What the tool itself said of
// its failure comes first.
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
	made := mcp.Meta{key: value}
	for k, v := range m {
		if k != key {
			made[k] = v
		}
	}
	return made
}

func (f *face) readResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	result, err := f.box.read(ctx, f.caller, f.only, req.Params.URI)
	if CodeOf(err) == CodeResourceNotFound {
		return nil, mcp.ResourceNotFoundError(req.Params.URI)
	}
	return result, wire(err)
}

func (f *face) getPrompt(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	result, err := f.box.Render(ctx, f.caller, f.long(req.Params.Name), req.Params.Arguments)
	return result, wire(err)
}

// wire makes a protocol error with the structured one as its data.
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
