package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	wirecalls "github.com/parleyhub/parley/internal/mcp/wire"
	"github.com/parleyhub/parley/toolbox"
)

// program is an MCP server on the SDK whose tools answer with the arguments as their text. One that reports progress goes on when it gets
// a signal: the last progress of a call may come after its answer.
func program(started chan struct{}) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "program", Version: "1"}, nil)
	object := map[string]any{"type": "object"}
	s.AddTool(&mcp.Tool{Name: "echo", InputSchema: object}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if token := r.Params.GetProgressToken(); token != nil && strings.Contains(string(r.Params.Arguments), "progress") {
			_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 1, Total: 2, Message: "half"}) // the test waits for it
			<-started
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(r.Params.Arguments)}}, StructuredContent: r.Params.Arguments}, nil
	})
	s.AddTool(&mcp.Tool{Name: "fail", InputSchema: object}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "no disk"}}}, nil
	})
	s.AddTool(&mcp.Tool{Name: "picture", InputSchema: object}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{Data: []byte{1}, MIMEType: "image/png"}}}, nil
	})
	s.AddTool(&mcp.Tool{Name: "wait", InputSchema: object}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		started <- struct{}{}
		<-ctx.Done()
		started <- struct{}{} // it was canceled here, too
		return nil, ctx.Err()
	})
	return s
}

// way is how two servers and a program are connected: as they are, or as the SDK does it.
type way struct {
	revision string
	over     func(io.ReadWriteCloser) mcp.Transport
	extra    string // in each call, that the server leaves it to the SDK
}

var (
	asItIs = way{"2025-11-25", func(c io.ReadWriteCloser) mcp.Transport { return wirecalls.NewCalls(mcpserver.ClientLines(c)) }, ""}
	bySDK  = way{"", func(c io.ReadWriteCloser) mcp.Transport { return &mcp.IOTransport{Reader: c, Writer: c} }, `,"requestState":""`}
)

// chain connects a client to the MCP process of an agent, that to a hub, and the hub to a program.
func (v way) chain(t testing.TB, p *mcp.Server) net.Conn {
	t.Helper()
	hub := toolbox.New(toolbox.Options{})
	v.mount(t, hub, toolbox.MountOptions{Name: "tool"}, func(c net.Conn) {
		s, err := p.Connect(context.Background(), &mcp.IOTransport{Reader: c, Writer: c}, nil)
		if err == nil {
			_ = s.Wait() // it ends with the pipe
		}
	})
	process := toolbox.New(toolbox.Options{})
	v.mount(t, process, toolbox.MountOptions{Name: "hub", AsIs: true, Revision: v.revision}, func(c net.Conn) { serveBox(hub, c) })
	client, served := net.Pipe()
	t.Cleanup(func() { client.Close() })
	go serveBox(process, served) // ends with the client
	return client
}

func serveBox(box *toolbox.Box, c net.Conn) {
	service := mcpserver.NewService(mcpserver.Options{Groups: []mcpserver.Group{mcpserver.NewToolbox(box, nil)}})
	defer service.Stop()
	_ = service.ServeLines(context.Background(), mcpserver.Caller{}, c, c) // the client sees what is missing
}

func (v way) mount(t testing.TB, box *toolbox.Box, o toolbox.MountOptions, serve func(net.Conn)) {
	t.Helper()
	o.Dial = func(context.Context) (mcp.Transport, error) {
		client, served := net.Pipe()
		go serve(served)
		return v.over(client), nil
	}
	m, err := box.Mount(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	<-m.Tried()
	if s := m.Status(); !s.Connected {
		t.Fatal(s.Problem)
	}
}

// lineClient calls tools of a server over lines.
type lineClient struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
	v    way
}

func newLineClient(t testing.TB, v way, p *mcp.Server) *lineClient {
	t.Helper()
	c := &lineClient{t, v.chain(t, p), nil, v}
	c.in = bufio.NewReader(c.conn)
	c.write(`{"jsonrpc":"2.0","id":"begin","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	c.read()
	c.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

func (c *lineClient) write(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.conn, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *lineClient) read() string {
	c.t.Helper()
	line, err := c.in.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (c *lineClient) begin(id int, tool, arguments, meta string) {
	c.t.Helper()
	c.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"tool.%s","arguments":%s,"_meta":%s%s}}`, id, tool, arguments, meta, c.v.extra))
}

func (c *lineClient) call(id int, tool, arguments string) string {
	c.t.Helper()
	c.begin(id, tool, arguments, `{}`)
	return c.read()
}

func TestSharedToolsAreForwardedAsText(t *testing.T) {
	seen := make(chan struct{})
	c := newLineClient(t, asItIs, program(seen))
	const exact = `{"n":12345678901234567890}` // not rounded on its way
	if got := c.call(1, "echo", exact); strings.Count(got, `12345678901234567890`) != 2 || !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":1,"result":`) {
		t.Error(got)
	}
	if got := c.call(2, "fail", `{}`); !strings.Contains(got, "no disk") || !strings.Contains(got, `"isError":true`) || !strings.Contains(got, toolbox.MetaError) {
		t.Error(got)
	}
	if got := c.call(3, "picture", `{}`); !strings.Contains(got, `"mimeType":"image/png"`) {
		t.Error(got)
	}
	if got := c.call(4, "missing", `{}`); !strings.Contains(got, `"code":-32602`) {
		t.Error(got)
	}
	c.begin(5, "echo", `{"progress":1}`, `{"progressToken":"mine"}`)
	if got := c.read(); !strings.Contains(got, "notifications/progress") || !strings.Contains(got, `"progressToken":"mine"`) || !strings.Contains(got, "half") {
		t.Error(got)
	}
	seen <- struct{}{}
	if got := c.read(); !strings.Contains(got, `"id":5`) {
		t.Error(got)
	}
	c.write(`[{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"tool.echo"}},{"jsonrpc":"2.0","id":7,"method":"ping"}]`)
	if got := c.read(); !strings.HasPrefix(got, "[") || !strings.Contains(got, `"id":6`) || !strings.Contains(got, `"id":7`) {
		t.Error(got)
	}
}

func TestForwardedCallsAnswerAsTheSDKDoes(t *testing.T) {
	ours, sdk := newLineClient(t, asItIs, program(nil)), newLineClient(t, bySDK, program(nil))
	for i, call := range [][2]string{{"echo", `{"a":[1,"ä\n"],"b":null}`}, {"echo", `{}`}, {"fail", `{}`}, {"picture", `{}`}} {
		got, want := answered(t, ours.call(i, call[0], call[1])), answered(t, sdk.call(i, call[0], call[1]))
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", call, got, want)
		}
	}
}

// answered returns an answer in an order of its own.
func answered(t *testing.T, line string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(line), &v); err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAForwardedCallIsCanceledAtTheProgram(t *testing.T) {
	started := make(chan struct{})
	c := newLineClient(t, asItIs, program(started))
	c.begin(1, "wait", `{}`, `{}`)
	<-started
	c.write(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if got := c.read(); !strings.Contains(got, "was canceled") {
		t.Error(got)
	}
	<-started
	c.begin(2, "wait", `{}`, `{}`)
	<-started
	c.conn.Close()
	<-started // the end of the client cancels it, too
}

// BenchmarkSharedCall calls a program's tool through an agent's MCP process and the hub, all in this process, and as the SDK alone would
// do that, in turns. It reports the median of the turns' ratios.
func BenchmarkSharedCall(b *testing.B) {
	ours, sdk := newLineClient(b, asItIs, program(nil)), newLineClient(b, bySDK, program(nil))
	var ratios []float64
	id := 0
	turn := func(c *lineClient) time.Duration {
		start := time.Now()
		for range 20 {
			id++
			c.call(id, "echo", `{"text":"hello"}`)
		}
		return time.Since(start)
	}
	for b.Loop() {
		slow := turn(sdk)
		ratios = append(ratios, float64(slow)/float64(turn(ours)))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "sdk/ours")
}
