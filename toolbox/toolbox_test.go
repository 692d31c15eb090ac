package toolbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/toolbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
	Cleanup(func())
}

var ctx = context.Background()

func provider(t tb, b *toolbox.Box, id string) *toolbox.Provider {
	t.Helper()
	p, err := b.Provider(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func must(t tb, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t tb, err error, want toolbox.Code) *toolbox.Error {
	t.Helper()
	var e *toolbox.Error
	if !errors.As(err, &e) || e.Code != want {
		t.Fatalf("error %v, want code %s", err, want)
	}
	return e
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func textOf(t tb, r *mcp.CallToolResult) string {
	t.Helper()
	if len(r.Content) != 1 {
		t.Fatalf("content %v, want one text", r.Content)
	}
	return r.Content[0].(*mcp.TextContent).Text
}

// echo returns a handler that answers with a text and the arguments.
func echo(what string) toolbox.Handler {
	return func(_ context.Context, c *toolbox.Call) (*mcp.CallToolResult, error) {
		return text(what + " " + string(c.Arguments)), nil
	}
}

const addition = `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"],"additionalProperties":false}`

// plus returns a tool with an input and an output schema.
func plus() *mcp.Tool {
	return &mcp.Tool{
		Name: "plus", Description: "adds", InputSchema: json.RawMessage(addition),
		OutputSchema: json.RawMessage(`{"type":"object","properties":{"sum":{"type":"integer"}},"required":["sum"]}`),
	}
}

type tools map[string]map[string]*mcp.Tool // by agent and name

func genTools() *rapid.Generator[tools] {
	name := rapid.StringMatching(`[a-z][a-z0-9_-]{0,8}`)
	return rapid.Custom(func(t *rapid.T) tools {
		all := make(tools)
		for _, id := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,5}(\.[a-z]{1,3})?`), 1, 4, rapid.ID).Draw(t, "agents") {
			all[id] = make(map[string]*mcp.Tool)
			for _, n := range rapid.SliceOfNDistinct(name, 0, 4, rapid.ID).Draw(t, "names") {
				tool := &mcp.Tool{Name: n, Description: rapid.StringOf(rapid.RuneFrom(nil, unicode.L, unicode.P, unicode.S, unicode.Zs)).Draw(t, "description")}
				if rapid.Bool().Draw(t, "schemas") {
					tool.InputSchema, tool.OutputSchema = json.RawMessage(addition), json.RawMessage(`{"type":"object"}`)
				}
				all[id][n] = tool
			}
		}
		return all
	})
}

// Feature: a2a-mcp-protocols, Property 18: MCP tool registration and listing (Req
// 5.1, 5.2, 5.6).
// Req 5.1, 5.2, 5.6: a tool is listed with all its fields, under its agent's name.
func TestProperty18EveryToolIsListedUnderItsAgent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := toolbox.New(toolbox.Options{})
		want := make(map[string]string)
		for id, list := range genTools().Draw(t, "tools") {
			p := provider(t, b, id)
			for _, tool := range list {
				must(t, p.AddTool(tool, echo("x")))
				input := `{"type":"object"}`
				if tool.InputSchema != nil {
					input = addition
				}
				want[id+"."+tool.Name] = fmt.Sprint(id, tool.Description, input, tool.OutputSchema)
			}
		}
		got := make(map[string]string)
		listed := b.Tools("")
		for _, tool := range listed {
			got[tool.Name] = fmt.Sprint(tool.SourceAgent, tool.Description, string(tool.InputSchema.(json.RawMessage)), tool.OutputSchema)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("listed tools (-want +got):\n%s", diff)
		}
		if !slices.IsSortedFunc(listed, func(x, y toolbox.Tool) int { return strings.Compare(x.Name, y.Name) }) {
			t.Fatal("the list is not sorted")
		}
	})
}

// Feature: a2a-mcp-protocols, Property 19: MCP tool invocation routing (Req 5.3).
func TestProperty19ACallReachesTheToolOfItsAgent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := toolbox.New(toolbox.Options{})
		var names []string
		for id, list := range genTools().Draw(t, "tools") {
			p := provider(t, b, id)
			for name := range list {
				must(t, p.AddTool(&mcp.Tool{Name: name}, echo(id+"."+name)))
				names = append(names, id+"."+name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			arguments := fmt.Sprintf(`{"n":%d}`, rapid.Int().Draw(t, "n"))
			r, err := b.Call(ctx, "", name, json.RawMessage(arguments), nil)
			must(t, err)
			if got := textOf(t, r); got != name+" "+arguments {
				t.Fatalf("%s answered %q", name, got)
			}
		}
	})
}

// Feature: a2a-mcp-protocols, Property 20: MCP tool name uniqueness (Req 5.5).
func TestProperty20ASecondToolOfTheSameNameIsRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := toolbox.New(toolbox.Options{})
		for id, list := range genTools().Draw(t, "tools") {
			p := provider(t, b, id)
			for name := range list {
				must(t, p.AddTool(&mcp.Tool{Name: name}, echo("first")))
				err := wantCode(t, p.AddTool(&mcp.Tool{Name: name}, echo("second")), toolbox.CodeDuplicateTool)
				if !strings.Contains(err.Error(), id+"."+name) || err.SourceAgent != id {
					t.Fatalf("the error does not name the tool: %+v", err)
				}
				r, callErr := b.Call(ctx, "", id+"."+name, nil, nil)
				must(t, callErr)
				if got := textOf(t, r); got != "first {}" {
					t.Fatalf("the second tool replaced the first: %q", got)
				}
			}
		}
	})
}

// Feature: a2a-mcp-protocols, Property 21: MCP resource registration and read round
// trip (Req 6.1, 6.2).
func TestProperty21AReadReturnsWhatTheLoaderReturns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := toolbox.New(toolbox.Options{})
		p := provider(t, b, "venus")
		mime := rapid.SampledFrom([]string{"text/plain", "application/json", "image/png"}).Draw(t, "mime")
		content := rapid.SliceOf(rapid.Byte()).Draw(t, "content")
		uri := "vault://taste/" + rapid.StringMatching(`[a-z0-9]{1,9}`).Draw(t, "path")
		must(t, p.AddResource(&mcp.Resource{URI: uri, Name: "taste", MIMEType: mime}, toolbox.Bytes(func(_ context.Context, got string) ([]byte, error) {
			if got != uri {
				t.Errorf("loaded %q, want %q", got, uri)
			}
			return content, nil
		})))
		r, err := b.Read(ctx, "", uri)
		must(t, err)
		got := r.Contents[0]
		if len(r.Contents) != 1 || got.URI != uri || got.MIMEType != mime || string(got.Blob) != string(content) {
			t.Fatalf("read %+v", got)
		}
	})
}

// Feature: a2a-mcp-protocols, Property 22: MCP prompt template substitution (Req
// 6.4, 6.5).
// Req 6.4, 6.5: a prompt is registered with its template and rendered with its
// arguments.
func TestProperty22EveryPlaceholderBecomesItsValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := toolbox.New(toolbox.Options{})
		p := provider(t, b, "venus")
		values := rapid.MapOfN(rapid.StringMatching(`[a-z]{1,6}`), rapid.OneOf(rapid.String(), rapid.Just("{{a}}")), 0, 5).Draw(t, "values")
		names := slices.Sorted(maps.Keys(values))
		x := &mcp.Prompt{Name: "review"}
		var body, want strings.Builder
		for _, name := range names {
			x.Arguments = append(x.Arguments, &mcp.PromptArgument{Name: name, Required: true})
		}
		for range rapid.IntRange(0, 8).Draw(t, "parts") {
			literal := rapid.StringMatching(`[a-z .}]{0,9}`).Draw(t, "literal")
			body.WriteString(literal)
			want.WriteString(literal)
			if len(names) > 0 {
				name := rapid.SampledFrom(names).Draw(t, "name")
				space := rapid.SampledFrom([]string{"", " "}).Draw(t, "space")
				body.WriteString("{{" + space + name + space + "}}")
				want.WriteString(values[name])
			}
		}
		must(t, p.AddPrompt(x, body.String()))
		r, err := b.Render(ctx, "", "venus.review", values)
		must(t, err)
		if got := r.Messages[0].Content.(*mcp.TextContent).Text; got != want.String() {
			t.Fatalf("rendered %q, want %q", got, want.String())
		}
	})
}

// Feature: a2a-mcp-protocols, Property 33: MCP tool invocation metrics accuracy (Req
// 12.2, 12.5).
func TestProperty33EachCallIsCounted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var records []telemetry.Invocation
		recorder := telemetry.New(telemetry.Options{})
		b := toolbox.New(toolbox.Options{Telemetry: recorder, Record: func(i telemetry.Invocation) { records = append(records, i) }})
		p := provider(t, b, "venus")
		must(t, p.AddTool(&mcp.Tool{Name: "good"}, echo("good")))
		must(t, p.AddTool(&mcp.Tool{Name: "bad"}, func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) {
			return nil, errors.New("no")
		}))
		calls := rapid.SliceOf(rapid.SampledFrom([]string{"venus.good", "venus.bad", "venus.missing"})).Draw(t, "calls")
		want := make(map[string]uint64)
		var failed uint64
		for _, name := range calls {
			want[name]++
			if _, err := b.Call(ctx, "mars", name, json.RawMessage(`{"n":1}`), nil); err != nil {
				failed++
			}
		}
		got := recorder.Metrics()
		if got.TotalToolInvocations != uint64(len(calls)) || got.ToolErrorCount != failed {
			t.Fatalf("counted %d calls, %d failed, want %d and %d", got.TotalToolInvocations, got.ToolErrorCount, len(calls), failed)
		}
		for name, n := range want {
			if got.ToolInvocationsByTool[name] != n {
				t.Fatalf("%s was counted %d times, want %d", name, got.ToolInvocationsByTool[name], n)
			}
		}
		for i, r := range records {
			if r.ToolName != calls[i] || r.Success == (r.ErrorCode != "") || string(r.Arguments) != `{"n":1}` || (r.Result != nil) != r.Success {
				t.Fatalf("record %+v of %s", r, calls[i])
			}
			data, err := telemetry.EncodeInvocation(r)
			must(t, err)
			again, err := telemetry.DecodeInvocation(data)
			must(t, err)
			if diff := cmp.Diff(r, again); diff != "" {
				t.Fatalf("the record changes when encoded and decoded (-want +got):\n%s", diff)
			}
		}
	})
}

// Req 5.4.
func TestAFailedCallNamesToolCauseAndAgent(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	p := provider(t, b, "venus")
	add := func(name string, h toolbox.Handler) { must(t, p.AddTool(&mcp.Tool{Name: name}, h)) }
	add("fails", func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) { return nil, errors.New("no disk") })
	add("says-so", func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) {
		r := text("no disk")
		r.IsError = true
		return r, nil
	})
	add("crashes", func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) { panic("no disk") })
	must(t, p.AddTool(plus(), func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{StructuredContent: map[string]string{"sum": "no disk"}}, nil
	}))
	for name, want := range map[string]toolbox.Code{
		"venus.fails": toolbox.CodeFailed, "venus.says-so": toolbox.CodeFailed, "venus.crashes": toolbox.CodePanic, "venus.plus": toolbox.CodeResult,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.Call(ctx, "", name, json.RawMessage(`{"a":1,"b":2}`), nil)
			e := wantCode(t, err, want)
			if e.SourceAgent != "venus" || e.Subject != name || !strings.Contains(e.Error(), "disk") && want != toolbox.CodeResult {
				t.Fatalf("%+v", e)
			}
		})
	}
	t.Run("unknown", func(t *testing.T) {
		_, err := b.Call(ctx, "", "venus.unknown", nil, nil)
		wantCode(t, err, toolbox.CodeToolNotFound)
	})
}

func TestArgumentsMustFitTheInputSchema(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	p := provider(t, b, "venus")
	called := false
	must(t, p.AddTool(plus(), func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) {
		called = true
		return &mcp.CallToolResult{StructuredContent: map[string]int{"sum": 3}}, nil
	}))
	for _, arguments := range []string{`{`, `[]`, `null`, `{"a":1}`, `{"a":1,"b":"2"}`, `{"a":1,"b":2,"c":3}`, `{"a":1.5,"b":2}`, "{} {}",
		`{"a":1,"b":2,"x":"` + strings.Repeat("x", toolbox.MaxArguments) + `"}`} {
		_, err := b.Call(ctx, "", "venus.plus", json.RawMessage(arguments), nil)
		wantCode(t, err, toolbox.CodeArguments)
	}
	if called {
		t.Fatal("the tool was called with invalid arguments")
	}
	if _, err := b.Call(ctx, "", "venus.plus", json.RawMessage(`{"a":1,"b":2}`), nil); err != nil || !called {
		t.Fatalf("called %v, %v", called, err)
	}
}

func TestInvalidRegistrationsAreRefused(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	p := provider(t, b, "venus")
	for name, tool := range map[string]*mcp.Tool{
		"no name":               {},
		"a name with spaces":    {Name: "a b"},
		"a long name":           {Name: strings.Repeat("x", toolbox.MaxName)},
		"arguments as a list":   {Name: "x", InputSchema: json.RawMessage(`{"type":"array"}`)},
		"a schema that is not":  {Name: "x", InputSchema: json.RawMessage(`{"type":"object","properties":7}`)},
		"a reference to a file": {Name: "x", InputSchema: json.RawMessage(`{"type":"object","$ref":"file:///etc/passwd"}`)},
		"a huge schema":         {Name: "x", InputSchema: json.RawMessage(`{"type":"object","title":"` + strings.Repeat("x", toolbox.MaxSchema) + `"}`)},
		"a bad output schema":   {Name: "x", OutputSchema: json.RawMessage(`{"type":"nothing"}`)},
		"bytes, not text":       {Name: "x", Description: "\xff"},
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, p.AddTool(tool, echo("x")), toolbox.CodeInvalid) })
	}
	for _, id := range []string{"", "a b", "a..b", ".a", "*", strings.Repeat("x", toolbox.MaxName)} {
		_, err := b.Provider(id)
		wantCode(t, err, toolbox.CodeInvalid)
	}
	_, err := b.Provider("venus")
	wantCode(t, err, toolbox.CodeDuplicate)
	load := toolbox.Text(func(context.Context, string) (string, error) { return "", nil })
	for _, uri := range []string{"", "no scheme", "/path", "%zz://"} {
		wantCode(t, p.AddResource(&mcp.Resource{URI: uri, Name: "x"}, load), toolbox.CodeInvalid)
	}
	wantCode(t, p.AddResource(&mcp.Resource{URI: "vault://x"}, load), toolbox.CodeInvalid)
	for _, pattern := range []string{"", "vault://{", "{scheme}://x", "/path/{x}"} {
		wantCode(t, p.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: pattern, Name: "x"}, load), toolbox.CodeInvalid)
	}
	wantCode(t, p.AddPrompt(&mcp.Prompt{Name: "x"}, "{{unknown}}"), toolbox.CodeInvalid)
	wantCode(t, p.AddPrompt(&mcp.Prompt{Name: "x", Arguments: []*mcp.PromptArgument{{Name: "a"}, {Name: "a"}}}, ""), toolbox.CodeInvalid)
	if n := len(b.Tools("")) + len(b.Resources("")) + len(b.Prompts("")); n != 0 {
		t.Fatalf("%d refused entries were registered", n)
	}
}

func TestTheBoxIsBounded(t *testing.T) {
	b := toolbox.New(toolbox.Options{MaxEntries: 2})
	p := provider(t, b, "venus")
	must(t, p.AddTool(&mcp.Tool{Name: "a"}, echo("a")))
	must(t, p.AddPrompt(&mcp.Prompt{Name: "b"}, "b"))
	wantCode(t, p.AddTool(&mcp.Tool{Name: "c"}, echo("c")), toolbox.CodeFull)
	if !p.RemoveTool("a") || p.RemoveTool("a") {
		t.Fatal("Remove did not make room")
	}
	must(t, p.AddTool(&mcp.Tool{Name: "c"}, echo("c")))
}

// Req 6.3.
func TestAMissingResourceIsNamed(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	p := provider(t, b, "venus")
	must(t, p.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "vault://taste/{id}", Name: "taste", MIMEType: "text/plain"},
		toolbox.Text(func(_ context.Context, uri string) (string, error) {
			if strings.HasSuffix(uri, "/7") {
				return "sweet", nil
			}
			return "", fmt.Errorf("look for %s: %w", uri, toolbox.ErrNoResource)
		})))
	r, err := b.Read(ctx, "", "vault://taste/7")
	must(t, err)
	if c := r.Contents[0]; c.Text != "sweet" || c.MIMEType != "text/plain" || c.URI != "vault://taste/7" {
		t.Fatalf("read %+v", c)
	}
	for _, uri := range []string{"vault://taste/8", "vault://other", "vault://taste/7/8"} {
		_, err := b.Read(ctx, "", uri)
		if e := wantCode(t, err, toolbox.CodeResourceNotFound); e.Subject != uri || !strings.Contains(e.Error(), uri) {
			t.Fatalf("%+v does not name %s", e, uri)
		}
	}
}

func TestAPromptNamesMissingArguments(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	p := provider(t, b, "venus")
	must(t, p.AddPrompt(&mcp.Prompt{Name: "review", Arguments: []*mcp.PromptArgument{{Name: "file", Required: true}, {Name: "tone"}}}, "Review {{file}}{{tone}}."))
	_, err := b.Render(ctx, "", "venus.review", map[string]string{"tone": "x"})
	if e := wantCode(t, err, toolbox.CodeArguments); !strings.Contains(e.Error(), "file") {
		t.Fatal(e)
	}
	_, err = b.Render(ctx, "", "venus.review", map[string]string{"file": "x", "files": "y"})
	wantCode(t, err, toolbox.CodeArguments)
	_, err = b.Render(ctx, "", "venus.nothing", nil)
	wantCode(t, err, toolbox.CodePromptNotFound)
	r, err := b.Render(ctx, "", "venus.review", map[string]string{"file": "{{tone}}"})
	must(t, err)
	if got := r.Messages[0].Content.(*mcp.TextContent).Text; got != "Review {{tone}}." {
		t.Fatalf("rendered %q", got)
	}
}

func TestACallEndsWithItsCallerOrAgent(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	p := provider(t, b, "venus")
	started := make(chan struct{})
	must(t, p.AddTool(&mcp.Tool{Name: "waits"}, func(ctx context.Context, _ *toolbox.Call) (*mcp.CallToolResult, error) {
		started <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}))
	call := func(ctx context.Context) <-chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := b.Call(ctx, "", "venus.waits", nil, nil)
			ended <- err
		}()
		<-started
		return ended
	}
	canceled, cancel := context.WithCancel(ctx)
	ended := call(canceled)
	cancel()
	wantCode(t, <-ended, toolbox.CodeCanceled)
	ended = call(ctx)
	p.Close()
	wantCode(t, <-ended, toolbox.CodeClosed)
	if len(b.Tools("")) != 0 {
		t.Fatal("the tools of a closed provider are still listed")
	}
	wantCode(t, p.AddTool(&mcp.Tool{Name: "x"}, echo("x")), toolbox.CodeClosed)
}

func newRouter(t tb, cards ...agent.Card) *router.Router {
	t.Helper()
	reg := registry.New(registry.Options{})
	r, err := router.New(reg, router.Options{})
	must(t, err)
	for _, c := range cards {
		c.Name, c.Version, c.Capabilities = c.ID, "1.0.0", []agent.Capability{}
		_, err := reg.Register(c)
		must(t, err)
	}
	t.Cleanup(func() { must(t, errors.Join(r.Close(ctx), reg.Close())) })
	return r
}

func TestAgentsSeeTheToolsOfThoseTheyMayAddress(t *testing.T) {
	r := newRouter(t, agent.Card{ID: "sun", Tier: agent.L0}, agent.Card{ID: "earth", Tier: agent.L1}, agent.Card{ID: "venus", Tier: agent.L2},
		agent.Card{ID: "boxed", Tier: agent.L0, SandboxID: "s"})
	b := toolbox.New(toolbox.Options{Policy: r})
	for _, id := range []string{"sun", "earth", "venus", "boxed"} {
		must(t, provider(t, b, id).AddTool(&mcp.Tool{Name: "x"}, echo(id)))
	}
	for caller, want := range map[string]string{
		"":      "boxed.x earth.x sun.x venus.x",
		"sun":   "boxed.x earth.x sun.x venus.x",
		"earth": "boxed.x earth.x sun.x", // L1 may address L0 and L1
		"boxed": "boxed.x",
		"ghost": "",
	} {
		var names []string
		for _, tool := range b.Tools(caller) {
			names = append(names, tool.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q sees %q, want %q", caller, got, want)
		}
	}
	_, err := b.Call(ctx, "earth", "venus.x", nil, nil)
	wantCode(t, err, toolbox.CodeToolNotFound)
}

func TestAGoFunctionIsCalledAsATool(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	p := provider(t, b, "venus")
	type in struct {
		A int `json:"a" jsonschema:"the first"`
		B int `json:"b"`
	}
	type out struct {
		Sum int `json:"sum"`
	}
	must(t, toolbox.AddFunc(p, "plus", "adds", func(_ context.Context, _ *toolbox.Call, x in) (out, error) {
		if x.A < 0 {
			return out{}, errors.New("negative")
		}
		return out{x.A + x.B}, nil
	}))
	r, err := b.Call(ctx, "", "venus.plus", json.RawMessage(`{"a":1,"b":2}`), nil)
	must(t, err)
	if got := textOf(t, r); got != `{"sum":3}` {
		t.Fatalf("got %s", got)
	}
	_, err = b.Call(ctx, "", "venus.plus", json.RawMessage(`{"a":1}`), nil)
	wantCode(t, err, toolbox.CodeArguments)
	_, err = b.Call(ctx, "", "venus.plus", json.RawMessage(`{"a":-1,"b":0}`), nil)
	wantCode(t, err, toolbox.CodeFailed)
}

func TestConcurrentUse(t *testing.T) {
	b := toolbox.New(toolbox.Options{Telemetry: telemetry.New(telemetry.Options{})})
	var run sync.WaitGroup
	for i := range 8 {
		run.Go(func() {
			id := fmt.Sprintf("agent-%d", i)
			for range 20 {
				p, err := b.Provider(id)
				if err != nil {
					t.Error(err)
					return
				}
				if err := p.AddTool(&mcp.Tool{Name: "x"}, echo(id)); err != nil {
					t.Error(err)
				}
				for _, tool := range b.Tools("") {
					_, err := b.Call(ctx, "", tool.Name, nil, nil)
					if code := toolbox.CodeOf(err); err != nil && code != toolbox.CodeToolNotFound && code != toolbox.CodeClosed {
						t.Error(err)
					}
				}
				p.Close()
			}
		})
	}
	run.Wait()
	if n := len(b.Tools("")); n != 0 {
		t.Fatalf("%d tools are left", n)
	}
}

// Req 10.2, Req 12.2: what the box emits names the caller and the agent that offers the tool, whether the call
// succeeds, fails, or is refused by a tier or a sandbox; a refusal is a security event, too.
func TestInvocationsAreEvents(t *testing.T) {
	cards := []agent.Card{
		{ID: "venus", Name: "V", Version: "1", Tier: agent.L2, Capabilities: []agent.Capability{}},
		{ID: "mars", Name: "M", Version: "1", Tier: agent.L2, Capabilities: []agent.Capability{}},
		{ID: "earth", Name: "E", Version: "1", Tier: agent.L1, Capabilities: []agent.Capability{}},
		{ID: "io", Name: "I", Version: "1", Tier: agent.L3, SandboxID: "box", Capabilities: []agent.Capability{}},
	}
	reg := registry.New(registry.Options{})
	defer reg.Close()
	for _, c := range cards {
		if _, err := reg.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	r, err := router.New(reg, router.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close(context.Background())
	events := telemetry.New(telemetry.Options{})
	var records []telemetry.Invocation
	now := time.UnixMilli(1000)
	b := toolbox.New(toolbox.Options{Policy: r, Telemetry: events, Record: func(i telemetry.Invocation) { records = append(records, i) }, Now: func() time.Time {
		now = now.Add(5 * time.Millisecond)
		return now
	}})
	p, err := b.Provider("venus")
	if err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]toolbox.Handler{
		"good": func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) { return nil, nil },
		"bad":  func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) { return nil, errors.New("no") },
		"wild": func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) { panic("at large") },
	} {
		if err := p.AddTool(&mcp.Tool{Name: name}, h); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		caller, tool string
		want         toolbox.Code
		security     string
		panics       int
	}{
		{"mars", "venus.good", "", "", 0},
		{"mars", "venus.bad", toolbox.CodeFailed, "", 0},
		{"mars", "venus.wild", toolbox.CodePanic, "", 1},
		{"earth", "venus.good", toolbox.CodeToolNotFound, "TIER_VIOLATION", 0},
		{"io", "venus.good", toolbox.CodeToolNotFound, "SANDBOX_VIOLATION", 0},
		{"ghost", "venus.good", toolbox.CodeToolNotFound, "SENDER_UNKNOWN", 0},
	} {
		before := len(events.Recent(0))
		_, err := b.Call(t.Context(), c.caller, c.tool, nil, nil)
		if toolbox.CodeOf(err) != c.want {
			t.Errorf("%s calls %s: %v", c.caller, c.tool, err)
		}
		got := make(map[telemetry.EventType][]telemetry.Event)
		for _, e := range events.Recent(0)[before:] {
			got[e.Type] = append(got[e.Type], e)
		}
		calls, security := got[telemetry.ToolInvocation], got[telemetry.Security]
		if len(calls) != 1 || len(got[telemetry.ErrorEvent]) != c.panics {
			t.Fatalf("%s calls %s: %+v", c.caller, c.tool, got)
		}
		e := calls[0]
		if e.ToolName != c.tool || e.Sender != c.caller || e.Recipient != "venus" || e.Target != "venus" || e.SourceAgent != "venus" ||
			e.Duration <= 0 || (e.Success == telemetry.Success) != (c.want == "") || e.Code != string(c.want) || e.Timestamp == 0 {
			t.Errorf("%s calls %s: %+v", c.caller, c.tool, e)
		}
		i := records[len(records)-1]
		if i.Caller != c.caller || i.SourceAgent != "venus" || i.Event() != e {
			t.Errorf("the record %+v differs from the event %+v", i, e)
		}
		if (len(security) == 1) != (c.security != "") {
			t.Errorf("%s calls %s: security events %+v", c.caller, c.tool, security)
			continue
		}
		if c.security != "" {
			if s := security[0]; s.Code != c.security || s.Sender != c.caller || s.Recipient != "venus" || s.Target != "venus" || s.ToolName != c.tool || s.Detail == "" {
				t.Errorf("%s calls %s: %+v", c.caller, c.tool, s)
			}
		}
	}
	before := events.Metrics().SecurityEvents
	if _, err := b.Call(t.Context(), "io", "venus.nothing", nil, nil); toolbox.CodeOf(err) != toolbox.CodeToolNotFound || events.Metrics().SecurityEvents != before {
		t.Errorf("a tool that does not exist: %v, %d security events more", err, events.Metrics().SecurityEvents-before)
	}
}

// A refused resource, prompt or resource of a template is a security event; the caller sees that there is none.
func TestRefusedResourcesAndPromptsAreSecurityEvents(t *testing.T) {
	events := telemetry.New(telemetry.Options{})
	b := toolbox.New(toolbox.Options{Policy: refuseAll{}, Telemetry: events})
	p, err := b.Provider("venus")
	if err != nil {
		t.Fatal(err)
	}
	load := toolbox.Text(func(context.Context, string) (string, error) { return "secret", nil })
	if err := errors.Join(
		p.AddResource(&mcp.Resource{URI: "a://b", Name: "b"}, load),
		p.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "t://{x}", Name: "t"}, load),
		p.AddPrompt(&mcp.Prompt{Name: "p"}, "body"),
	); err != nil {
		t.Fatal(err)
	}
	for what, try := range map[string]func() error{
		"a resource": func() error { _, err := b.Read(t.Context(), "mars", "a://b"); return err },
		"a template": func() error { _, err := b.Read(t.Context(), "mars", "t://b"); return err },
		"a prompt":   func() error { _, err := b.Render(t.Context(), "mars", "venus.p", nil); return err },
	} {
		before := len(events.Recent(0))
		err := try()
		got := events.Recent(0)[before:]
		if code := toolbox.CodeOf(err); code != toolbox.CodeResourceNotFound && code != toolbox.CodePromptNotFound {
			t.Errorf("%s: %v", what, err)
		}
		if len(got) != 1 || got[0].Type != telemetry.Security || got[0].Sender != "mars" || got[0].Recipient != "venus" || got[0].Code != string(toolbox.CodeRefused) {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

type refuseAll struct{}

func (refuseAll) Permit(string, string) error { return errors.New("no") }

// The panic of any callback is one error event.
func TestPanicsOfCallbacksAreEvents(t *testing.T) {
	events := telemetry.New(telemetry.Options{})
	b := toolbox.New(toolbox.Options{Telemetry: events, Record: func(telemetry.Invocation) { panic("record") }})
	p, err := b.Provider("venus")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		p.AddTool(&mcp.Tool{Name: "tool"}, func(_ context.Context, c *toolbox.Call) (*mcp.CallToolResult, error) {
			c.Progress(toolbox.Progress{Done: 1})
			return nil, nil
		}),
		p.AddResource(&mcp.Resource{URI: "a://b", Name: "b"}, func(context.Context, string) (*mcp.ReadResourceResult, error) { panic("loader") }),
		p.AddRenderer(&mcp.Prompt{Name: "p"}, func(context.Context, map[string]string) (*mcp.GetPromptResult, error) { panic("renderer") }),
	); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Call(t.Context(), "", "venus.tool", nil, func(toolbox.Progress) { panic("progress") }); err != nil {
		t.Errorf("the tool fails with its callbacks: %v", err)
	}
	if _, err := b.Read(t.Context(), "", "a://b"); toolbox.CodeOf(err) != toolbox.CodePanic {
		t.Errorf("a loader: %v", err)
	}
	if _, err := b.Render(t.Context(), "", "venus.p", nil); toolbox.CodeOf(err) != toolbox.CodePanic {
		t.Errorf("a renderer: %v", err)
	}
	m, err := b.Mount(toolbox.MountOptions{Name: "m", Dial: func(context.Context) (mcp.Transport, error) { panic("dial") }})
	if err != nil {
		t.Fatal(err)
	}
	<-m.Tried()
	m.Close()
	for _, want := range []string{"record", "loader", "renderer", "progress", "dial"} {
		n := 0
		for _, e := range events.Recent(0) {
			if e.Type == telemetry.ErrorEvent && e.Code == telemetry.CodePanic && strings.Contains(e.Detail, " panicked: "+want+"\n") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d events of the panic of %s", n, want)
		}
	}
}

func TestNilArgumentsAreErrors(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	p, err := b.Provider("venus")
	if err != nil {
		t.Fatal(err)
	}
	_, over := toolbox.Over(nil, "a", "b").Connect(t.Context())
	_, mount := b.Mount(toolbox.MountOptions{Name: "m"})
	listener := toolbox.Listen(nil, "a", nil)
	listener.Close()
	for what, err := range map[string]error{
		"tool":     p.AddTool(nil, nil),
		"handler":  p.AddTool(&mcp.Tool{Name: "x"}, nil),
		"func":     toolbox.AddFunc[struct{}, struct{}](p, "x", "", nil),
		"resource": p.AddResource(nil, nil),
		"loader":   p.AddResource(&mcp.Resource{URI: "a://b", Name: "b"}, nil),
		"template": p.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "a://{b}", Name: "b"}, nil),
		"prompt":   p.AddPrompt(nil, ""),
		"renderer": p.AddRenderer(&mcp.Prompt{Name: "x"}, nil),
		"dial":     mount,
		"over":     over,
		"listen":   listener.Err(),
	} {
		if toolbox.CodeOf(err) != toolbox.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A result that cannot be written as JSON is the tool's error, with an output schema or without.
func TestACyclicResultIsAnError(t *testing.T) {
	type link struct {
		Next any `json:"next"`
	}
	cycle := &link{}
	cycle.Next = cycle
	for name, result := range map[string]*mcp.CallToolResult{
		"content": {StructuredContent: cycle},
		"meta":    {Meta: mcp.Meta{"x": cycle}},
		"number":  {StructuredContent: map[string]any{"x": math.NaN()}},
	} {
		b := toolbox.New(toolbox.Options{})
		p, err := b.Provider("venus")
		must(t, err)
		must(t, p.AddTool(&mcp.Tool{Name: "tool"}, func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) { return result, nil }))
		if _, err := b.Call(t.Context(), "", "venus.tool", nil, nil); toolbox.CodeOf(err) != toolbox.CodeResult {
			t.Errorf("%s: %v", name, err)
		}
	}
}
