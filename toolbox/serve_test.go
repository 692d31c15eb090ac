package toolbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/toolbox"
)

var me = &mcp.Implementation{Name: "test", Version: "1"}

// connect returns a client of a server.
func connect(t tb, s *mcp.Server, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	here, there := mcp.NewInMemoryTransports()
	ss, err := s.Connect(ctx, there, nil)
	must(t, err)
	cs, err := mcp.NewClient(me, o).Connect(ctx, here, nil)
	must(t, err)
	t.Cleanup(func() {
		_ = cs.Close() // it may be closed already
		_ = ss.Wait()
	})
	return cs
}

// serve returns a client of a server that shows what a caller may see of a box.
func serve(t tb, b *toolbox.Box, caller string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	s := mcp.NewServer(me, nil)
	t.Cleanup(b.Serve(s, caller))
	return connect(t, s, o)
}

func toolNames(t tb, s *mcp.ClientSession) []string {
	t.Helper()
	var names []string
	for tool, err := range s.Tools(ctx, nil) {
		must(t, err)
		names = append(names, tool.Name)
	}
	return names
}

func TestAnMCPClientUsesToolsResourcesAndPrompts(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	p := provider(t, b, "venus")
	must(t, p.AddTool(plus(), func(_ context.Context, c *toolbox.Call) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{StructuredContent: map[string]int{"sum": 3}}, nil
	}))
	must(t, p.AddResource(&mcp.Resource{URI: "vault://a", Name: "a", MIMEType: "text/plain"}, toolbox.Text(func(context.Context, string) (string, error) { return "A", nil })))
	must(t, p.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "vault://t/{x}", Name: "t"}, toolbox.Text(func(_ context.Context, uri string) (string, error) { return uri, nil })))
	must(t, p.AddPrompt(&mcp.Prompt{Name: "p", Arguments: []*mcp.PromptArgument{{Name: "x", Required: true}}}, "do {{x}}"))
	s := serve(t, b, "", nil)

	r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "venus.plus", Arguments: map[string]int{"a": 1, "b": 2}})
	if err != nil || r.IsError || r.StructuredContent.(map[string]any)["sum"] != 3.0 {
		t.Fatalf("%+v, %v", r, err)
	}
	for uri, want := range map[string]string{"vault://a": "A", "vault://t/7": "vault://t/7"} {
		got, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if err != nil || got.Contents[0].Text != want {
			t.Fatalf("%s: %+v, %v", uri, got, err)
		}
	}
	prompt, err := s.GetPrompt(ctx, &mcp.GetPromptParams{Name: "venus.p", Arguments: map[string]string{"x": "it"}})
	if err != nil || prompt.Messages[0].Content.(*mcp.TextContent).Text != "do it" {
		t.Fatalf("%+v, %v", prompt, err)
	}

	var wire *jsonrpc.Error
	if _, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: "vault://none"}); !errors.As(err, &wire) || !strings.Contains(err.Error(), "not found") {
		t.Fatalf("a missing resource gives %v", err)
	}
	if _, err := s.GetPrompt(ctx, &mcp.GetPromptParams{Name: "venus.p"}); !errors.As(err, &wire) || wire.Code != jsonrpc.CodeInvalidParams || !strings.Contains(string(wire.Data), "INVALID_ARGUMENTS") {
		t.Fatalf("a missing argument gives %v", err)
	}
}

// Req 5.4.
func TestAnMCPClientReadsAStructuredError(t *testing.T) {
	b := toolbox.New(toolbox.Options{})
	p := provider(t, b, "venus")
	must(t, p.AddTool(&mcp.Tool{Name: "fails"}, func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) { return nil, errors.New("no disk") }))
	must(t, p.AddTool(&mcp.Tool{Name: "tells"}, func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) {
		r := text("the disk is full")
		r.IsError = true
		return r, nil
	}))
	s := serve(t, b, "", nil)
	for name, want := range map[string]string{"venus.fails": "venus.fails failed: no disk", "venus.tells": "the disk is full"} {
		r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name})
		must(t, err)
		e := r.Meta[toolbox.MetaError].(map[string]any)
		if !r.IsError || r.StructuredContent != nil || textOf(t, r) != want || e["code"] != "TOOL_FAILED" || e["sourceAgent"] != "venus" || e["message"] != want {
			t.Fatalf("%s gives %+v", name, r)
		}
	}
}

func TestASessionSeesAddedAndRemovedTools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := toolbox.New(toolbox.Options{})
		p := provider(t, b, "venus")
		must(t, p.AddTool(&mcp.Tool{Name: "first"}, echo("first")))
		changed := make(chan struct{}, 10)
		s := serve(t, b, "", &mcp.ClientOptions{ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} }})
		must(t, p.AddTool(&mcp.Tool{Name: "second"}, echo("second")))
		<-changed
		if got := toolNames(t, s); !slices.Equal(got, []string{"venus.first", "venus.second"}) {
			t.Fatalf("the session sees %v", got)
		}
		p.Close()
		<-changed
		if got := toolNames(t, s); len(got) != 0 {
			t.Fatalf("the session still sees %v", got)
		}
		if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "venus.first"}); err == nil {
			t.Fatal("a removed tool can be called")
		}
	})
}

func TestASessionFollowsThePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, agent.Card{ID: "sun", Tier: agent.L0}, agent.Card{ID: "earth", Tier: agent.L1}, agent.Card{ID: "venus", Tier: agent.L2})
		b := toolbox.New(toolbox.Options{Policy: r})
		must(t, provider(t, b, "venus").AddTool(&mcp.Tool{Name: "x"}, echo("x")))
		earth, sun := serve(t, b, "earth", nil), serve(t, b, "sun", nil)
		if got := toolNames(t, earth); len(got) != 0 {
			t.Fatalf("earth sees %v", got)
		}
		if got := toolNames(t, sun); len(got) != 1 {
			t.Fatalf("sun sees %v", got)
		}
		must(t, r.SetTierConfig(router.TierConfig{Rules: []router.TierRule{{SourceTier: agent.L1, AllowedTargetTiers: []agent.Tier{agent.L2}}}}))
		b.Refresh()
		if got := toolNames(t, earth); len(got) != 1 {
			t.Fatalf("earth sees %v after the change", got)
		}
	})
}

func TestProgressAndCancellationAreForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := toolbox.New(toolbox.Options{})
		p := provider(t, b, "venus")
		gone := make(chan struct{})
		must(t, p.AddTool(&mcp.Tool{Name: "waits"}, func(ctx context.Context, c *toolbox.Call) (*mcp.CallToolResult, error) {
			c.Progress(toolbox.Progress{Done: 1, Total: 2, Message: "half"})
			<-ctx.Done()
			close(gone)
			return nil, ctx.Err()
		}))
		progress := make(chan *mcp.ProgressNotificationParams, 1)
		s := serve(t, b, "", &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) { progress <- req.Params }})
		calling, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			params := &mcp.CallToolParams{Name: "venus.waits"}
			params.SetProgressToken("t")
			_, err := s.CallTool(calling, params)
			if err == nil {
				t.Error("the canceled call succeeded")
			}
		}()
		if got := <-progress; got.Progress != 1 || got.Total != 2 || got.Message != "half" {
			t.Fatalf("progress %+v", got)
		}
		cancel()
		<-gone
	})
}

// foreign is an MCP server whose connections can be broken.
type foreign struct {
	server *mcp.Server
	resume chan struct{} // if not nil, a call waits for it after reporting progress

	mu       sync.Mutex
	refuse   error
	dials    int
	sessions []*mcp.ServerSession
}

func (f *foreign) dial(ctx context.Context) (mcp.Transport, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dials++
	if f.refuse != nil {
		return nil, f.refuse
	}
	here, there := mcp.NewInMemoryTransports()
	s, err := f.server.Connect(context.Background(), there, nil)
	if err != nil {
		return nil, err
	}
	f.sessions = append(f.sessions, s)
	return here, nil
}

// cut breaks every connection and refuses new ones with err, if it is not nil.
func (f *foreign) cut(t tb, err error) {
	f.mu.Lock()
	f.refuse = err
	all := f.sessions
	f.sessions = nil
	f.mu.Unlock()
	for _, s := range all {
		_ = s.Close() // it may be closed already
	}
}

func newForeign() *foreign {
	f := &foreign{server: mcp.NewServer(me, nil)}
	f.tool("echo")
	f.server.AddResource(&mcp.Resource{URI: "foreign://r", Name: "r"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "foreign://r", Text: "R"}}}, nil
	})
	f.server.AddPrompt(&mcp.Prompt{Name: "p"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "P"}}}}, nil
	})
	return f
}

func (f *foreign) tool(name string) {
	f.server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if token := req.Params.GetProgressToken(); token != nil {
			if err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 1}); err != nil {
				return nil, err
			}
			if f.resume != nil {
				<-f.resume
			}
		}
		return text(string(req.Params.Arguments)), nil
	})
}

func mount(t tb, b *toolbox.Box, name string, f *foreign) *toolbox.Mount {
	t.Helper()
	m, err := b.Mount(toolbox.MountOptions{Name: name, Dial: f.dial})
	must(t, err)
	t.Cleanup(func() {
		m.Close()
		f.cut(t, nil)
	})
	return m
}

func TestToolsOfAMountedServerHaveItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := toolbox.New(toolbox.Options{})
		f := newForeign()
		f.resume = make(chan struct{})
		m := mount(t, b, "files", f)
		synctest.Wait()
		if s := m.Status(); !s.Connected || s.Tools != 1 || s.Resources != 1 || s.Prompts != 1 || s.Skipped != 0 {
			t.Fatalf("status %+v", s)
		}
		r, err := b.Call(ctx, "", "files.echo", json.RawMessage(`{"x":1}`), func(p toolbox.Progress) {
			if p.Done != 1 {
				t.Errorf("progress %+v", p)
			}
			close(f.resume)
		})
		must(t, err)
		if got := textOf(t, r); got != `{"x":1}` {
			t.Fatalf("got %q", got)
		}
		if r, err := b.Read(ctx, "", "foreign://r"); err != nil || r.Contents[0].Text != "R" {
			t.Fatalf("%+v, %v", r, err)
		}
		if r, err := b.Render(ctx, "", "files.p", nil); err != nil || len(r.Messages) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		f.tool("later")
		time.Sleep(time.Second) // the SDK delays the notification of changes
		synctest.Wait()
		if got := b.Tools(""); len(got) != 2 || got[1].Name != "files.later" || got[1].SourceAgent != "files" {
			t.Fatalf("after a change there are %v", got)
		}
		m.Close()
		if n := len(b.Tools("")) + len(b.Resources("")) + len(b.Prompts("")); n != 0 {
			t.Fatalf("%d entries are left", n)
		}
	})
}

func TestALostServerIsRemovedAndMountedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := toolbox.New(toolbox.Options{})
		dying, healthy := newForeign(), newForeign()
		healthy.server.RemoveResources("foreign://r") // the other server has it
		m := mount(t, b, "dying", dying)
		synctest.Wait()
		mount(t, b, "healthy", healthy)
		synctest.Wait()

		dying.cut(t, errors.New("no such host"))
		synctest.Wait()
		_, err := b.Call(ctx, "", "dying.echo", nil, nil)
		if e := wantCode(t, err, toolbox.CodeUnavailable); e.SourceAgent != "dying" {
			t.Fatalf("%+v", e)
		}
		if _, err := b.Call(ctx, "", "healthy.echo", nil, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if s := m.Status(); s.Connected || s.Problem == nil || s.Problem.Error() != "no such host" {
			t.Fatalf("status %+v", s)
		}
		dying.mu.Lock()
		dials := dying.dials
		dying.refuse = nil
		dying.mu.Unlock()
		if dials < 5 || dials > 40 {
			t.Fatalf("dialed %d times in 10 minutes", dials)
		}
		time.Sleep(2 * toolbox.DefaultMaxRedial)
		if _, err := b.Call(ctx, "", "dying.echo", nil, nil); err != nil {
			t.Fatalf("the tool did not come back: %v", err)
		}
	})
}

// A call times out unless its server reports progress, also if the caller has no
// progress handler.
func TestACallWithoutProgressTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := toolbox.New(toolbox.Options{})
		f := newForeign()
		gone := make(chan struct{})
		object := json.RawMessage(`{"type":"object"}`)
		f.server.AddTool(&mcp.Tool{Name: "slow", InputSchema: object}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for i := range 5 {
				time.Sleep(toolbox.DefaultCallTimeout - time.Minute)
				must(t, req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(i + 1)}))
			}
			return text("done"), nil
		})
		f.server.AddTool(&mcp.Tool{Name: "hangs", InputSchema: object}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			<-ctx.Done()
			close(gone)
			return nil, ctx.Err()
		})
		m := mount(t, b, "far", f)
		synctest.Wait()
		if r, err := b.Call(ctx, "", "far.slow", nil, nil); err != nil || textOf(t, r) != "done" {
			t.Errorf("%+v %v", r, err)
		}
		began := time.Now()
		_, err := b.Call(ctx, "", "far.hangs", nil, nil)
		if e := wantCode(t, err, toolbox.CodeTimeout); e.SourceAgent != "far" || time.Since(began) != toolbox.DefaultCallTimeout {
			t.Errorf("%+v after %s", e, time.Since(began))
		}
		<-gone // the server was informed of the cancellation
		synctest.Wait()
		if !m.Status().Connected {
			t.Error("a server that still answers was disconnected")
		}
	})
}

// Close of a mount waits for no call, since its server may not answer.
func TestClosingAMountEndsItsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := toolbox.New(toolbox.Options{})
		f := newForeign()
		f.server.AddTool(&mcp.Tool{Name: "hangs", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		m := mount(t, b, "far", f)
		synctest.Wait()
		ended := make(chan error, 1)
		go func() {
			_, err := b.Call(ctx, "", "far.hangs", nil, nil)
			ended <- err
		}()
		synctest.Wait() // the call runs
		began := time.Now()
		m.Close()
		if e := wantCode(t, <-ended, toolbox.CodeClosed); e.SourceAgent != "far" || time.Since(began) != 0 {
			t.Errorf("%+v after %s", e, time.Since(began))
		}
	})
}

func TestInvalidEntriesOfAMountedServerAreSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := toolbox.New(toolbox.Options{})
		f := newForeign()
		f.server.AddTool(&mcp.Tool{Name: "bad", InputSchema: json.RawMessage(`{"type":"object","$ref":"http://127.0.0.1:1/x"}`)}, nil)
		m := mount(t, b, "one", f)
		synctest.Wait()
		if s := m.Status(); s.Tools != 1 || s.Skipped != 1 {
			t.Fatalf("status %+v", s)
		}
		two := mount(t, b, "two", newForeign()) // its resource is the same as that of one
		synctest.Wait()
		if s := two.Status(); s.Tools != 1 || s.Resources != 0 || s.Skipped != 1 {
			t.Fatalf("status %+v", s)
		}
	})
}

func TestAgentsShareToolsThroughEnvelopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, agent.Card{ID: "sun", Tier: agent.L0}, agent.Card{ID: "venus", Tier: agent.L2}, agent.Card{ID: "earth", Tier: agent.L1})
		f := newForeign()
		f.server.AddTool(&mcp.Tool{Name: "huge", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return text(strings.Repeat("x", 2<<20)), nil
		})
		l := toolbox.Listen(r, "venus", func(peer string) *mcp.Server {
			if peer != "sun" {
				return nil
			}
			return f.server
		})
		b := toolbox.New(toolbox.Options{})
		m, err := b.Mount(toolbox.MountOptions{Name: "venus", Dial: func(context.Context) (mcp.Transport, error) { return toolbox.Over(r, "sun", "venus"), nil }})
		must(t, err)
		synctest.Wait()
		got, err := b.Call(ctx, "", "venus.echo", json.RawMessage(`{"x":1}`), nil)
		must(t, err)
		if textOf(t, got) != `{"x":1}` {
			t.Fatalf("got %+v", got)
		}
		if _, err := b.Call(ctx, "", "venus.huge", nil, nil); err == nil || !strings.Contains(err.Error(), "cannot be sent") {
			t.Fatalf("a result that is too large gives %v", err)
		}
		if _, err := b.Call(ctx, "", "venus.echo", nil, nil); err != nil {
			t.Fatalf("after an oversized result the session is broken: %v", err)
		}
		if _, err := mcp.NewClient(me, nil).Connect(ctx, toolbox.Over(r, "earth", "venus"), nil); err == nil {
			t.Fatal("earth connected to venus, which it may not address")
		}
		if _, err := mcp.NewClient(me, nil).Connect(ctx, toolbox.Over(r, "venus", "venus"), nil); err == nil {
			t.Fatal("a refused peer connected")
		}
		l.Close()
		synctest.Wait()
		_, err = b.Call(ctx, "", "venus.echo", nil, nil)
		wantCode(t, err, toolbox.CodeUnavailable)
		m.Close()
	})
}

// FuzzFrames tests that no frame from an agent makes the listening one panic.
func FuzzFrames(f *testing.F) {
	f.Add([]byte(`{"mcpSession":"s","toServer":true,"message":{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}}`))
	f.Add([]byte(`{"mcpSession":"s","toServer":true,"closed":true}`))
	f.Add([]byte(`{"mcpSession":"s","toServer":true,"message":{"jsonrpc":"2.0","id":1,"result":{}}}`))
	f.Add([]byte(`{"mcpSession":"s","message":[]}`))
	r := newRouter(f, agent.Card{ID: "sun", Tier: agent.L0}, agent.Card{ID: "venus", Tier: agent.L2})
	l := toolbox.Listen(r, "venus", func(string) *mcp.Server { return newForeign().server })
	f.Cleanup(l.Close)
	f.Fuzz(func(t *testing.T, payload []byte) {
		e, err := envelope.New("sun", "venus", envelope.Request, json.RawMessage(payload))
		if err != nil {
			return // the frame cannot be sent
		}
		if _, err := r.SendWait(ctx, e); err != nil {
			t.Fatal(err)
		}
	})
}

// BenchmarkCallOverBareSDK compares the same call through an MCP session with and
// without a box. The ratio is the time without over the time with the box; 1 means no
// cost.
func BenchmarkCallOverBareSDK(b *testing.B) {
	type in struct {
		A int `json:"a"`
		B int `json:"b"`
	}
	type out struct {
		Sum int `json:"sum"`
	}
	bare := mcp.NewServer(me, nil)
	mcp.AddTool(bare, &mcp.Tool{Name: "plus"}, func(_ context.Context, _ *mcp.CallToolRequest, x in) (*mcp.CallToolResult, out, error) {
		return nil, out{x.A + x.B}, nil
	})
	box := toolbox.New(toolbox.Options{})
	must(b, toolbox.AddFunc(provider(b, box, "venus"), "plus", "adds", func(_ context.Context, _ *toolbox.Call, x in) (out, error) {
		return out{x.A + x.B}, nil
	}))
	sessions := []*mcp.ClientSession{connect(b, bare, nil), serve(b, box, "", nil)}
	names := []string{"plus", "venus.plus"}
	var took [2]time.Duration
	for b.Loop() {
		for i, s := range sessions {
			began := time.Now()
			for range 20 {
				if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: names[i], Arguments: in{1, 2}}); err != nil {
					b.Fatal(err)
				}
			}
			took[i] += time.Since(began)
		}
	}
	b.ReportMetric(float64(took[0])/float64(took[1]), "ratio")
	b.ReportMetric(float64(20*b.N)/took[1].Seconds(), "calls/s")
}

// restartable is an MCP server over HTTP that can be restarted. It then refuses its
// former sessions with an error.
type restartable struct {
	mu      sync.Mutex
	handler http.Handler
	known   map[string]bool // false: of before the last restart
	down    bool
	servers []*mcp.Server // each with sessions that are still open
}

func (f *restartable) close() {
	for _, s := range f.servers {
		for session := range s.Sessions() {
			_ = session.Close() // the client is closed already
		}
	}
}

func (f *restartable) restart() {
	server := mcp.NewServer(me, nil)
	server.AddTool(&mcp.Tool{Name: "echo", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text("here"), nil
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers = append(f.servers, server)
	f.handler, f.down = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil), false
	for id := range f.known {
		f.known[id] = false
	}
}

func (f *restartable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	handler, id := f.handler, r.Header.Get("Mcp-Session-Id")
	known, before := f.known[id]
	if !before {
		f.known[id], known = true, true
	}
	down := f.down
	f.mu.Unlock()
	switch {
	case down:
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	case id != "" && !known:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":"server-error","error":{"code":-32001,"message":"Session not found"}}`)) // a test reads it
		return
	}
	if r.Method == http.MethodGet {
		http.Error(w, "no streams", http.StatusMethodNotAllowed) // a client would notice its end
		return
	}
	handler.ServeHTTP(w, r)
}

// A restarted server over HTTP does not know the session any more, but no connection
// breaks. The mount starts another session.
func TestAMountStartsANewSessionAfterAServerRestart(t *testing.T) {
	f := &restartable{known: map[string]bool{}}
	f.restart()
	defer f.close()
	server := httptest.NewServer(f)
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	b := toolbox.New(toolbox.Options{})
	m, err := b.Mount(toolbox.MountOptions{Name: "far", MaxRedial: 10 * time.Millisecond, Dial: func(context.Context) (mcp.Transport, error) {
		return &mcp.StreamableClientTransport{Endpoint: server.URL, HTTPClient: client}, nil
	}})
	must(t, err)
	defer m.Close()
	<-m.Tried()
	call := func() error {
		_, err := b.Call(ctx, "", "far.echo", nil, nil)
		return err
	}
	must(t, call())
	for name, change := range map[string]func(){
		"restarted": f.restart,
		"away":      func() { f.mu.Lock(); defer f.mu.Unlock(); f.down = true },
	} {
		change()
		wantCode(t, call(), toolbox.CodeUnavailable)
		if name == "away" {
			f.restart()
		}
		wait.Eventually(t, name+": a call succeeds again", func() bool {
			err := call()
			if err != nil {
				wantCode(t, err, toolbox.CodeUnavailable)
			}
			return err == nil
		})
	}
}

// The schema of a relayed tool is used as the other box has it, which has compiled it: this one is not compiled again.
func TestARelayedSchemaIsNotCompiledAgain(t *testing.T) {
	s := mcp.NewServer(me, nil)
	s.AddTool(&mcp.Tool{Name: "venus.odd", InputSchema: json.RawMessage(`{"type":"object","properties":{"a":{"type":7}}}`)}, nil)
	for _, asIs := range []bool{true, false} {
		m, err := toolbox.New(toolbox.Options{}).Mount(toolbox.MountOptions{Name: "hub", AsIs: asIs, Dial: func(context.Context) (mcp.Transport, error) {
			here, there := mcp.NewInMemoryTransports()
			_, err := s.Connect(ctx, there, nil)
			return here, err
		}})
		must(t, err)
		<-m.Tried()
		if status := m.Status(); status.Tools != map[bool]int{true: 1}[asIs] {
			t.Errorf("as it is: %v: %+v", asIs, status)
		}
		m.Close()
	}
}

// A box that relays the tools of another one keeps their agents and errors (Req 5.4).
func TestARelayedToolKeepsItsAgentAndErrors(t *testing.T) {
	far := toolbox.New(toolbox.Options{})
	must(t, provider(t, far, "venus").AddTool(plus(), func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) { return nil, errors.New("no disk") }))
	near := toolbox.New(toolbox.Options{})
	m, err := near.Mount(toolbox.MountOptions{Name: "hub", AsIs: true, Dial: func(context.Context) (mcp.Transport, error) {
		s := mcp.NewServer(me, nil)
		far.Serve(s, "")
		here, there := mcp.NewInMemoryTransports()
		_, err := s.Connect(ctx, there, nil)
		return here, err
	}})
	must(t, err)
	defer m.Close()
	<-m.Tried()
	if list := near.Tools(""); len(list) != 1 || list[0].SourceAgent != "venus" {
		t.Fatalf("%+v", list)
	}
	for arguments, want := range map[string]toolbox.Code{`{"a":1,"b":2}`: toolbox.CodeFailed, `{}`: toolbox.CodeArguments} {
		_, err := near.Call(ctx, "", "venus.plus", json.RawMessage(arguments), nil)
		if e := wantCode(t, err, want); e.SourceAgent != "venus" {
			t.Errorf("%+v", e)
		}
	}
}
