//go:build unix

package daemon_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	hubcards "github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/mcp/mounts"
	"github.com/parleyhub/parley/telemetry/audit"
	"github.com/parleyhub/parley/toolbox"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

const toolsYAML = `version: 1
bus: {url: %q}
http: {port: 0, token: sixteen-chars-or-more}
peers: {enabled: true, tools: [%s]}
mcpServers: {%s}
agents:
  claude-code: {disabled: true}
  gemini: {disabled: true}
  codex: {disabled: true}
  vibe: {disabled: true}
  plain: {driver: exec, command: printenv, args: [PARLEY_TASK_TOKEN]}
  noble: {driver: exec, command: printenv, args: [PARLEY_TASK_TOKEN], tier: 1}
  caged: {driver: exec, command: printenv, args: [PARLEY_TASK_TOKEN], sandbox: box}
`

// greeter returns an MCP server with one tool, greet.
func greeter(name string) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: name, Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "greet", Description: "Greet"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hello from " + name}}}, nil, nil
	})
	return s
}

// greeterAt serves a greeter over HTTP and returns its URL.
func greeterAt(t *testing.T, name string) (at string) {
	t.Helper()
	s := greeter(name)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		for session := range s.Sessions() {
			_ = session.Close() // the hub may have stopped
		}
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// program connects an agent of the library, with a tool, to a hub.
func program(t *testing.T, hubURL, id string) {
	t.Helper()
	u, err := url.Parse(hubURL)
	if err != nil {
		t.Fatal(err)
	}
	at, err := hubcards.Endpoint(hubURL)
	if err != nil {
		t.Fatal(err)
	}
	node, err := parley.New(parley.Options{Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{
		agent.TransportWebSocket: &websocket.Dialer{Token: websocket.TokenFor(u.Host, "sixteen-chars-or-more")},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	card := agent.Card{ID: id, Name: id, Version: "1", Tier: agent.L3, Protocols: []string{"mcp/2025-11-25"}, Capabilities: []agent.Capability{}}
	if _, err := node.Join(card, func(context.Context, *envelope.Envelope) {}); err != nil {
		t.Fatal(err)
	}
	s := greeter(id)
	listening := toolbox.Listen(node.Router(), id, func(string) *mcp.Server { return s })
	t.Cleanup(listening.Close)
	if _, err := node.Connect(t.Context(), id, mounts.CardID, at); err != nil {
		t.Fatal(err)
	}
}

// tokenOf returns the task token of an agent, which the agent prints.
func tokenOf(t *testing.T, socket, id string) string {
	t.Helper()
	c, err := client.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	task, err := c.Send(t.Context(), dialect.SendParams{Message: dialect.Message{
		Kind: dialect.KindMessage, MessageID: "m-" + id, Role: dialect.RoleUser, Parts: []dialect.Part{dialect.TextPart("x")},
		Metadata: map[string]any{hub.MetaTargetAgent: id},
	}})
	if err != nil || task.Status.State != dialect.StateCompleted {
		t.Fatalf("%s: %+v %v", id, task, err)
	}
	return strings.TrimSpace(*task.Status.Message.Parts[0].Text)
}

// attached opens an MCP connection on a hub's socket.
func attached(t *testing.T, socket, token string) *mcp.ClientSession {
	t.Helper()
	conn, err := client.AttachMCP(t.Context(), socket, token)
	if err != nil {
		t.Fatal(err)
	}
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.IOTransport{Reader: conn, Writer: conn}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // the hub may have stopped
	return s
}

func sharedNames(t *testing.T, s *mcp.ClientSession) (names []string) {
	t.Helper()
	for tool, err := range s.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(tool.Name, ".") {
			names = append(names, tool.Name)
		}
	}
	return names
}

// Agents of a paired hub use a hub's shared tools, with the hub's name as prefix, as far as tiers and sandboxes allow.
// Both audit logs name the other hub. Tools that are not shared, and those of third hubs, are not listed.
func TestToolsOfAnotherHubAreUsed(t *testing.T) {
	t.Parallel()
	open, closed, near := greeterAt(t, "open"), greeterAt(t, "closed"), greeterAt(t, "near")
	dirs, infos, own := twoHubs(t, func(natsURL string, i int) string {
		if i == 0 {
			return fmt.Sprintf(toolsYAML, natsURL, "", fmt.Sprintf("near: {url: %q}", near))
		}
		return fmt.Sprintf(toolsYAML, natsURL, "open, mars, there.near", fmt.Sprintf("open: {url: %q}, closed: {url: %q}", open, closed))
	}, "")
	program(t, infos[1].HTTP, "mars")
	program(t, infos[1].HTTP, "venus")
	user := attached(t, infos[0].Socket, "")
	want := []string{"near.greet", "there.mars.greet", "there.open.greet"}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(90 * time.Second); !slices.Equal(sharedNames(t, user), want); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the user sees %s, want %s", sharedNames(t, user), want)
		}
	}
	for _, c := range []struct {
		id, tool string
		may      bool
	}{
		{"plain", "there.mars.greet", true}, {"plain", "there.open.greet", true},
		{"noble", "there.mars.greet", false}, {"noble", "there.open.greet", false}, // L1 may not address L2 or L3
		{"caged", "there.mars.greet", false}, {"caged", "there.open.greet", false},
	} {
		s := attached(t, infos[0].Socket, tokenOf(t, infos[0].Socket, c.id))
		if got := slices.Contains(sharedNames(t, s), c.tool); got != c.may {
			t.Errorf("%s sees %s: %v", c.id, c.tool, got)
		}
		result, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: c.tool})
		if c.may != (err == nil && !result.IsError) {
			t.Errorf("%s calls %s: %+v %v", c.id, c.tool, result, err)
		}
		if err == nil && !strings.Contains(result.Content[0].(*mcp.TextContent).Text, "hello from ") {
			t.Errorf("%+v", result)
		}
	}
	if names := sharedNames(t, attached(t, infos[1].Socket, "")); !slices.Equal(names, []string{"closed.greet", "mars.greet", "open.greet", "venus.greet"}) {
		t.Errorf("the other hub has %s", names)
	}
	audited := func(i int, sender, target string) bool {
		for rec, err := range audit.Read(daemon.AuditDir(dirs[i])) {
			if err != nil {
				t.Fatal(err)
			}
			if call := rec.Invocation; rec.Event.Sender == sender && rec.Event.Target == target && call != nil && len(call.Result) > 0 {
				return true
			}
		}
		return false
	}
	happens(t, "the log of the hub that asks names the one that is asked", func() bool { return audited(0, "plain", "mars@"+own[1].String()) })
	happens(t, "the log of the hub that is asked names the one that asks", func() bool { return audited(1, "~hub-l3@"+own[0].String(), "mars") })

	// The other hub is killed and restarted.
	other, err := os.FindProcess(infos[1].PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := start(t, "serve", dirs[1]); err != nil {
		t.Fatal(err)
	}
	for deadline := time.After(90 * time.Second); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		result, err := user.CallTool(ctx, &mcp.CallToolParams{Name: "there.open.greet"})
		cancel()
		if err == nil && !result.IsError {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the tool is not available again: %+v %v", result, err)
		}
	}

	// The tools of a removed peer are not listed any more.
	list, err := identity.OpenAllowList(peers.AllowPath(dirs[0]))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := list.Remove(own[1]); err != nil {
		t.Fatal(err)
	}
	for deadline := time.After(90 * time.Second); len(sharedNames(t, user)) != 1; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the tools of a removed hub remain: %s", sharedNames(t, user))
		}
	}
}
