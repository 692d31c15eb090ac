package mounts_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/mcp/mounts"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/toolbox"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// beServer is the environment variable that makes this program an MCP server on its standard streams.
const beServer = "HUBTOOLS_TEST_SERVER"

func TestMain(m *testing.M) {
	switch way := os.Getenv(beServer); way {
	case "":
	case "yes", "broken":
		serve()
		return
	default:
		hostile(way)
		return
	}
	goleak.VerifyTestMain(m)
}

type empty struct{}

// serve runs a server that prints invalid lines, returns its environment, and exits on demand.
func serve() {
	fmt.Println("starting up ...")
	fmt.Fprintln(os.Stderr, "the password is", os.Getenv("DB_PASSWORD"))
	if os.Getenv(beServer) == "broken" {
		os.Exit(3)
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "child", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "pid"}, func(context.Context, *mcp.CallToolRequest, empty) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(os.Getpid())}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "env"}, func(context.Context, *mcp.CallToolRequest, empty) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Join(os.Environ(), "\n")}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "show"}, func(_ context.Context, _ *mcp.CallToolRequest, in map[string]any) (*mcp.CallToolResult, any, error) {
		text := fmt.Sprint(in["a"], os.Getenv("DB_PASSWORD"))
		if in["long"] == true {
			text += strings.Repeat(" word", 10_000)
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "die"}, func(context.Context, *mcp.CallToolRequest, empty) (*mcp.CallToolResult, any, error) {
		os.Exit(1)
		return nil, nil, nil
	})
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func child(mode string, env map[string]string) config.MCPServer {
	all := map[string]string{beServer: mode, "GORACE": "atexit_sleep_ms=0"}
	for k, v := range env {
		all[k] = v
	}
	return config.MCPServer{Command: os.Args[0], Env: all}
}

func newNode(t *testing.T, cards ...agent.Card) *parley.Node {
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
	for _, card := range cards {
		if _, err := n.Join(card, func(context.Context, *envelope.Envelope) {}); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func card(id, sandbox string) agent.Card {
	return agent.Card{ID: id, Name: id, Version: "1", Tier: agent.L3, SandboxID: sandbox, Protocols: []string{"a2a/1.0"}, Capabilities: []agent.Capability{}}
}

func open(t *testing.T, o mounts.Options) *mounts.Tools {
	t.Helper()
	if o.Node == nil {
		o.Node = newNode(t)
	}
	o.Dir = t.TempDir()
	tools := mounts.Open(o)
	t.Cleanup(tools.Close)
	return tools
}

func connected(tools *mounts.Tools, name string) func() bool {
	return func() bool {
		for _, s := range tools.Status() {
			if s.Name == name {
				return s.Connected
			}
		}
		return false
	}
}

func call(t *testing.T, tools *mounts.Tools, caller, name string) (string, error) {
	t.Helper()
	result, err := tools.Box().Call(t.Context(), caller, name, nil, nil)
	if err != nil {
		return "", err
	}
	return result.Content[0].(*mcp.TextContent).Text, nil
}

func TestAProgramIsRestartedWhenItExits(t *testing.T) {
	tools := open(t, mounts.Options{Servers: map[string]config.MCPServer{
		"child": child("yes", map[string]string{"SETTING": "one"}),
		"other": child("yes", nil),
		"off":   {Command: "does-not-matter", Disabled: true},
	}})
	wait.Eventually(t, "connected", func() bool { return connected(tools, "child")() && connected(tools, "other")() })
	before, err := call(t, tools, "", "child.pid")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HUB_SECRET", "x")
	if env, err := call(t, tools, "", "child.env"); err != nil || !strings.Contains(env, "SETTING=one") || strings.Contains(env, "HUB_SECRET") {
		t.Errorf("%v %s", err, env)
	}
	if _, err := call(t, tools, "", "child.die"); toolbox.CodeOf(err) != toolbox.CodeUnavailable {
		t.Errorf("%v", err)
	}
	if _, err := call(t, tools, "", "other.pid"); err != nil {
		t.Errorf("the other server fails: %v", err)
	}
	wait.Eventually(t, "back again", func() bool {
		after, err := call(t, tools, "", "child.pid")
		return err == nil && after != before
	})
	if len(tools.Status()) != 2 {
		t.Errorf("%+v", tools.Status())
	}
}

// Req 13.4: each call has a record that can be stored: without secrets, and bounded.
func TestCallsOfToolsAreRecorded(t *testing.T) {
	var mu sync.Mutex
	var got []telemetry.Invocation
	t.Setenv("SHOP_TOKEN", "of-the-environment")
	tools := open(t, mounts.Options{
		Node:    newNode(t, card("ann", "")),
		Servers: map[string]config.MCPServer{"child": child("yes", map[string]string{"DB_PASSWORD": "hunter2-and-more"})},
		Secrets: []string{"secret-of-the-configuration"},
		Record: func(i telemetry.Invocation) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, i)
		},
	})
	wait.Eventually(t, "connected", connected(tools, "child"))
	for n, tool := range []string{"child.show", "child.show", "child.none"} {
		arguments, err := json.Marshal(map[string]any{"a": "secret-of-the-configuration", "b": "of-the-environment", "c": "harmless", "long": n == 1})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = tools.Box().Call(t.Context(), "ann", tool, arguments, nil) // the last one fails
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) != 3 {
		t.Fatalf("%d records: %+v", len(got), got)
	}
	for n, i := range got {
		data, err := telemetry.EncodeInvocation(i)
		if err != nil || len(data) > 40<<10 {
			t.Errorf("a record of %d bytes, %v", len(data), err)
		}
		for _, secret := range []string{"hunter2", "secret-of-the", "of-the-environment"} {
			if strings.Contains(string(data), secret) {
				t.Errorf("%s is in %s", secret, data)
			}
		}
		if i.Caller != "ann" || i.Success != (n < 2) || !strings.Contains(string(i.Arguments), "harmless") || i.Timestamp == 0 {
			t.Errorf("%s", data)
		}
	}
	if !strings.Contains(string(got[0].Result), "content") || !strings.Contains(string(got[1].Result), "[cut: ") || got[2].ErrorCode == "" {
		t.Errorf("%s, %.200s, %+v", got[0].Result, got[1].Result, got[2])
	}
}

func TestErrorsOfAServerAreShownWithoutSecrets(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	tools := open(t, mounts.Options{
		Servers: map[string]config.MCPServer{
			"sick":    child("broken", map[string]string{"DB_PASSWORD": "hunter2-and-more"}),
			"missing": {Command: "no-such-program-here"},
		},
		Logger: slog.New(slog.NewTextHandler(locked{&mu, &log}, nil)),
	})
	var why map[string]string
	wait.Eventually(t, "both have failed", func() bool {
		why = map[string]string{}
		for _, s := range tools.Status() {
			why[s.Name] = s.Why
		}
		return strings.Contains(why["sick"], "password") && strings.Contains(why["missing"], "no-such-program-here")
	})
	mu.Lock()
	defer mu.Unlock()
	if strings.Contains(why["sick"]+log.String(), "hunter2") || !strings.Contains(log.String(), "cannot be reached") {
		t.Errorf("%v\n%s", why, log.String())
	}
}

type locked struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func TestHeadersAreSentToTheirServerOnly(t *testing.T) {
	stolen := make(chan string, 10)
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen <- r.Header.Get("Authorization") }))
	defer thief.Close()
	s := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "hello"}, func(_ context.Context, req *mcp.CallToolRequest, _ empty) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: req.Extra.Header.Get("Authorization")}}}, nil, nil
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	auth := map[string]string{"Authorization": "Bearer of-bad-news"}
	tools := open(t, mounts.Options{Servers: map[string]config.MCPServer{
		"far":   {URL: server.URL + "/mcp", Headers: auth},
		"moved": {URL: server.URL + "/moved", Headers: auth},
	}})
	wait.Eventually(t, "connected", connected(tools, "far"))
	if got, err := call(t, tools, "", "far.hello"); err != nil || got != "Bearer of-bad-news" {
		t.Errorf("%q %v", got, err)
	}
	wait.Eventually(t, "the redirect was refused", func() bool {
		for _, s := range tools.Status() {
			if s.Name == "moved" && s.Why != "" && !strings.Contains(s.Why, "not connected yet") {
				return true
			}
		}
		return false
	})
	select {
	case header := <-stolen:
		t.Errorf("the redirect was followed with %q", header)
	default:
	}
}

// An agent in a sandbox may use the servers that list it; other agents may use those without a list.
func TestServersAreForTheirAgents(t *testing.T) {
	node := newNode(t, card("venus", ""), card("mars", ""), card("caged", "box"))
	tools := open(t, mounts.Options{Node: node, Servers: map[string]config.MCPServer{
		"all":   {Command: "no-such-program", Agents: nil},
		"some":  {Command: "no-such-program", Agents: []string{"venus"}},
		"inner": {Command: "no-such-program", Agents: []string{"caged"}},
	}})
	for _, c := range []struct {
		from, to string
		may      bool
	}{
		{"venus", "all", true}, {"mars", "all", true}, {"caged", "all", false}, {"stranger", "all", false},
		{"venus", "some", true}, {"mars", "some", false}, {"caged", "some", false},
		{"caged", "inner", true}, {"venus", "inner", false},
		{"venus", "mars", true}, {"caged", "mars", false},
	} {
		if err := tools.Permit(c.from, c.to); (err == nil) != c.may {
			t.Errorf("%s uses %s: %v", c.from, c.to, err)
		}
	}
}

// The card of an agent of another process names an MCP endpoint. The endpoint's tools are
// listed under the agent's id until the agent leaves.
func TestToolsOfARemoteAgentAreMounted(t *testing.T) {
	listener := websocket.NewListener(websocket.ListenOptions{Authenticate: func(*http.Request) (string, error) { return "peer", nil }})
	server := httptest.NewServer(listener)
	defer server.Close()
	hub := newNode(t, card("echo", ""), card("caged", "box"))
	if err := hub.Listen(listener); err != nil {
		t.Fatal(err)
	}
	tools := open(t, mounts.Options{Node: hub})

	elsewhere, err := parley.New(parley.Options{Channels: channel.Options{
		Dialers: map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := elsewhere.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	mars := card("mars", "")
	mars.Tier, mars.Protocols = agent.L2, []string{"mcp/2025-11-25"}
	if _, err := elsewhere.Join(mars, func(context.Context, *envelope.Envelope) {}); err != nil {
		t.Fatal(err)
	}
	box := toolbox.New(toolbox.Options{})
	provider, err := box.Provider("own")
	if err != nil {
		t.Fatal(err)
	}
	type in struct {
		Name string `json:"name"`
	}
	err = toolbox.AddFunc(provider, "greet", "Greet", func(_ context.Context, _ *toolbox.Call, in in) (string, error) { return "hello " + in.Name, nil })
	if err != nil {
		t.Fatal(err)
	}
	listening := toolbox.Listen(elsewhere.Router(), "mars", func(peer string) *mcp.Server {
		s := mcp.NewServer(&mcp.Implementation{Name: "mars", Version: "1"}, nil)
		box.Serve(s, "")
		return s
	})
	defer listening.Close()
	link, err := elsewhere.Connect(t.Context(), "mars", mounts.CardID, agent.Endpoint{Transport: agent.TransportWebSocket, Address: "ws" + strings.TrimPrefix(server.URL, "http")})
	if err != nil {
		t.Fatal(err)
	}

	wait.Eventually(t, "mars is mounted", connected(tools, "mars"))
	arguments, _ := json.Marshal(in{"venus"})
	for _, caller := range []string{"", "echo"} {
		result, err := tools.Box().Call(t.Context(), caller, "mars.own.greet", arguments, nil)
		if err != nil || !strings.Contains(result.Content[0].(*mcp.TextContent).Text, "hello venus") {
			t.Errorf("%q: %+v %v", caller, result, err)
		}
	}
	if _, err := tools.Box().Call(t.Context(), "caged", "mars.own.greet", arguments, nil); toolbox.CodeOf(err) != toolbox.CodeToolNotFound {
		t.Errorf("an agent in a sandbox: %v", err)
	}
	if err := link.Close(); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "mars has gone", func() bool { return len(tools.Status()) == 0 && len(tools.Box().Tools("")) == 0 })
}

// An agent with the name of a paired hub's tools cannot replace them, whether it appears
// before or after the pairing.
func TestNamesOfAPairedHubsToolsAreReserved(t *testing.T) {
	node := newNode(t)
	tools := open(t, mounts.Options{Node: node})
	comes := func(id string) {
		t.Helper()
		c := card(id, "")
		c.Protocols = []string{"mcp/2025-11-25"}
		if _, err := node.Registry().Merge(c, "test"); err != nil {
			t.Fatal(err)
		}
	}
	names := func() string {
		var all []string
		for _, s := range tools.Status() {
			all = append(all, s.Name)
		}
		return strings.Join(all, " ")
	}
	comes("bob.files")
	comes("bobby.files")
	wait.Eventually(t, "both are there", func() bool { return names() == "bob.files bobby.files" })
	tools.Reserve([]string{"bob", "ann"})
	if got := names(); got != "bobby.files" {
		t.Errorf("%s", got)
	}
	comes("bob.notes")
	comes("carl")
	wait.Eventually(t, "the next one is there", func() bool { return strings.Contains(names(), "carl") })
	if got := names(); got != "bobby.files carl" {
		t.Errorf("%s", got)
	}
	drop, err := tools.MountPeer(mounts.PeerTools{Name: "bob.files", Dial: func(context.Context) (mcp.Transport, error) {
		return nil, errors.New("not now")
	}})
	if err != nil {
		t.Fatalf("the peer's tools are not listed: %v", err)
	}
	drop()
	tools.Reserve([]string{"ann"})
	wait.Eventually(t, "the names are free again", func() bool { return names() == "bob.files bob.notes bobby.files carl" })
}
