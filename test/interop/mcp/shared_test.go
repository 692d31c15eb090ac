//go:build interop && unix

package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	hubcards "github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/mcp/mounts"
	"github.com/parleyhub/parley/test/interop/rig"
	"github.com/parleyhub/parley/toolbox"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

const everything = "@modelcontextprotocol/server-everything"

// gathering is a hub with mounted tools: of mars and venus, two agents of another
// process, and of the foreign server "everything" over stdio (every) and over HTTP (web).
// Its own agents return the tools that they see: plain has tier L3, noble has L1, and
// caged is in a sandbox that only web lists.
type gathering struct {
	t       *testing.T
	home    rig.Home
	address string
	project string
	main    string // of the foreign server
	port    int    // of web

	mu  sync.Mutex
	web *exec.Cmd

	canceled atomic.Int32 // calls of venus.slow
}

func gather(t *testing.T) *gathering {
	t.Helper()
	g := &gathering{t: t, main: filepath.Join(rig.Modules(t, everything), filepath.FromSlash(everything), "dist", "index.js")}
	scripts := rig.Scripts(t, []string{"seen.mjs", "sdk2.mjs"}, "@modelcontextprotocol/client")
	g.home = programs.NewHome(t)
	g.project = g.home.Project(t, "a", "")
	g.port = freePort(t)
	g.startWeb()
	t.Cleanup(g.stopWeb)
	node := rig.Node(t.Context(), t).Path
	seen := func(more string) string {
		return fmt.Sprintf("{driver: exec, command: %q, args: [%q], env: {set: {MCP_SERVER: %q, MCP_REVISION: '2025-11-25', HOME: %q, PARLEY_DATA_DIR: %q, PARLEY_SOCKET: %q}}, %s}",
			node, filepath.Join(scripts, "seen.mjs"), programs.Path("nats-mcp-server"), g.home.Dir, filepath.Join(g.home.Dir, "hub"), filepath.Join(g.home.Dir, "hub.sock"), more)
	}
	config := fmt.Sprintf(`http: {port: 0}
mcpServers:
  every: {command: sh, args: [-c, 'echo $$ > %q; exec %q %q stdio']}
  web: {url: 'http://127.0.0.1:%d/mcp', agents: [plain, caged]}
agents:
  plain: %s
  noble: %s
  caged: %s
`, g.pidFile(), node, g.main, g.port, seen("tier: 3"), seen("tier: 1"), seen("tier: 3, sandbox: box"))
	data := filepath.Join(g.home.Dir, "hub")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	g.address = startHub(t, g.home)
	g.joinPlanets()
	g.await(4)
	return g
}

func (g *gathering) pidFile() string { return filepath.Join(g.home.Dir, "every.pid") }

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// startWeb starts the foreign server over HTTP and does not wait until it listens.
func (g *gathering) startWeb() {
	g.mu.Lock()
	defer g.mu.Unlock()
	cmd := rig.Node(context.Background(), g.t, g.main, "streamableHttp")
	cmd.Env = append(os.Environ(), "PORT="+strconv.Itoa(g.port))
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.web = cmd
}

func (g *gathering) stopWeb() {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.web.Process.Kill() // it may have exited
	_ = g.web.Wait()         // reports that it was killed
}

type greeting struct {
	Name string `json:"name"`
}

type said struct {
	Text string `json:"text"`
}

func addTool[In any](s *mcp.Server, name, description string, do func(ctx context.Context, req *mcp.CallToolRequest, in In) (string, error)) {
	mcp.AddTool(s, &mcp.Tool{Name: name, Description: description}, func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, said, error) {
		text, err := do(ctx, req, in)
		return nil, said{text}, err
	})
}

// joinPlanets starts the agents mars and venus, whose tools the hub's agents may use.
func (g *gathering) joinPlanets() {
	t := g.t
	t.Helper()
	node, err := parley.New(parley.Options{Channels: channel.Options{
		Dialers: map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	at, err := hubcards.Endpoint(g.address)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"mars", "venus"} {
		card := agent.Card{ID: id, Name: id, Version: "1", Tier: agent.L2, Protocols: []string{"mcp/2025-11-25"}, Capabilities: []agent.Capability{}}
		if _, err := node.Join(card, func(context.Context, *envelope.Envelope) {}); err != nil {
			t.Fatal(err)
		}
		server := mcp.NewServer(&mcp.Implementation{Name: id, Version: "1"}, nil)
		addTool(server, "greet", "Greet somebody", func(_ context.Context, _ *mcp.CallToolRequest, in greeting) (string, error) {
			return "hello " + in.Name + " from " + id, nil
		})
		if id == "mars" {
			g.changing(server)
		} else {
			g.waiting(server)
		}
		listening := toolbox.Listen(node.Router(), id, func(string) *mcp.Server { return server })
		t.Cleanup(listening.Close)
		if _, err := node.Connect(t.Context(), id, mounts.CardID, at); err != nil {
			t.Fatal(err)
		}
	}
}

// changing adds tools that add and remove others, and that kill the server.
func (g *gathering) changing(server *mcp.Server) {
	addTool(server, "grow", "Offer another tool", func(_ context.Context, _ *mcp.CallToolRequest, in greeting) (string, error) {
		addTool(server, in.Name, "Just grown", func(context.Context, *mcp.CallToolRequest, struct{}) (string, error) { return "I am new", nil })
		return "grown", nil
	})
	addTool(server, "shrink", "Take a tool away", func(_ context.Context, _ *mcp.CallToolRequest, in greeting) (string, error) {
		server.RemoveTools(in.Name)
		return "gone", nil
	})
	addTool(server, "kill", "Kill the foreign server", func(ctx context.Context, _ *mcp.CallToolRequest, in greeting) (string, error) {
		if in.Name == "web" {
			g.stopWeb()
			g.startWeb()
			return "killed", nil
		}
		text, err := os.ReadFile(g.pidFile())
		if err != nil {
			return "", err
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return "", err
		}
		return "killed", syscall.Kill(pid, syscall.SIGKILL)
	})
}

// waiting adds tools that report what happens to a call.
func (g *gathering) waiting(server *mcp.Server) {
	addTool(server, "slow", "Tell the progress until somebody cancels", func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (string, error) {
		for i := 1; ; i++ {
			if token := req.Params.GetProgressToken(); token != nil {
				// The notification fails if the caller has disconnected.
				_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(i), Message: "step " + strconv.Itoa(i)})
			}
			select {
			case <-ctx.Done():
				g.canceled.Add(1)
				return "", ctx.Err()
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	addTool(server, "canceled", "How many calls of slow were canceled", func(context.Context, *mcp.CallToolRequest, struct{}) (string, error) {
		return strconv.Itoa(int(g.canceled.Load())), nil
	})
}

// await waits until the hub has connected that many MCP servers, since it does not wait
// for them when it starts. Open sessions are notified of new tools; the inspector's
// commands do not subscribe to that.
func (g *gathering) await(servers int) {
	g.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		out, err := g.parley("status", "--format", "json")
		var hub dialect.Status
		if err == nil {
			err = json.Unmarshal([]byte(out), &hub)
		}
		if err == nil && len(hub.MCPServers) == servers && !slices.ContainsFunc(hub.MCPServers, func(s dialect.MCPServerStatus) bool { return !s.Connected }) {
			return
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("the hub's MCP servers are not connected: %v\n%s", err, out)
		}
	}
}

// parley runs a command of the user.
func (g *gathering) parley(args ...string) (string, error) {
	return output(g.t, func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, programs.Path("parley"), args...)
		cmd.Env = g.home.Env
		return cmd
	})
}

// The inspector, in both eras, lists and calls the tools of several agents and of a
// mounted foreign server, the delegation tools, and a tool that was added since its last
// list (Req 5.2, 5.3, 5.6).
func TestTheInspectorUsesSharedTools(t *testing.T) {
	rig.Modules(t, inspectorPackage)
	g := gather(t)
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			i := inspector{g.home, era}
			list := func() []string {
				t.Helper()
				all, err := i.run(t, g.project, "--method", "tools/list")
				if err != nil {
					t.Fatal(err)
				}
				return strings.Fields(names(t, all, "tools"))
			}
			got := list()
			for _, want := range []string{"every.echo", "web.echo", "mars.greet", "venus.greet", "delegate_task", "send_message"} {
				if !slices.Contains(got, want) {
					t.Fatalf("%s is not in %s", want, got)
				}
			}
			for want, call := range map[string][]string{
				"Echo: hello":          {"--tool-name", "every.echo", "--tool-arg", "message=hello"},
				"Echo: hallo":          {"--tool-name", "web.echo", "--tool-arg", "message=hallo"},
				"hello ann from mars":  {"--tool-name", "mars.greet", "--tool-arg", "name=ann"},
				"hello bob from venus": {"--tool-name", "venus.greet", "--tool-arg", "name=bob"},
				"**noble**":            {"--tool-name", "list_agents"},
				"completed":            {"--tool-name", "delegate_task", "--tool-arg", "agent=echo", "--tool-arg", "task=hello"},
				"grown":                {"--tool-name", "mars.grow", "--tool-arg", "name=" + era},
			} {
				result, err := i.run(t, g.project, append([]string{"--method", "tools/call"}, call...)...)
				said, _ := json.Marshal(result) // a decoded value can be encoded
				if err != nil || !strings.Contains(string(said), want) {
					t.Errorf("%v: %v %s", call, err, said)
				}
			}
			for deadline := time.Now().Add(30 * time.Second); !slices.Contains(list(), "mars."+era); {
				if time.Now().After(deadline) {
					t.Fatal("the new tool is not listed")
				}
			}
		})
	}
}

// The TypeScript SDK, in both eras, over stdio and HTTP: tools of several agents and of
// mounted foreign servers, one that appears while the client watches, progress and
// cancellation through the mount, and errors that name their server (Req 5.2, 5.3,
// 5.4, 5.6).
func TestTypeScriptSDKUsesSharedTools(t *testing.T) {
	scripts := rig.Scripts(t, []string{"shared.test.mjs", "sdk1.mjs", "sdk2.mjs"}, "@modelcontextprotocol/sdk", "@modelcontextprotocol/client")
	g := gather(t)
	for _, c := range []struct{ sdk, revision, transport, kill string }{
		{"sdk1", "2025-11-25", "stdio", ""},
		{"sdk2", "2025-11-25", "stdio", ""},
		{"sdk2", "2026-07-28", "stdio", "every"},
		{"sdk1", "2025-11-25", "HTTP", ""},
		{"sdk2", "2025-11-25", "HTTP", "web"},
		{"sdk2", "2026-07-28", "HTTP", ""},
	} {
		t.Run(c.sdk+"/"+c.revision+"/"+c.transport, func(t *testing.T) {
			env := append(g.home.Env, "MCP_SDK="+c.sdk, "MCP_REVISION="+c.revision, "PROJECT="+g.project, "KILL="+c.kill,
				"NEW="+strings.ToLower(c.sdk+"-"+c.revision+"-"+c.transport))
			if c.transport == "HTTP" {
				env = append(env, "MCP_URL="+g.address+"/mcp")
			} else {
				env = append(env, "MCP_SERVER="+programs.Path("nats-mcp-server"))
			}
			_, err := output(t, func(ctx context.Context) *exec.Cmd {
				cmd := rig.Node(ctx, t, "--test", "shared.test.mjs")
				cmd.Dir, cmd.Env = scripts, env
				return cmd
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// Each agent sees the tools that the rules of tiers, of sandboxes and of
// mcpServers.….agents let it use, over stdio and over HTTP. A caller with an invalid token
// sees nothing.
func TestAgentsSeeTheToolsThatTheyMayUse(t *testing.T) {
	g := gather(t)
	for _, c := range []struct{ id, sees, not string }{
		{"plain", "every.echo web.echo mars.greet venus.greet", ""},
		{"noble", "every.echo", "web.echo mars.greet venus.greet"}, // L1 does not address L2
		{"caged", "web.echo", "every.echo mars.greet venus.greet"},
	} {
		out, err := g.parley("send", c.id, g.address+"/mcp", "--scratch")
		if err != nil {
			t.Errorf("%s: %v", c.id, err)
			continue
		}
		var seen struct{ Stdio, HTTP []string }
		if err := json.Unmarshal([]byte(out), &seen); err != nil {
			t.Fatalf("%s: %v\n%s", c.id, err, out)
		}
		for over, got := range map[string][]string{"stdio": seen.Stdio, "HTTP": seen.HTTP} {
			for _, want := range strings.Fields(c.sees + " delegate_task send_message") {
				if !slices.Contains(got, want) {
					t.Errorf("%s does not see %s over %s: %s", c.id, want, over, got)
				}
			}
			for _, hidden := range strings.Fields(c.not) {
				if slices.Contains(got, hidden) {
					t.Errorf("%s sees %s over %s", c.id, hidden, over)
				}
			}
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.address+"/mcp", bytes.NewReader([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Parley-Task-Token", "forged")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	defer http.DefaultClient.CloseIdleConnections()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode < 400 || bytes.Contains(body, []byte("every.echo")) {
		t.Errorf("a forged token: %s %s", resp.Status, body)
	}
}
