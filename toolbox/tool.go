package toolbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/telemetry"
)

// Call is one call of a tool.
type Call struct {
	// Caller is the agent that calls, "" for the user of the process.
	Caller string
	// Tool is the qualified name.
	Tool string
	// Arguments is a JSON object that fits the tool's input schema.
	Arguments json.RawMessage

	progress func(Progress)
}

// Progress is how far a call is.
type Progress struct {
	Done, Total float64 // Total is 0 where it is not known
	Message     string
}

// Progress tells the caller how far the call is, if it wants to know. It may be
// called from any goroutine until the handler has returned.
func (c *Call) Progress(p Progress) {
	if c.progress != nil {
		c.progress(p)
	}
}

// Handler does what a tool is for. It runs in the caller's goroutine; ctx ends when
// the caller gives up or the provider closes. A panic is caught. A handler says
// that it failed by an error, or by a result with IsError.
type Handler func(ctx context.Context, c *Call) (*mcp.CallToolResult, error)

// tool is a registered tool. It does not change.
type tool struct {
	*Provider
	shown   *mcp.Tool // with the qualified name
	source  string    // the agent's id
	input   *checker
	output  *checker
	handler Handler
}

// AddTool offers a tool to other agents under the name "agent.name". Its
// input schema must be of type object; without one any object is taken. t is not
// kept. Errors are [*Error]s: CodeDuplicateTool for a name that is taken,
// CodeInvalid for a name or schema that makes no sense.
func (p *Provider) AddTool(t *mcp.Tool, h Handler) error {
	made, err := p.newTool(t, h)
	if err != nil {
		return err
	}
	return add(p, p.box.tools, made.shown.Name, made, CodeDuplicateTool)
}

func (p *Provider) newTool(t *mcp.Tool, h Handler) (*tool, error) {
	name, err := p.qualify(t.Name)
	if err != nil {
		return nil, err
	}
	texts := []string{t.Description, t.Title}
	if t.Annotations != nil {
		texts = append(texts, t.Annotations.Title)
	}
	if err := p.describe(name, texts...); err != nil {
		return nil, err
	}
	shown := *t
	shown.Name = name
	made := &tool{Provider: p, shown: &shown, source: p.sourceOf(t), handler: h}
	shown.Meta = with(t.Meta, MetaSource, made.source)
	if shown.InputSchema, made.input, err = compileInput(t.InputSchema, p.foreign); err != nil {
		return nil, failed(CodeInvalid, name, p.id, err, "the input schema of "+name+" cannot be used")
	}
	if shown.OutputSchema, made.output, err = compile(t.OutputSchema, p.foreign); err != nil {
		return nil, failed(CodeInvalid, name, p.id, err, "the output schema of "+name+" cannot be used")
	}
	if p.asIs { // the other box checks what it is sent, and says whose tool it is
		made.input, made.output = nil, nil
	}
	return made, nil
}

// maxSource bounds the id of an agent in another box: its name there, and its hub's key.
const maxSource = 2 * MaxName

// sourceOf returns the agent that offers a tool: of another box's tools, the one that
// it names.
func (p *Provider) sourceOf(t *mcp.Tool) string {
	if name, ok := t.Meta[MetaSource].(string); ok && p.asIs && name != "" && len(name) <= maxSource && utf8.ValidString(name) {
		return name
	}
	return p.source
}

// RemoveTool takes a tool back. Calls that run go on. It reports whether it was
// there.
func (p *Provider) RemoveTool(name string) bool {
	var was bool
	_ = p.box.change(func() error {
		t := p.box.tools[p.id+"."+name]
		if was = t != nil && t.Provider == p; was {
			delete(p.box.tools, t.shown.Name)
		}
		return nil
	}) // it cannot fail
	return was
}

// Tool is a tool in a list.
type Tool struct {
	*mcp.Tool   // with the qualified name; do not change it
	SourceAgent string
}

// Tools lists the tools of all agents that a caller may see, by name.
func (b *Box) Tools(caller string) []Tool {
	all := visible(b, caller, b.tools)
	list := make([]Tool, len(all))
	for i, t := range all {
		list[i] = Tool{Tool: t.shown, SourceAgent: t.source}
	}
	return list
}

// Call has the agent that offers a tool run it, and returns its result.
// Empty arguments are an empty object. progress, which may be nil, is called with
// what the tool tells meanwhile, from any goroutine; of a mounted server the last word
// before the result may come late or not at all. Call blocks until the tool is done or ctx ends.
// Errors are [*Error]s; nothing is tried twice.
func (b *Box) Call(ctx context.Context, caller, name string, arguments json.RawMessage, progress func(Progress)) (*mcp.CallToolResult, error) {
	began := b.o.Now()
	if len(bytes.TrimSpace(arguments)) == 0 {
		arguments = json.RawMessage("{}")
	}
	c := &Call{Caller: caller, Tool: name, Arguments: arguments, progress: progress}
	t, known := find(b, caller, b.tools, name)
	var result *mcp.CallToolResult
	err := error(toolNotFound(name))
	if known {
		result, err = t.call(ctx, c)
	}
	b.record(c, t, result, err, began)
	if err != nil {
		return nil, err
	}
	return result, nil
}

func (t *tool) call(ctx context.Context, c *Call) (*mcp.CallToolResult, error) {
	if len(c.Arguments) > MaxArguments {
		return nil, errorf(CodeArguments, c.Tool, t.source, "the arguments of %s have %d bytes, at most %d are allowed", c.Tool, len(c.Arguments), MaxArguments)
	}
	if err := t.input.check(c.Arguments); err != nil {
		return nil, failed(CodeArguments, c.Tool, t.source, err, "the arguments of "+c.Tool+" do not fit its input schema")
	}
	result, err := guard(ctx, t.Provider, c.Tool, func(ctx context.Context) (*mcp.CallToolResult, error) { return t.handler(ctx, c) })
	if err != nil {
		return nil, err
	}
	if result == nil {
		result = &mcp.CallToolResult{}
	}
	if result.IsError {
		return nil, t.said(c, result)
	}
	if err := t.checkResult(result); err != nil {
		return nil, failed(CodeResult, c.Tool, t.source, err, "the result of "+c.Tool+" does not fit its output schema")
	}
	return result, nil
}

// said is the error of a tool that says itself that it has failed; of another box's,
// what that box makes of it.
func (t *tool) said(c *Call, r *mcp.CallToolResult) *Error {
	e := failed(CodeFailed, c.Tool, t.source, nil, saidText(r, c.Tool+" failed"))
	e.Result = r
	if parts, ok := r.Meta[MetaError].(map[string]any); ok && t.asIs {
		if code, _ := parts["code"].(string); code != "" {
			e.Code = Code(code)
		}
	}
	return e
}

// checkResult holds the structured content against the output schema. A tool with
// such a schema must have one.
func (t *tool) checkResult(r *mcp.CallToolResult) error {
	if t.output == nil {
		return nil
	}
	if r.StructuredContent == nil {
		return errors.New("it has no structured content")
	}
	data, err := json.Marshal(r.StructuredContent)
	if err != nil {
		return err
	}
	return t.output.check(data)
}

// saidText is the text of a result, or something else to say.
func saidText(r *mcp.CallToolResult, otherwise string) string {
	var lines []string
	for _, c := range r.Content {
		if text, ok := c.(*mcp.TextContent); ok && text.Text != "" {
			lines = append(lines, text.Text)
		}
	}
	if len(lines) == 0 {
		return otherwise
	}
	return strings.Join(lines, "\n")
}

// record counts and records a call.
func (b *Box) record(c *Call, t *tool, result *mcp.CallToolResult, failed error, began time.Time) {
	if b.o.Telemetry == nil && b.o.Record == nil {
		return
	}
	now := b.o.Now()
	i := telemetry.Invocation{
		ToolName: c.Tool, Duration: float64(now.Sub(began)) / float64(time.Millisecond),
		Success: failed == nil, Timestamp: began.UnixMilli(),
	}
	if t != nil {
		i.SourceAgent = t.source
	}
	if failed != nil {
		i.ErrorCode, i.Error = string(CodeOf(failed)), failed.Error()
	}
	event := i.Event()
	event.Sender, event.Target = c.Caller, i.SourceAgent
	b.o.Telemetry.Emit(event)
	if b.o.Record == nil {
		return
	}
	if json.Valid(c.Arguments) {
		i.Arguments = bytes.Clone(c.Arguments)
	}
	if result != nil {
		data, err := json.Marshal(result)
		if err == nil { // content that cannot be written never left the handler's process
			i.Result = data
		}
	}
	b.o.Record(i)
}
