package toolbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/telemetry"
)

// Call is one call of a tool.
type Call struct {
	Caller    string          // the agent that calls, "" for the user of the process
	Tool      string          // the qualified name
	Arguments json.RawMessage // an object that matches the tool's input schema

	progress func(Progress)
}

// Progress is the progress of a call.
type Progress struct {
	Done, Total float64 // Total is 0 if it is not known
	Message     string
}

// Progress reports progress to the caller, if it asked for that. It may be called from
// any goroutine until the handler has returned.
func (c *Call) Progress(p Progress) {
	if c.progress != nil {
		c.progress(p)
	}
}

// Handler executes a tool in the caller's goroutine. ctx ends when the caller gives up or the provider closes. A
// panic is recovered. A handler fails with an error or a result with IsError.
type Handler func(ctx context.Context, c *Call) (*mcp.CallToolResult, error)

// tool is a registered tool. It does not change.
type tool struct {
	entry
	input   *checker
	output  *checker
	handler func(ctx context.Context, c *Call) (outcome, error)
}

// AddTool offers a tool to other agents under the name "agent.name". Its input schema must be of type object;
// without one any object is accepted. t is not kept. Errors are [*Error]s: CodeDuplicateTool for an existing name,
// CodeInvalid for an invalid name or schema.
func (p *Provider) AddTool(t *mcp.Tool, h Handler) error {
	if t == nil || h == nil {
		return p.incomplete("a tool", "handler")
	}
	return p.add(p.newTool(t, func(ctx context.Context, c *Call) (outcome, error) {
		result, err := h(ctx, c)
		return outcome{value: result}, err
	}))
}

func (p *Provider) newTool(t *mcp.Tool, h func(ctx context.Context, c *Call) (outcome, error)) (*tool, error) {
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
	made := &tool{entry: entry{p, kindTool, name, &shown, p.sourceOf(t)}, handler: h}
	shown.Meta = with(t.Meta, MetaSource, made.from)
	if shown.InputSchema, made.input, err = p.compileInput(t.InputSchema); err != nil {
		return nil, failed(CodeInvalid, name, p.id, err, "the input schema of "+name+" cannot be used")
	}
	if shown.OutputSchema, made.output, err = p.compile(t.OutputSchema); err != nil {
		return nil, failed(CodeInvalid, name, p.id, err, "the output schema of "+name+" cannot be used")
	}
	return made, nil
}

// maxSource bounds the id of an agent in another box: its name there and its hub's key.
const maxSource = 2 * MaxName

// sourceOf returns the agent that offers a tool; another box names it.
func (p *Provider) sourceOf(t *mcp.Tool) string {
	if name, ok := t.Meta[MetaSource].(string); ok && p.asIs && name != "" && len(name) <= maxSource && utf8.ValidString(name) {
		return name
	}
	return p.source
}

// RemoveTool removes a tool and reports whether it was there. Running calls continue.
func (p *Provider) RemoveTool(name string) bool {
	var was bool
	_ = p.box.change(func() error {
		key := p.id + "." + name
		o := p.box.offers[kindTool][key]
		if was = o != nil && o.base().Provider == p; was {
			delete(p.box.offers[kindTool], key)
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
	return listed(b, caller, kindTool, func(t *mcp.Tool, from string) Tool { return Tool{t, from} })
}

// Call calls a tool and returns its result; it blocks until the tool is done or ctx ends. Empty arguments are an
// empty object. progress, which may be nil, is called from any goroutine; the last progress of a mounted server may
// be late or missing. Errors are [*Error]s; a call is never retried.
func (b *Box) Call(ctx context.Context, caller, name string, arguments json.RawMessage, progress func(Progress)) (*mcp.CallToolResult, error) {
	out, err := b.call(ctx, caller, name, arguments, progress)
	if err != nil {
		return nil, err
	}
	return out.result(rawjson.Value), nil
}

func (b *Box) call(ctx context.Context, caller, name string, arguments json.RawMessage, progress func(Progress)) (outcome, error) {
	began := b.o.Now()
	if len(bytes.TrimSpace(arguments)) == 0 {
		arguments = json.RawMessage("{}")
	}
	c := &Call{Caller: caller, Tool: name, Arguments: arguments, progress: b.guarded(progress)}
	found, hidden := b.find(caller, kindTool, name)
	t, known := found.(*tool)
	var out outcome
	err := error(errorf(CodeToolNotFound, name, "", "there is no tool %q; list the tools to see the names", name))
	if known {
		out, err = t.call(ctx, c)
	}
	b.record(c, cmp.Or(found, hidden), out, err, began)
	return out, err
}

func (t *tool) call(ctx context.Context, c *Call) (out outcome, err error) {
	if len(c.Arguments) > MaxArguments {
		return out, errorf(CodeArguments, c.Tool, t.from, "the arguments of %s have %d bytes, at most %d are allowed", c.Tool, len(c.Arguments), MaxArguments)
	}
	if err := t.input.check(c.Arguments); err != nil {
		return out, failed(CodeArguments, c.Tool, t.from, err, "the arguments of "+c.Tool+" do not fit its input schema")
	}
	out, err = guard(ctx, t.Provider, c.Tool, func(ctx context.Context) (outcome, error) { return t.handler(ctx, c) })
	if err != nil {
		return outcome{}, err
	}
	if out.text == nil && out.value == nil {
		out.value = &mcp.CallToolResult{}
	}
	if out.value != nil && out.value.IsError {
		return outcome{}, t.said(c, out.value)
	}
	if err := t.checkResult(out); err != nil {
		return outcome{}, failed(CodeResult, c.Tool, t.from, err, "the result of "+c.Tool+" is not JSON that fits its output schema")
	}
	return out, nil
}

// said is the error of a result with IsError; another box states its code.
func (t *tool) said(c *Call, r *mcp.CallToolResult) *Error {
	e := failed(CodeFailed, c.Tool, t.from, nil, saidText(r, c.Tool+" failed"))
	e.Result = r
	if parts, ok := r.Meta[MetaError].(map[string]any); ok && t.asIs {
		if code, _ := parts["code"].(string); code != "" {
			e.Code = Code(code)
		}
	}
	return e
}

// checkResult checks that the result can be written as JSON, and its structured content against the output schema, if
// there is one.
func (t *tool) checkResult(out outcome) error {
	r := out.value
	if r == nil {
		return t.checkStructured(out.parts.Structured)
	}
	if _, err := rawjson.Marshal(r.Meta); err != nil {
		return err
	}
	data, raw := r.StructuredContent.(json.RawMessage)
	if !raw && r.StructuredContent != nil {
		var err error
		if data, err = rawjson.Marshal(r.StructuredContent); err != nil {
			return err
		}
	}
	return t.checkStructured(data)
}

func (t *tool) checkStructured(data json.RawMessage) error {
	switch {
	case t.output == nil:
		return nil
	case data == nil:
		return errors.New("it has no structured content")
	}
	return t.output.check(data)
}

// saidText is the text of a result, or otherwise.
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

// guarded returns a function for progress that may be called from any goroutine.
func (b *Box) guarded(progress func(Progress)) func(Progress) {
	if progress == nil {
		return nil
	}
	return func(p Progress) { b.protect("a handler of progress", func() { progress(p) }) }
}

// record records a call of a tool, which is nil if there is no such tool.
func (b *Box) record(c *Call, of offer, out outcome, failed error, began time.Time) {
	if b.o.Telemetry == nil && b.o.Record == nil {
		return
	}
	now := b.o.Now()
	i := telemetry.Invocation{
		ToolName: c.Tool, Caller: c.Caller, Duration: float64(now.Sub(began)) / float64(time.Millisecond),
		Success: failed == nil, Timestamp: began.UnixMilli(),
	}
	if of != nil {
		i.SourceAgent = of.base().from
	}
	if failed != nil {
		i.ErrorCode, i.Error = string(CodeOf(failed)), failed.Error()
	}
	b.o.Telemetry.Emit(i.Event())
	if b.o.Record == nil {
		return
	}
	if json.Valid(c.Arguments) {
		i.Arguments = bytes.Clone(c.Arguments)
	}
	if failed == nil {
		if data, err := out.json(); err == nil {
			i.Result = data
		}
	}
	b.protect("Options.Record", func() { b.o.Record(i) })
}

// AddFunc offers a Go function as a tool. Its schemas are derived from In and Out as in
// the MCP SDK: fields without omitempty are required, a jsonschema tag describes a
// field. The result is returned as structured content and as text.
func AddFunc[In, Out any](p *Provider, name, description string, f func(ctx context.Context, c *Call, in In) (Out, error)) error {
	if f == nil {
		return p.incomplete("a tool", "handler")
	}
	input, err := jsonschema.For[In](nil)
	if err != nil {
		return failed(CodeInvalid, name, p.id, err, "no schema can be derived from the arguments")
	}
	output, err := jsonschema.For[Out](nil)
	if err != nil {
		return failed(CodeInvalid, name, p.id, err, "no schema can be derived from the result")
	}
	t := &mcp.Tool{Name: name, Description: description, InputSchema: input, OutputSchema: output}
	return p.AddTool(t, func(ctx context.Context, c *Call) (*mcp.CallToolResult, error) {
		var in In
		if err := json.Unmarshal(c.Arguments, &in); err != nil {
			return nil, failed(CodeArguments, c.Tool, p.id, err, "the arguments cannot be read")
		}
		out, err := f(ctx, c, in)
		if err != nil {
			return nil, err
		}
		data, err := rawjson.Marshal(out)
		if err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(data)}}, StructuredContent: json.RawMessage(data)}, nil
	})
}
