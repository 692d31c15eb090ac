package server_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/wait"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	"github.com/parleyhub/parley/toolbox"
)

// resting is a project in the network with shared tools, whose idle sessions are suspended at once.
type resting struct {
	t       testing.TB
	box     *toolbox.Box
	handler *mcpserver.Handler
	url     string
}

func startResting(t testing.TB, suspendAfter time.Duration) *resting {
	t.Helper()
	return startRestingWith(t, mcpserver.HandlerOptions{SuspendAfter: suspendAfter})
}

func startRestingWith(t testing.TB, opts mcpserver.HandlerOptions) *resting {
	t.Helper()
	n := startServer(t)
	r := &resting{t: t, box: toolbox.New(toolbox.Options{})}
	opts.Identify = func(string) (mcpserver.Caller, error) { return mcpserver.Caller{Agent: "reviewer", Context: "c"}, nil }
	opts.Open = func(string) (*mcpserver.Project, error) {
		cfg := configOf("shop")
		cfg.ProjectPath, cfg.ProjectID = "/home/ann/shop", mcpconfig.ProjectID("/home/ann/shop")
		cfg.CrossComputer.Enabled, cfg.CrossComputer.RegistryBucket = true, "agent-registry"
		return mcpserver.OpenProject(cfg, mcpserver.ProjectOptions{Version: "1", Dial: n.dial, DialNetwork: n.dial, StateDir: t.TempDir(),
			IdleAgents: 30 * time.Minute, Groups: []mcpserver.Group{mcpserver.NewToolbox(r.box, nil)}, Logger: slog.New(slog.DiscardHandler)})
	}
	r.handler = mcpserver.NewHandler(opts)
	web := httptest.NewServer(r.handler)
	r.url = web.URL + mcpserver.Path
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := r.handler.Close(ctx); err != nil {
			t.Error(err)
		}
		web.Close()
	})
	return r
}

// carrying adds a header to all requests.
type carrying struct {
	http.Transport
	header, value string
}

func (c *carrying) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.header != "" {
		r.Header.Set(c.header, c.value)
	}
	return c.Transport.RoundTrip(r)
}

// join begins a session. lists gets what the client is notified of.
func (r *resting) join(token string) (a *agent, lists chan string) {
	r.t.Helper()
	a, lists = &agent{t: r.t, updated: make(chan string, 100)}, make(chan string, 100)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ResourceUpdatedHandler:     func(_ context.Context, u *mcp.ResourceUpdatedNotificationRequest) { a.updated <- u.Params.URI },
		ToolListChangedHandler:     func(context.Context, *mcp.ToolListChangedRequest) { lists <- "tools" },
		ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { lists <- "resources" },
		PromptListChangedHandler:   func(context.Context, *mcp.PromptListChangedRequest) { lists <- "prompts" },
	})
	transport := &carrying{}
	if token != "" {
		transport.header, transport.value = mcpserver.TokenHeader, token
	}
	var err error
	a.session, err = client.Connect(r.t.Context(), &mcp.StreamableClientTransport{Endpoint: r.url, HTTPClient: &http.Client{Transport: transport}},
		&mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		a.session.Close() // the test may have closed it
		transport.CloseIdleConnections()
	})
	return a, lists
}

// awaitServers waits until so many sessions are not suspended.
func (r *resting) awaitServers(n int) {
	r.t.Helper()
	wait.Eventually(r.t, "sessions are suspended", func() bool { return mcpserver.ServersOf(r.handler) == n })
}

func TestASuspendedSessionKeepsItsAgent(t *testing.T) {
	r := startResting(t, time.Millisecond)
	a, _ := r.join("")
	b, _ := r.join("")
	a.named("ann")
	_, guid := a.registered(asWorker)
	_, boss := b.registered(asDispatcher)
	r.awaitServers(0)
	if got := a.must("get_my_handle", nil).content["handle"]; got != "ann" {
		t.Errorf("the handle is %v", got)
	}
	r.awaitServers(0)
	b.must("send_direct_message", map[string]any{"recipientGuid": guid, "message": "hello"})
	r.awaitServers(0)
	if got := a.must("list_channels", nil).text; !strings.Contains(got, "you have 1 unread message") {
		t.Errorf("there is no notice of mail: %s", got)
	}
	r.awaitServers(0)
	mail := a.must("read_direct_messages", nil)
	if !strings.Contains(mail.text, "hello") || !strings.Contains(mail.text, boss) {
		t.Error(mail.text)
	}
	r.awaitServers(0)
	a.must("set_handle", map[string]any{"handle": "anna"})
	wait.Eventually(t, "the new handle is published", func() bool {
		return strings.Contains(b.must("get_agent_info", map[string]any{"guid": guid}).text, "handle: anna")
	})
	r.awaitServers(0)
	if err := a.session.Close(); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "its agent is gone", func() bool {
		return b.must("get_agent_info", map[string]any{"guid": guid}).content["liveness"] == "offline"
	})
}

func TestASuspendedServerIsNotKeptInMemory(t *testing.T) {
	r := startResting(t, time.Millisecond)
	subscriber, _ := r.join("") // so that its server is there to be seen
	uri := &mcp.SubscribeParams{URI: "parley://channels/roadmap"}
	if err := subscriber.session.Subscribe(t.Context(), uri); err != nil {
		t.Fatal(err)
	}
	subscriber.named("ann").registered(asWorker)
	r.awaitServers(1)
	servers := mcpserver.WeakServersOf(r.handler)
	if err := subscriber.session.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: uri.URI}); err != nil {
		t.Fatal(err)
	}
	r.awaitServers(0)
	for _, s := range servers {
		wait.Eventually(t, "the server is collected", func() bool {
			runtime.GC()
			return s.Value() == nil
		})
	}
}

func TestASuspendedSessionIsNotifiedOfSharedTools(t *testing.T) {
	r := startResting(t, time.Millisecond)
	a, lists := r.join("")
	r.awaitServers(0)
	venus, err := r.box.Provider("venus")
	if err != nil {
		t.Fatal(err)
	}
	if err := venus.AddTool(&mcp.Tool{Name: "lint", Description: "Checks.", InputSchema: map[string]any{"type": "object"}, OutputSchema: map[string]any{"type": "object"}},
		func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) { return nil, errors.New("no") }); err != nil {
		t.Fatal(err)
	}
	if got := <-lists; got != "tools" {
		t.Errorf("notified of %s", got)
	}
	if mcpserver.ServersOf(r.handler) != 0 {
		t.Error("the session was restored for that")
	}
	if names := toolNames(t, a); !slices.Contains(names, "venus.lint") {
		t.Errorf("%v", names)
	}
	venus.RemoveTool("lint") // while the SDK has the session
	if got := <-lists; got != "tools" {
		t.Errorf("notified of %s", got)
	}
	r.awaitServers(0)
	if err := venus.AddPrompt(&mcp.Prompt{Name: "review", Description: "Asks for a review."}, "Review."); err != nil {
		t.Fatal(err)
	}
	if got := <-lists; got != "prompts" {
		t.Errorf("notified of %s", got)
	}
	venus.Close()
	if got := <-lists; got != "prompts" {
		t.Errorf("notified of %s", got)
	}
}

// What a server does besides answering it could not do while it is suspended.
func TestSessionsThatAreNotSuspended(t *testing.T) {
	r := startResting(t, time.Millisecond)
	subscriber, _ := r.join("")
	if err := subscriber.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "parley://channels/roadmap"}); err != nil {
		t.Fatal(err)
	}
	r.join("token")
	writer, _ := r.join("")
	writer.named("ann")
	r.awaitServers(2)
	for range 3 {
		writer.send("roadmap", "news")
		if uri := <-subscriber.updated; uri != "parley://channels/roadmap" {
			t.Error(uri)
		}
		r.awaitServers(2)
	}
	if err := subscriber.session.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: "parley://channels/roadmap"}); err != nil {
		t.Fatal(err)
	}
	r.awaitServers(1)
}

// BenchmarkSuspendedSession measures a call of a session, with the processor time of client and server.
func BenchmarkSuspendedSession(b *testing.B) {
	for name, after := range map[string]time.Duration{"connected": time.Hour, "suspended": time.Millisecond} {
		b.Run(name, func(b *testing.B) {
			r := startResting(b, after)
			a, _ := r.join("")
			for b.Loop() {
				if after < time.Hour {
					b.StopTimer()
					r.awaitServers(0)
					b.StartTimer()
				}
				a.must("list_channels", nil)
			}
		})
	}
}
