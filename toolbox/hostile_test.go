package toolbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/toolbox"
)

// rawServer is an MCP server with hand-written results, which may be invalid. It is both
// the transport and the connection.
type rawServer struct {
	result  func(method string, params json.RawMessage) string // "" sends no answer
	before  []jsonrpc.Message                                  // sent before each answer
	twice   bool
	answers chan jsonrpc.Message
	end     sync.Once
	done    chan struct{}
}

func newRawServer(result func(method string, params json.RawMessage) string) *rawServer {
	return &rawServer{result: result, answers: make(chan jsonrpc.Message, 1<<10), done: make(chan struct{})}
}

func (l *rawServer) Connect(context.Context) (mcp.Connection, error) { return l, nil }
func (l *rawServer) SessionID() string                               { return "" }

func (l *rawServer) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-l.answers:
		return m, nil
	case <-l.done:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *rawServer) Write(_ context.Context, m jsonrpc.Message) error {
	call, ok := m.(*jsonrpc.Request)
	if !ok || !call.IsCall() {
		return nil
	}
	switch result := l.result(call.Method, call.Params); {
	case result != "":
		for _, m := range l.before {
			if r, ok := m.(*jsonrpc.Request); ok {
				again := *r // the reader changes it
				m = &again
			}
			l.answers <- m
		}
		l.answers <- &jsonrpc.Response{ID: call.ID, Result: json.RawMessage(result)}
		if l.twice {
			l.answers <- &jsonrpc.Response{ID: call.ID, Result: json.RawMessage(`{"content":[{"type":"text","text":"again"}]}`)}
		}
	case call.Method == "server/discover":
		l.answers <- &jsonrpc.Response{ID: call.ID, Error: &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no"}}
	}
	return nil
}

func (l *rawServer) Close() error {
	l.end.Do(func() { close(l.done) })
	return nil
}

// answersWith returns the answers of a well-behaved server, except for one method.
func answersWith(method, result string) func(string, json.RawMessage) string {
	return func(m string, _ json.RawMessage) string {
		if m == method {
			return result
		}
		switch m {
		case "initialize":
			return `{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"resources":{},"prompts":{}},"serverInfo":{"name":"raw","version":"1"}}`
		case "tools/list":
			return `{"tools":[{"name":"good","inputSchema":{"type":"object"}}]}`
		case "resources/list":
			return `{"resources":[{"uri":"raw://good","name":"good"}]}`
		case "resources/templates/list":
			return `{"resourceTemplates":[{"uriTemplate":"raw://t/{x}","name":"t"}]}`
		case "prompts/list":
			return `{"prompts":[{"name":"good","arguments":[{"name":"a"}]}]}`
		case "tools/call":
			return `{"content":[{"type":"text","text":"ok"}]}`
		case "resources/read":
			return `{"contents":[{"uri":"raw://good","text":"ok"}]}`
		case "prompts/get":
			return `{"messages":[{"role":"user","content":{"type":"text","text":"ok"}}]}`
		}
		return ""
	}
}

// Invalid answers of a mounted server crash neither the box nor the servers that show
// it, and the tools of other agents still work (Req 5.3, 5.4).
func TestInvalidAnswersOfAMountedServerAreContained(t *testing.T) {
	tool := func(schema string) string { return `{"tools":[{"name":"x","inputSchema":` + schema + `}]}` }
	for _, c := range []struct{ method, result string }{
		{"initialize", `null`}, {"initialize", `{}`}, {"initialize", `[]`}, {"initialize", `{"protocolVersion":"2025-06-18","capabilities":null,"serverInfo":null}`},
		{"server/discover", `null`}, {"server/discover", `{}`}, {"server/discover", `{"supportedVersions":null,"capabilities":null}`},
		{"tools/list", `null`}, {"tools/list", `{}`}, {"tools/list", `{"tools":null}`}, {"tools/list", `{"tools":[null]}`},
		{"tools/list", `{"tools":[{}]}`}, {"tools/list", `{"tools":[{"name":"x"}]}`}, {"tools/list", `{"tools":[{"name":"x","inputSchema":null,"outputSchema":false}]}`},
		{"tools/list", `{"tools":[{"name":"x","inputSchema":{"type":"object"},"annotations":null,"_meta":null,"icons":[null]}]}`},
		{"tools/list", tool(`{"type":"object","properties":{"x":{"type":"object","x-mcp-header":"X"}}}`)},
		{"tools/list", tool(`{"type":"object","properties":{"x":{"type":"string","x-mcp-header":"no header"}}}`)},
		{"tools/list", tool(`{"type":"object","properties":{"x":{"type":"string","x-mcp-header":""}}}`)},
		{"tools/list", tool(`{"type":"object","properties":{"x":{"type":"string","x-mcp-header":"A"},"y":{"type":"string","x-mcp-header":"a"}}}`)},
		{"tools/list", tool(`{"type":"object","properties":7}`)}, {"tools/list", tool(`{"type":"object","$ref":"#"}`)},
		{"tools/list", tool(`{"type":"object","properties":{"x":{"type":["string",null]}}}`)},
		{"tools/list", tool(`{"type":"object","$defs":` + strings.Repeat(`{"a":`, 9000) + `{}` + strings.Repeat(`}`, 9000) + `}`)},
		{"tools/list", tool(`{"type":"object","not":` + strings.Repeat(`{"not":`, 9000) + `{}` + strings.Repeat(`}`, 9000) + `}`)},
		{"tools/list", tool(`{"type":"object","properties":{"x":{"pattern":"(a{1000}){1000}"}}}`)},
		{"resources/list", `{"resources":[null]}`}, {"resources/list", `{"resources":[{}]}`}, {"resources/list", `null`},
		{"resources/list", `{"resources":[{"uri":"x:%zz","name":"x"},{"uri":"file:///../../etc/passwd","name":"x"},{"uri":"http://[::1","name":"x"}]}`},
		{"resources/templates/list", `{"resourceTemplates":[null]}`}, {"resources/templates/list", `{"resourceTemplates":[{}]}`},
		{"resources/templates/list", `{"resourceTemplates":[{"uriTemplate":"x:{","name":"x"},{"uriTemplate":"{+x}","name":"x"},{"uriTemplate":"x:{+a}{+b}{+c}","name":""}]}`},
		{"prompts/list", `{"prompts":[null]}`}, {"prompts/list", `{"prompts":[{}]}`}, {"prompts/list", `{"prompts":[{"name":"x","arguments":[null]}]}`},
		{"tools/call", `null`}, {"tools/call", `{}`}, {"tools/call", `[]`}, {"tools/call", `{"content":null}`}, {"tools/call", `{"content":[null]}`},
		{"tools/call", `{"content":[{}]}`}, {"tools/call", `{"content":[{"type":"resource"}]}`}, {"tools/call", `{"content":[{"type":"resource","resource":null}]}`},
		{"tools/call", `{"content":[{"type":"image","data":"%%%"}]}`}, {"tools/call", `{"isError":true,"content":[null]}`}, {"tools/call", `{"_meta":{"io.parley/error":7},"isError":true}`},
		{"resources/read", `null`}, {"resources/read", `{}`}, {"resources/read", `{"contents":null}`}, {"resources/read", `{"contents":[null]}`}, {"resources/read", `{"contents":[{}]}`},
		{"prompts/get", `null`}, {"prompts/get", `{}`}, {"prompts/get", `{"messages":[null]}`}, {"prompts/get", `{"messages":[{"role":"user","content":null}]}`}, {"prompts/get", `{"messages":[{}]}`},
	} {
		t.Run(c.method+" "+c.result[:min(60, len(c.result))], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := toolbox.New(toolbox.Options{})
				must(t, provider(t, b, "venus").AddTool(plus(), func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) {
					return &mcp.CallToolResult{StructuredContent: map[string]any{"sum": 3}}, nil
				}))
				shown := mcp.NewServer(me, nil)
				defer b.Serve(shown, "")()
				here, there := mcp.NewInMemoryTransports()
				ss, err := shown.Connect(ctx, there, nil)
				must(t, err)
				cs, err := mcp.NewClient(me, nil).Connect(ctx, here, nil)
				must(t, err)
				m, err := b.Mount(toolbox.MountOptions{Name: "raw", Dial: func(context.Context) (mcp.Transport, error) {
					return newRawServer(answersWith(c.method, c.result)), nil
				}})
				must(t, err)
				defer m.Close()
				synctest.Wait()
				// These requests may fail; they must not panic or block.
				for _, name := range []string{"raw.good", "raw.x"} {
					_, _ = cs.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: map[string]any{}})
					_, _ = cs.GetPrompt(ctx, &mcp.GetPromptParams{Name: name, Arguments: map[string]string{"a": "1"}})
				}
				for _, uri := range []string{"raw://good", "raw://t/1", "x:%zz", "x:1", "file:///etc/passwd"} {
					_, _ = cs.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
				}
				for tool, err := range cs.Tools(ctx, nil) {
					if err != nil || tool.Name == "" {
						t.Errorf("%+v %v", tool, err)
					}
				}
				if r, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "venus.plus", Arguments: map[string]any{"a": 1, "b": 2}}); err != nil || r.IsError {
					t.Errorf("the tool of another agent fails: %+v %v", r, err)
				}
				must(t, cs.Close())
				must(t, ss.Wait())
			})
		})
	}
}

// mountRaw mounts a server and waits for the first attempt to connect.
func mountRaw(t tb, b *toolbox.Box, name string, l *rawServer) *toolbox.Mount {
	t.Helper()
	m, err := b.Mount(toolbox.MountOptions{
		Name: name, Dial: func(context.Context) (mcp.Transport, error) { return l, nil },
		DialTimeout: 10 * time.Minute, // reading large lists takes long on a busy machine
	})
	must(t, err)
	t.Cleanup(m.Close)
	<-m.Tried()
	return m
}

func TestUnsolicitedAnswersAreIgnored(t *testing.T) {
	id := func(v any) jsonrpc.ID {
		made, err := jsonrpc.MakeID(v)
		must(t, err)
		return made
	}
	l := newRawServer(answersWith("", ""))
	l.twice = true
	l.before = []jsonrpc.Message{
		&jsonrpc.Response{ID: id("none"), Result: json.RawMessage(`{}`)}, &jsonrpc.Response{ID: id(1e6), Result: json.RawMessage(`{}`)},
		&jsonrpc.Request{ID: id(7.0), Method: "sampling/createMessage", Params: json.RawMessage(`{}`)}, &jsonrpc.Request{ID: id(8.0), Method: "roots/list"},
		&jsonrpc.Request{Method: "notifications/progress", Params: json.RawMessage(`{"progressToken":{"a":[]},"progress":"x"}`)},
		&jsonrpc.Request{Method: "notifications/cancelled", Params: json.RawMessage(`null`)}, &jsonrpc.Request{Method: "notifications/tools/list_changed", Params: json.RawMessage(`[]`)},
	}
	b := toolbox.New(toolbox.Options{})
	mountRaw(t, b, "raw", l)
	for range 3 {
		r, err := b.Call(ctx, "", "raw.good", nil, nil)
		must(t, err)
		if textOf(t, r) != "ok" {
			t.Errorf("%+v", r)
		}
	}
}

// doubling returns a schema whose validation takes 2^n steps.
func doubling(n int) string {
	var defs []string
	for i := range n {
		defs = append(defs, fmt.Sprintf(`"d%d":{"anyOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i, i+1, i+1))
	}
	return fmt.Sprintf(`{"type":"object","$ref":"#/$defs/d0","$defs":{%s,"d%d":{"required":["none"]}}}`, strings.Join(defs, ","), n)
}

// Checking arguments against a schema of a mounted server has bounded cost. The box
// leaves costlier checks to the server.
func TestACostlySchemaIsNotChecked(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 400) + `{}` + strings.Repeat(`}`, 400)
	for what, c := range map[string]struct{ schema, arguments string }{
		"doubles":             {doubling(64), `{}`},
		"doubles by depth":    {`{"type":"object","allOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`, deep},
		"doubles dynamically": {strings.ReplaceAll(doubling(64), `"$ref"`, `"$dynamicRef"`), `{}`},
		"refers to itself":    {`{"type":"object","properties":{"x":{"$ref":"#/properties/x"}}}`, `{"x":1}`},
		"large patterns":      {`{"type":"object","patternProperties":{` + manyPatterns(500) + `}}`, `{"x":1}`},
		"other patterns":      {`{"type":"object","properties":{"mail":{"pattern":"^(?!\\.)(?=a).*$"}}}`, `{"mail":"b"}`},
		"long texts":          {`{"type":"object","properties":{"x":{"pattern":"(x{1,50}){1,50}y"}}}`, `{"x":"` + strings.Repeat("x", 900<<10) + `"}`},
		"many values":         {`{"type":"object","properties":{"x":{"items":{"enum":[` + strings.Repeat("1,", 50_000) + `1]}}}}`, `{"x":[` + strings.Repeat("2,", 400_000) + `2]}`},
	} {
		t.Run(what, func(t *testing.T) {
			tool := `{"tools":[{"name":"x","inputSchema":` + c.schema + `}]}`
			b := toolbox.New(toolbox.Options{})
			m := mountRaw(t, b, "raw", newRawServer(answersWith("tools/list", tool)))
			if s := m.Status(); s.Tools != 1 {
				t.Fatalf("the tool is not listed: %+v", s)
			}
			if _, err := b.Call(ctx, "", "raw.x", json.RawMessage(c.arguments), nil); err != nil {
				t.Errorf("%.300v", err)
			}
		})
	}
}

func manyPatterns(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`"^%d[a-z]{1000}":{}`, i)
	}
	return strings.Join(all, ",")
}

// The box checks arguments against schemas that cost little, also against recursive
// ones.
func TestTheSchemasOfAMountedServerAreChecked(t *testing.T) {
	tree := `{"type":"object","properties":{"name":{"type":"string","pattern":"^[a-z]+$"},"children":{"type":"array","items":{"$ref":"#"}}},"required":["name"],"additionalProperties":false}`
	all := `{"type":"object","if":{"required":["a"]},"then":{"required":["b"]},"else":{"not":{"required":["b"]}},"dependentSchemas":{"a":{"maxProperties":2}},
		"propertyNames":{"maxLength":3},"unevaluatedProperties":{"type":"integer"},"properties":{"l":{"prefixItems":[{"type":"string"}],"items":{"type":"integer"},"contains":{"const":1},"uniqueItems":true}}}`
	old := `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","dependencies":{"a":{"required":["b"]}},"properties":{"l":{"items":[{"type":"string"}],"additionalItems":{"type":"integer"}}}}`
	for _, c := range []struct {
		schema, arguments string
		fits              bool
	}{
		{tree, `{"name":"a","children":[{"name":"b","children":[]},{"name":"c"}]}`, true},
		{tree, `{"name":"a","children":[{"name":"b","children":[{"name":"C"}]}]}`, false},
		{tree, `{"name":"a","children":[{}]}`, false},
		{all, `{"a":1,"b":2}`, true}, {all, `{"a":1}`, false}, {all, `{"b":1}`, false}, {all, `{"a":1,"b":2,"c":3}`, false}, {all, `{"four":1}`, false}, {all, `{"c":"x"}`, false},
		{all, `{"l":["x",1]}`, true}, {all, `{"l":["x",2]}`, false}, {all, `{"l":["x",1,1]}`, false}, {all, `{"l":[1]}`, false},
		{old, `{"a":1,"b":2,"l":["x",1]}`, true}, {old, `{"a":1}`, false}, {old, `{"l":["x","y"]}`, false},
	} {
		b := toolbox.New(toolbox.Options{})
		mountRaw(t, b, "raw", newRawServer(answersWith("tools/list", `{"tools":[{"name":"x","inputSchema":`+c.schema+`}]}`)))
		if _, err := b.Call(ctx, "", "raw.x", json.RawMessage(c.arguments), nil); (toolbox.CodeOf(err) == toolbox.CodeArguments) == c.fits || c.fits && err != nil {
			t.Errorf("%s: %v", c.arguments, err)
		}
	}
}

// A number with a huge exponent is refused; it does not exhaust the memory.
func TestNumbersOutOfRangeAreRefused(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	p := provider(t, b, "venus")
	schema := json.RawMessage(`{"type":"object","properties":{"x":{"minimum":1,"multipleOf":0.5},"l":{"items":{"minimum":1}}}}`)
	must(t, p.AddTool(&mcp.Tool{Name: "x", InputSchema: schema}, echo("x")))
	for number, want := range map[string]toolbox.Code{
		"1e9999999": toolbox.CodeArguments, "1e-9999999": toolbox.CodeArguments, "1E99999999999999999999": toolbox.CodeArguments, "1e401": toolbox.CodeArguments,
		strings.Repeat("9", 1001): toolbox.CodeArguments, "1e400": "", "1.5E+2": "", strings.Repeat("9", 1000): "",
	} {
		for _, arguments := range []string{`{"x":` + number + `}`, `{"l":[` + number + `]}`} {
			_, err := b.Call(ctx, "", "venus.x", json.RawMessage(arguments), nil)
			if toolbox.CodeOf(err) != want || want == "" && err != nil {
				t.Errorf("%.40s: %v", arguments, err)
			}
		}
	}
	err := p.AddTool(&mcp.Tool{Name: "y", InputSchema: json.RawMessage(`{"type":"object","properties":{"x":{"minimum":1e9999999}}}`)}, echo("y"))
	wantCode(t, err, toolbox.CodeInvalid)
}

// A model must not read characters that a person does not see.
func TestInvisibleTextIsRefused(t *testing.T) {
	object := json.RawMessage(`{"type":"object"}`)
	for _, hidden := range []string{"\x1b[2J", "\x00", "a\u202eb", "a\u2066b", "a\U000e0041", "\u009b1m", "\x07", "\x7f"} {
		b := toolbox.New(toolbox.Options{})
		p := provider(t, b, "venus")
		quoted, err := json.Marshal(hidden)
		must(t, err)
		load := toolbox.Text(func(context.Context, string) (string, error) { return "", nil })
		for what, err := range map[string]error{
			"description":    p.AddTool(&mcp.Tool{Name: "a", Description: hidden, InputSchema: object}, echo("")),
			"title":          p.AddTool(&mcp.Tool{Name: "a", Title: hidden, InputSchema: object}, echo("")),
			"annotation":     p.AddTool(&mcp.Tool{Name: "a", Annotations: &mcp.ToolAnnotations{Title: hidden}, InputSchema: object}, echo("")),
			"property":       p.AddTool(&mcp.Tool{Name: "a", InputSchema: json.RawMessage(`{"type":"object","allOf":[{"properties":{"x":{"description":` + string(quoted) + `}}}]}`)}, echo("")),
			"output":         p.AddTool(&mcp.Tool{Name: "a", InputSchema: object, OutputSchema: json.RawMessage(`{"type":"object","title":` + string(quoted) + `}`)}, echo("")),
			"resource":       p.AddResource(&mcp.Resource{URI: "x:a", Name: hidden}, load),
			"resource title": p.AddResource(&mcp.Resource{URI: "x:a", Name: "a", Title: hidden}, load),
			"template":       p.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "x:{a}", Name: "a", Description: hidden}, load),
			"prompt":         p.AddPrompt(&mcp.Prompt{Name: "a", Title: hidden}, ""),
			"argument":       p.AddPrompt(&mcp.Prompt{Name: "a", Arguments: []*mcp.PromptArgument{{Name: "a", Description: hidden}}}, ""),
		} {
			if toolbox.CodeOf(err) != toolbox.CodeInvalid {
				t.Errorf("%q as %s: %v", hidden, what, err)
			}
		}
	}
	p := provider(t, toolbox.New(toolbox.Options{}), "venus")
	must(t, p.AddTool(&mcp.Tool{Name: "a", Title: "Ä 漢字 שלום 👩‍💻", Description: "two\nlines\tof\r\ntext", InputSchema: object}, echo("")))
}

func TestSchemasAtWhichTheSDKPanicsAreRefused(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	cs := serve(t, b, "", nil)
	p := provider(t, b, "venus")
	for _, property := range []string{`{"type":"object","x-mcp-header":"X"}`, `{"type":"string","x-mcp-header":"no header"}`, `{"type":"string","x-mcp-header":7}`} {
		err := p.AddTool(&mcp.Tool{Name: "bad", InputSchema: json.RawMessage(`{"type":"object","properties":{"x":` + property + `}}`)}, echo(""))
		wantCode(t, err, toolbox.CodeInvalid)
	}
	must(t, p.AddTool(&mcp.Tool{Name: "good", InputSchema: json.RawMessage(`{"type":"object","properties":{"x":{"type":"string","x-mcp-header":"X"}}}`)}, echo("")))
	if got := toolNames(t, cs); len(got) != 1 || got[0] != "venus.good" {
		t.Errorf("%s", got)
	}
}

// The total size of the tool list of a server is bounded.
func TestTheListOfAServerIsBounded(t *testing.T) {
	list := make([]string, 200)
	for i := range list { // 12 MB
		list[i] = fmt.Sprintf(`{"name":"t%d","description":"%s","inputSchema":{"type":"object"}}`, i, strings.Repeat("x", 60<<10))
	}
	m := mountRaw(t, toolbox.New(toolbox.Options{}), "raw", newRawServer(answersWith("tools/list", `{"tools":[`+strings.Join(list, ",")+`]}`)))
	if s := m.Status(); s.Tools < 100 || s.Tools*(60<<10) > toolbox.MaxCatalog || s.Tools+s.Skipped < 200 {
		t.Errorf("%+v", s)
	}
}

// The box reads the lists of a server that constantly reports changes at most once a
// second, and sees the last change.
func TestRepeatedChangesAreReadOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		good := answersWith("", "")
		var l *rawServer
		l = newRawServer(func(method string, params json.RawMessage) string {
			if method != "tools/list" {
				return good(method, params)
			}
			n := asked.Add(1)
			l.answers <- &jsonrpc.Request{Method: "notifications/tools/list_changed"}
			return fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{"type":"object"}}]}`, n)
		})
		b := toolbox.New(toolbox.Options{})
		mountRaw(t, b, "raw", l)
		time.Sleep(time.Minute + time.Second/2)
		synctest.Wait()
		if n := asked.Load(); n < 10 || n > 70 {
			t.Errorf("the list was read %d times in a minute", n)
		}
		if got := b.Tools(""); len(got) != 1 || got[0].Name != fmt.Sprintf("raw.t%d", asked.Load()) {
			t.Errorf("%v after %d", got, asked.Load())
		}
	})
}

// A slow progress handler delays no other call, and receives the latest progress.
func TestASlowProgressHandlerDelaysNoOtherCall(t *testing.T) {
	var l *rawServer
	good := answersWith("", "")
	heard, hear := make(chan float64, 1000), make(chan struct{})
	l = newRawServer(func(method string, params json.RawMessage) string {
		var call struct {
			Arguments struct{ Slow bool }
			Meta      struct{ ProgressToken int } `json:"_meta"`
		}
		if json.Unmarshal(params, &call) == nil && call.Arguments.Slow {
			for i := range 1000 {
				params := fmt.Sprintf(`{"progressToken":%d,"progress":%d}`, call.Meta.ProgressToken, i+1)
				l.answers <- &jsonrpc.Request{Method: "notifications/progress", Params: json.RawMessage(params)}
			}
			return ""
		}
		return good(method, params)
	})
	b := toolbox.New(toolbox.Options{})
	mountRaw(t, b, "raw", l)
	ended := make(chan error, 1)
	slow, cancel := context.WithCancel(ctx)
	go func() {
		_, err := b.Call(slow, "", "raw.good", json.RawMessage(`{"slow":true}`), func(p toolbox.Progress) {
			heard <- p.Done
			<-hear
		})
		ended <- err
	}()
	first := <-heard
	for range 3 { // after all progress of the other call
		if _, err := b.Call(ctx, "", "raw.good", nil, func(toolbox.Progress) {}); err != nil {
			t.Fatal(err)
		}
	}
	close(hear)
	for last := first; last < 1000; {
		next := <-heard
		if next <= last {
			t.Fatalf("progress %v was followed by %v", last, next)
		}
		last = next
	}
	cancel()
	wantCode(t, <-ended, toolbox.CodeCanceled)
}

// A later provider cannot take over a resource, neither with the same URI nor with a
// template that sorts first.
func TestTheFirstProviderOfAResourceServesIt(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	text := func(s string) toolbox.Loader {
		return toolbox.Text(func(context.Context, string) (string, error) { return s, nil })
	}
	first, second := provider(t, b, "venus"), provider(t, b, "mars")
	must(t, second.AddResource(&mcp.Resource{URI: "notes:/secret", Name: "s"}, text("mars")))
	must(t, second.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "notes:{+all}", Name: "t"}, text("mars")))
	must(t, first.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "notes:/{name}", Name: "t"}, text("venus")))
	must(t, first.AddResource(&mcp.Resource{URI: "notes:/own", Name: "o"}, text("venus itself")))
	for uri, want := range map[string]string{"notes:/secret": "venus", "notes:/x": "venus", "notes:/own": "venus itself", "notes:/a/b": "mars"} {
		if r, err := b.Read(ctx, "", uri); err != nil || r.Contents[0].Text != want {
			t.Errorf("%s: %+v %v", uri, r, err)
		}
	}
	_, err := b.Read(ctx, "", "notes:/"+strings.Repeat("x", toolbox.MaxURI))
	wantCode(t, err, toolbox.CodeResourceNotFound)
	for _, wrong := range []error{
		first.AddResource(&mcp.Resource{URI: "x:" + strings.Repeat("x", toolbox.MaxURI), Name: "long"}, text("")),
		first.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "x:{a}" + strings.Repeat("x", toolbox.MaxURI), Name: "long"}, text("")),
	} {
		wantCode(t, wrong, toolbox.CodeInvalid)
	}
}

// logHook is a log handler that calls do for each record.
type logHook struct {
	slog.Handler
	do func()
}

func (h logHook) Handle(context.Context, slog.Record) error { h.do(); return nil }

func (h logHook) Enabled(context.Context, slog.Level) bool { return true }

// Status has the problem of the first attempt once Tried is closed.
func TestTriedIsClosedAfterTheFirstAttemptIsRecorded(t *testing.T) {
	nobody := errors.New("nobody is there")
	mounted := make(chan struct{})
	var m *toolbox.Mount
	var attempts atomic.Int32
	early := false
	m, err := toolbox.New(toolbox.Options{}).Mount(toolbox.MountOptions{
		Name: "x",
		Dial: func(ctx context.Context) (mcp.Transport, error) {
			<-mounted
			if attempts.Add(1) > 1 { // later attempts block
				<-ctx.Done()
			}
			return nil, nobody
		},
		Logger: slog.New(logHook{slog.DiscardHandler, func() { // the box logs the failed attempt
			select {
			case <-m.Tried():
				early = true
			default:
			}
		}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	close(mounted)
	<-m.Tried()
	problem := m.Status().Problem
	m.Close()
	if !errors.Is(problem, nobody) || early {
		t.Errorf("the problem is %v; Tried was closed before it was logged: %t", problem, early)
	}
}

// policyFunc is a policy that permits everything and calls a function first.
type policyFunc func(from, to string)

func (a policyFunc) Permit(from, to string) error { a(from, to); return nil }

// A listed tool can be called at once, also by a client that is notified of it before
// the mount continues.
func TestAListedToolCanBeCalled(t *testing.T) {
	var b *toolbox.Box
	var called []error
	b = toolbox.New(toolbox.Options{Policy: policyFunc(func(_, to string) { // called when a server that shows the box lists the tools
		if to == "raw" {
			_, err := b.Call(ctx, "", "raw.good", nil, nil)
			called = append(called, err)
		}
	})})
	stop := b.Serve(mcp.NewServer(&mcp.Implementation{Name: "face", Version: "1"}, nil), "mars")
	defer stop()
	mountRaw(t, b, "raw", newRawServer(answersWith("", "")))
	if len(called) == 0 {
		t.Error("the tools were not listed")
	}
	for _, err := range called {
		if err != nil {
			t.Error(err)
		}
	}
}

// The error for invalid arguments is for a model: it names position and problem, and is
// short (Req 5.4).
func TestArgumentErrorsAreShort(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	p := provider(t, b, "venus")
	must(t, p.AddTool(plus(), echo("x")))
	must(t, p.AddTool(&mcp.Tool{Name: "list", InputSchema: json.RawMessage(`{"type":"object","properties":{"l":{"items":{"type":"string"}}}}`)}, echo("x")))
	_, err := b.Call(ctx, "", "venus.plus", json.RawMessage(`{"a":1}`), nil)
	if want := "the arguments of venus.plus do not fit its input schema: at the top: missing property 'b'"; err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	_, err = b.Call(ctx, "", "venus.list", json.RawMessage(`{"l":[`+strings.Repeat("1,", 10_000)+`1]}`), nil)
	if wantCode(t, err, toolbox.CodeArguments); len(err.Error()) > 4<<10 || !strings.Contains(err.Error(), "at '/l/") {
		t.Errorf("%d bytes: %.200v", len(err.Error()), err)
	}
}
