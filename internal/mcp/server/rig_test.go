//lint:file-ignore SA1019 clients of the revisions up to 2025-11-25 still have logging

package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/bus"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	"github.com/parleyhub/parley/internal/testbed"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, testbed.Leaks()...)
}

// natsServer is a stock NATS server for projects.
type natsServer struct{ *testbed.Server }

func startServer(t testing.TB) *natsServer { return &natsServer{testbed.StartNATS(t)} }

func (n *natsServer) dial(ctx context.Context) (*bus.Bus, error) {
	return bus.Open(ctx, bus.Config{URL: bus.Secret(n.URL()), Logger: slog.New(slog.DiscardHandler)})
}

// configOf returns the configuration of a project with the channels, or else the default ones.
func configOf(namespace string, channels ...mcpconfig.Channel) *mcpconfig.Config {
	if len(channels) == 0 {
		channels = mcpconfig.DefaultChannels()
	}
	for i := range channels {
		if channels[i].MaxAge == "" {
			channels[i].MaxMessages, channels[i].MaxBytes, channels[i].MaxAge = 10000, 10<<20, "24h"
		}
	}
	return &mcpconfig.Config{Document: mcpconfig.Document{Namespace: namespace, Channels: channels}}
}

func planning() []mcpconfig.Channel {
	return []mcpconfig.Channel{
		{Name: "planning", Description: "Sprint planning and prioritization"},
		{Name: "implementation", Description: "Development work\ncoordination"},
		{Name: "review", Description: "Code review discussions"},
	}
}

func openProject(t testing.TB, cfg *mcpconfig.Config, dial func(context.Context) (*bus.Bus, error)) *mcpserver.Project {
	t.Helper()
	return openLogged(t, cfg, dial, slog.New(slog.DiscardHandler))
}

func openLogged(t testing.TB, cfg *mcpconfig.Config, dial func(context.Context) (*bus.Bus, error), log *slog.Logger) *mcpserver.Project {
	t.Helper()
	p, err := mcpserver.OpenProject(cfg, mcpserver.ProjectOptions{Version: "1.0.0-test", Dial: dial, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := p.Close(ctx); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	return p
}

// agent is a client of the SDK that is connected to a server over lines, as an agent's program is.
type agent struct {
	t       testing.TB
	session *mcp.ClientSession
	updated chan string // URIs of changed resources
	logged  chan *mcp.LoggingMessageParams
}

// join connects a client of the latest revision to a new server of the project.
func join(t testing.TB, p *mcpserver.Project) *agent { return joinAs(t, p, "") }

// subscriber connects a client of a revision in which a subscription is a request: it
// is effective when the answer arrives.
func subscriber(t testing.TB, p *mcpserver.Project) *agent { return joinAs(t, p, "2025-11-25") }

func joinAs(t testing.TB, p *mcpserver.Project, revision string) *agent {
	t.Helper()
	return joinWith(t, p, "test", revision)
}

// joinWith connects a client of a program.
func joinWith(t testing.TB, p *mcpserver.Project, program, revision string) *agent {
	t.Helper()
	a := &agent{t: t, updated: make(chan string, 100), logged: make(chan *mcp.LoggingMessageParams, 100)}
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := p.ServeLines(context.Background(), mcpserver.Caller{}, toServer, fromServer)
		fromServer.Close()
		served <- err
	}()
	client := mcp.NewClient(&mcp.Implementation{Name: program, Version: "1"}, &mcp.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { a.updated <- r.Params.URI },
		LoggingMessageHandler:  func(_ context.Context, r *mcp.LoggingMessageRequest) { a.logged <- r.Params },
	})
	var err error
	a.session, err = client.Connect(t.Context(), &mcp.IOTransport{Reader: toClient, Writer: fromClient}, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.session.Close() // the pipe may be closed already
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return a
}

// called is the result of a tool.
type called struct {
	text    string
	isError bool
	content map[string]any
	meta    mcp.Meta
}

func (a *agent) call(tool string, arguments map[string]any) called {
	a.t.Helper()
	c, err := a.try(a.t.Context(), tool, arguments)
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	return c
}

func (a *agent) try(ctx context.Context, tool string, arguments map[string]any) (called, error) {
	result, err := a.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		return called{}, err
	}
	c := called{isError: result.IsError, meta: result.Meta}
	if len(result.Content) != 1 {
		return c, fmt.Errorf("%d contents", len(result.Content))
	}
	c.text = result.Content[0].(*mcp.TextContent).Text
	c.content, _ = result.StructuredContent.(map[string]any)
	return c, nil
}

// must calls a tool, and fails the test if the call fails.
func (a *agent) must(tool string, arguments map[string]any) called {
	a.t.Helper()
	c := a.call(tool, arguments)
	if c.isError {
		a.t.Fatalf("%s: %s", tool, c.text)
	}
	return c
}

func (a *agent) named(handle string) *agent {
	a.t.Helper()
	a.must("set_handle", map[string]any{"handle": handle})
	return a
}

func (a *agent) send(channel, text string) {
	a.t.Helper()
	a.must("send_message", map[string]any{"channel": channel, "message": text})
}

func (a *agent) read(channel string) string {
	a.t.Helper()
	return a.must("read_messages", map[string]any{"channel": channel}).text
}

// wire is a client that writes arbitrary lines.
type wire struct {
	t      testing.TB
	in     *io.PipeWriter
	out    *bufio.Reader
	served chan error
}

func connect(t testing.TB, p *mcpserver.Project) *wire {
	t.Helper()
	return connectThrough(t, p, func(out io.Writer) io.Writer { return out })
}

// connectThrough is connect, with the server's output through a writer.
func connectThrough(t testing.TB, p *mcpserver.Project, through func(io.Writer) io.Writer) *wire {
	t.Helper()
	toServer, in := io.Pipe()
	out, fromServer := io.Pipe()
	w := &wire{t: t, in: in, out: bufio.NewReaderSize(out, 1<<20), served: make(chan error, 1)}
	go func() {
		err := p.ServeLines(context.Background(), mcpserver.Caller{}, toServer, through(fromServer))
		fromServer.Close()
		w.served <- err
	}()
	return w
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"wire","version":"1"}}}` +
	"\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// initialized completes the handshake.
func (w *wire) initialized() *wire {
	w.t.Helper()
	w.write(initialize)
	w.readResult("0")
	return w
}

func (w *wire) write(lines ...string) {
	w.t.Helper()
	if _, err := io.WriteString(w.in, strings.Join(lines, "\n")+"\n"); err != nil {
		w.t.Fatal(err)
	}
}

// answer is a JSON-RPC response.
type answer struct {
	ID     json.RawMessage
	Method string
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
	}
}

func (w *wire) readLine() []byte {
	w.t.Helper()
	line, err := w.out.ReadBytes('\n')
	if err != nil {
		w.t.Fatalf("%v after %.200q", err, line)
	}
	return bytes.TrimSpace(line)
}

func (w *wire) readAnswer() answer {
	w.t.Helper()
	line := w.readLine()
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		w.t.Fatalf("%v in %.200q", err, line)
	}
	return a
}

// readResult reads the answer with the id and expects a result.
func (w *wire) readResult(id string) json.RawMessage {
	w.t.Helper()
	a := w.readAnswer()
	if string(a.ID) != id || a.Result == nil {
		w.t.Fatalf("want a result for %s, got %+v %+v", id, a, a.Error)
	}
	return a.Result
}

// end closes the input and returns the rest of the output.
func (w *wire) end() string {
	w.t.Helper()
	w.in.Close()
	rest, err := io.ReadAll(w.out)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := <-w.served; err != nil {
		w.t.Error(err)
	}
	return string(rest)
}

func callLine(id int, tool, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, arguments)
}
