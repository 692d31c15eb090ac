package peers_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/mcp/mounts"
	"github.com/parleyhub/parley/router"
)

// toolboxOf returns the tools of a hub with an agent "worker" that uses them.
func toolboxOf(t *testing.T, servers map[string]config.MCPServer, shared ...string) *mounts.Tools {
	t.Helper()
	n, err := parley.New(parley.Options{Router: router.Options{Sandbox: &router.SandboxConfig{Enforced: true}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	worker := agent.Card{ID: "worker", Name: "worker", Version: "1", Tier: agent.L3, Capabilities: []agent.Capability{}}
	if _, err := n.Join(worker, func(context.Context, *envelope.Envelope) {}); err != nil {
		t.Fatal(err)
	}
	tools := mounts.Open(mounts.Options{Node: n, Servers: servers, Shared: shared, Dir: t.TempDir()})
	t.Cleanup(tools.Close)
	return tools
}

// greeter serves an MCP server with one tool and returns its configuration.
func greeter(t *testing.T) config.MCPServer {
	t.Helper()
	s := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "hello"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hello"}}}, nil, nil
	})
	server := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	return config.MCPServer{URL: server.URL}
}

// While hubs are paired, agents use the tools that the other hub shares, with its name as prefix, and no others.
func TestSharedToolsAreUsedAtPairedHubs(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	one := greeter(t)
	there := toolboxOf(t, map[string]config.MCPServer{"greeter": one, "private": one}, "greeter")
	here := toolboxOf(t, nil)
	a := openParty(t, t.TempDir(), nil, peers.Options{NATS: connect(t, n), Tools: there})
	b := openParty(t, t.TempDir(), nil, peers.Options{NATS: connect(t, n), Tools: here})
	a.pair(t, "b", b)
	b.pair(t, "a", a)
	call := func(tool string) (string, error) {
		result, err := here.Box().Call(deadline(t), "worker", tool, nil, nil)
		if err != nil {
			return "", err
		}
		return result.Content[0].(*mcp.TextContent).Text, nil
	}
	wait.Eventually(t, "the shared tool is here", func() bool { got, err := call("a.greeter.hello"); return err == nil && got == "hello" })
	if got, err := call("a.private.hello"); err == nil {
		t.Errorf("a tool that is not shared answers %q", got)
	}

	list, err := identity.OpenAllowList(peers.AllowPath(b.dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := list.Remove(a.net.Key()); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the tool is gone", func() bool { _, err := call("a.greeter.hello"); return err != nil })
	b.pair(t, "a", a)
	wait.Eventually(t, "the tool is back", func() bool { _, err := call("a.greeter.hello"); return err == nil })
}
