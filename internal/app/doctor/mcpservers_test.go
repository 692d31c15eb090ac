//go:build unix

package doctor_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/app/doctor"
)

// serverFinding returns the finding of an MCP server.
func serverFinding(t *testing.T, findings []doctor.Finding, name string) []doctor.Finding {
	t.Helper()
	for _, f := range findings {
		if f.Server == name {
			return []doctor.Finding{f}
		}
	}
	t.Fatalf("no finding about %s in %+v", name, findings)
	return nil
}

// The doctor connects to each MCP server, and reports problems with a remedy.
func TestMCPServersAreChecked(t *testing.T) {
	s := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "hello"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return nil, nil, nil
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/mcp":
			handler.ServeHTTP(w, r)
		case "/closed":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(func() { far.CloseClientConnections(); far.Close() })
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	gone := httptest.NewServer(handler)
	gone.Close()
	dir := place(t, fmt.Sprintf(`mcpServers:
  well: {url: %q}
  closed: {url: %q}
  wrong: {url: %q}
  gone: {url: %q}
  missing: {command: no-such-program-here}
  lost: {command: sh, cwd: %q}
  dies: {command: sh, args: ["-c", "echo no licence >&2; exit 3"]}
  off: {command: no-such-program-here, disabled: true}
`, far.URL+"/mcp", far.URL+"/closed", far.URL+"/nothing", gone.URL, t.TempDir()+"/none"))
	cfg, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	patient := doctor.Patient{Config: cfg, Program: "parley"}
	findings := patient.Examine(t.Context())
	for _, c := range []struct {
		name  string
		level doctor.Level
		text  string
	}{
		{"well", doctor.OK, "answers: 1 tool,"}, {"off", doctor.OK, "is disabled"},
		{"closed", doctor.Warning, "mcpServers.closed.tokenFile"}, {"wrong", doctor.Warning, "/mcp at the end"}, {"gone", doctor.Warning, "cannot be reached"},
		{"missing", doctor.Warning, "install no-such-program-here"}, {"lost", doctor.Warning, "mcpServers.lost.cwd"}, {"dies", doctor.Warning, "no licence"},
	} {
		expect(t, serverFinding(t, findings, c.name), "mcp-server", c.level, c.text)
	}

	// A running hub is queried first: servers that it uses are not connected a second time.
	hub(t, dir)
	deadline := time.After(60 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !usesServer(t, cfg.Socket.Path, "well") {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the hub does not connect")
		}
	}
	sessions := len(sessionsOf(s))
	findings = patient.Examine(t.Context())
	expect(t, serverFinding(t, findings, "well"), "mcp-server", doctor.OK, "answers: 1 tool,")
	if n := len(sessionsOf(s)); n > sessions {
		t.Errorf("%d sessions, %d before", n, sessions)
	}
}

// The wait for a server that does not answer is limited.
func TestASilentMCPServerIsReported(t *testing.T) {
	cfg, err := load(place(t, `mcpServers: {silent: {command: sleep, args: ["1000"]}}`+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	patient := doctor.Patient{Config: cfg, Program: "parley", ServerTimeout: time.Second}
	expect(t, serverFinding(t, patient.Examine(t.Context()), "silent"), "mcp-server", doctor.Warning, "has not answered within 1s")
}

func sessionsOf(s *mcp.Server) (all []*mcp.ServerSession) {
	for session := range s.Sessions() {
		all = append(all, session)
	}
	return all
}

// usesServer reports whether a hub is connected to an MCP server.
func usesServer(t *testing.T, socket, name string) bool {
	t.Helper()
	c, err := client.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	status, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range status.MCPServers {
		if s.Name == name {
			return s.Connected
		}
	}
	return false
}
