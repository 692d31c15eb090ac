//go:build unix

package daemon_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/bus"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	"github.com/parleyhub/parley/internal/testbed"
)

// natsServer starts a NATS server that hubs share, and returns its URL.
func natsServer(t *testing.T) string {
	t.Helper()
	return testbed.StartNATS(t).URL()
}

// web calls a tool over HTTP as an agent of a project, and returns the response's text.
func web(t *testing.T, hubURL, project, tool string, arguments map[string]any) string {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "web", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: hubURL + "/mcp?project=" + url.QueryEscape(project), HTTPClient: &http.Client{Transport: transport}},
		&mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"}) // the revision that has sessions
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}()
	if tool == "send_message" { // in the same session: sending needs a handle
		if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "set_handle", Arguments: map[string]any{"handle": "writer"}}); err != nil {
			t.Fatal(err)
		}
	}
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		t.Fatal(err)
	}
	return result.Content[0].(*mcp.TextContent).Text
}

// Over HTTP, the agents of a project read each other's messages, on the hub's bus or on the server that the project has
// configured. Agents of another project, or of none, do not.
func TestProjectsOverHTTPHaveTheirChannels(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // the user has no configuration
	root := newDir(t)
	own, other, far := filepath.Join(root, "own"), filepath.Join(root, "other"), filepath.Join(root, "far")
	for dir, file := range map[string]string{
		own: `{"namespace":"own"}`, other: `{"namespace":"other"}`, far: fmt.Sprintf(`{"namespace":"own","natsUrl":%q}`, natsServer(t)),
	} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, mcpconfig.ProjectFile), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := run(t, mustLoad(t, newDir(t)))
	defer r.end(t)
	projects := []string{own, other, far, ""}
	for _, from := range projects {
		text := "written in " + filepath.Base(from)
		if got := web(t, r.info.HTTP, from, "send_message", map[string]any{"channel": "roadmap", "message": text}); !strings.HasPrefix(got, "Message sent") {
			t.Fatalf("%q: %s", from, got)
		}
	}
	for _, at := range projects {
		got := web(t, r.info.HTTP, at, "read_messages", map[string]any{"channel": "roadmap"})
		for _, from := range projects {
			if text := "written in " + filepath.Base(from); strings.Contains(got, text) != (at == from) {
				t.Errorf("at %q: got %q, want %s", at, got, text)
			}
		}
	}
}

// At /mcp the server is the hub, not the program that an agent starts.
func TestTheServerAtMCPHasTheHubsName(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	r := run(t, mustLoad(t, newDir(t)))
	defer r.end(t)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		session, err := mcp.NewClient(&mcp.Implementation{Name: "web", Version: "1"}, nil).Connect(t.Context(),
			&mcp.StreamableClientTransport{Endpoint: r.info.HTTP + "/mcp", HTTPClient: &http.Client{Transport: transport}},
			&mcp.ClientSessionOptions{ProtocolVersion: revision})
		if err != nil {
			t.Fatal(err)
		}
		if got := session.InitializeResult().ServerInfo; got.Name != "parley" || got.Title != "Parley" {
			t.Errorf("%s: %+v", revision, got)
		}
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestABrokenProjectIsRefusedOverHTTP(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	project := newDir(t)
	if err := os.WriteFile(filepath.Join(project, mcpconfig.ProjectFile), []byte(`{"namespace":"No Namespace"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, mustLoad(t, newDir(t)))
	defer r.end(t)
	defer http.DefaultClient.CloseIdleConnections()
	for _, c := range []struct{ project, want string }{{project, "namespace"}, {"relative", "absolute path"}} {
		resp, err := http.Post(r.info.HTTP+"/mcp?project="+url.QueryEscape(c.project), "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":"i7","method":"ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), c.want) || !strings.Contains(string(body), `"id":"i7"`) {
			t.Errorf("%s: %s %s, %v", c.project, resp.Status, body, err)
		}
	}
}

// The hub serves MCP on its socket to every process that can open it. A task token must be one of the hub's.
func TestMCPOverTheSocket(t *testing.T) {
	t.Parallel()
	r := run(t, mustLoad(t, newDir(t), "http.enabled=false"))
	defer r.end(t)
	if c, err := client.AttachMCP(t.Context(), r.info.Socket, "no-such-token"); err == nil {
		c.Close()
		t.Error("an invalid token is accepted")
	} else if !strings.Contains(err.Error(), "token") {
		t.Errorf("an invalid token: %v", err)
	}
	c, err := client.AttachMCP(t.Context(), r.info.Socket, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lines := bufio.NewReader(c)
	ask := func(id int, method, params string) json.RawMessage {
		t.Helper()
		if _, err := fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", id, method, params); err != nil {
			t.Fatal(err)
		}
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				t.Fatal(err)
			}
			var answer struct {
				ID     *int
				Result json.RawMessage
			}
			if err := json.Unmarshal(line, &answer); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if answer.ID != nil && *answer.ID == id {
				return answer.Result
			}
		}
	}
	var hello struct{ ServerInfo struct{ Version string } }
	if b := ask(1, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`); json.Unmarshal(b, &hello) != nil || hello.ServerInfo.Version != "test" {
		t.Errorf("initialize: %s", b)
	}
	var list struct{ Tools []struct{ Name string } }
	b := ask(2, "tools/list", `{}`)
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, tool := range list.Tools {
		names[tool.Name] = true
	}
	if !names["delegate_task"] || names["send_message"] {
		t.Errorf("the shared tools are %v: want delegate_task, and no channel tools, which need a project", names)
	}
}

// A project's credentials are used for its server. Its TLS files are for the cluster, and are not used for a server on
// this computer without TLS.
func TestProjectBus(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		url   mcpconfig.URL
		cross bool
		files bool
	}{
		"elsewhere":                        {"nats://nats.example.com:4222", false, true},
		"another computer, with a network": {"nats://nats.example.com:4222", true, true},
		"this computer":                    {"nats://localhost:4222", false, true},
		"this computer, with a network":    {"nats://127.0.0.1:4222", true, false},
		"this computer, with TLS":          {"tls://localhost:4222", true, true},
		"this computer and another one":    {"nats://localhost:4222,nats://nats.example.com:4222", true, true},
	} {
		cfg := &mcpconfig.Config{Document: mcpconfig.Document{
			Namespace: "ns", NATSURL: c.url, TLS: mcpconfig.TLS{Cert: "/cert", Key: "/key", CA: "/ca"},
			Credentials: mcpconfig.Credentials{Username: "u", Password: "p"}, CrossComputer: mcpconfig.CrossComputer{Enabled: c.cross},
		}}
		want := bus.Credentials{User: "u", Password: "p"}
		if c.files {
			want.CertFile, want.KeyFile, want.CAFile = "/cert", "/key", "/ca"
		}
		got := daemon.ProjectBus(cfg, nil)
		if got.Credentials != want || got.URL != bus.Secret(c.url) || !got.NoEcho || got.DataDir != "" || !strings.Contains(got.Name, "ns") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// REQ-SEC-CROSS-002: the channels log in to a stock server with an NKey, or a token, of the configuration.
func TestChannelsLogInWithAnNKeyOrAToken(t *testing.T) {
	t.Parallel()
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "user.nk")
	if err := os.WriteFile(file, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	nkey := testbed.StartNATS(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} })
	token := testbed.StartNATS(t, func(o *server.Options) { o.Authorization = "hunter2" })
	for name, tt := range map[string]struct {
		at    *testbed.Server
		login mcpconfig.Credentials
		works bool
	}{
		"NKey":          {nkey, mcpconfig.Credentials{NKeyFile: file}, true},
		"without it":    {nkey, mcpconfig.Credentials{}, false},
		"token":         {token, mcpconfig.Credentials{Token: "hunter2"}, true},
		"another token": {token, mcpconfig.Credentials{Token: "x"}, false},
	} {
		cfg := &mcpconfig.Config{Document: mcpconfig.Document{Namespace: "ns", NATSURL: mcpconfig.URL(tt.at.URL()), Credentials: tt.login}}
		b, err := bus.Open(t.Context(), daemon.ProjectBus(cfg, nil))
		if (err == nil) != tt.works || err != nil && bus.CodeOf(err) != bus.CodeAuth {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}
