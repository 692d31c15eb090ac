package hubtools_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hubtools"
)

// What is wrong with a server is told by its kind, in words, without secrets.
func TestAServerIsTriedOnce(t *testing.T) {
	s := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "hello"}, func(context.Context, *mcp.CallToolRequest, empty) (*mcp.CallToolResult, any, error) {
		return nil, nil, nil
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/mcp":
			handler.ServeHTTP(w, r)
		case "/closed":
			http.Error(w, "who are you?", http.StatusUnauthorized)
		case "/forbidden":
			http.Error(w, "not you", http.StatusForbidden)
		case "/reason":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"the licence has run out"}}`)) // to a test
		case "/silent":
			_, _ = io.Copy(io.Discard, r.Body) // before, it is not told that the client has gone
			<-r.Context().Done()
		case "/page":
			_, _ = w.Write([]byte("<html>welcome</html>")) // to a test
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	gone := httptest.NewServer(handler)
	gone.Close()
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		server config.MCPServer
		cause  hubtools.Cause
		why    string
	}{
		"well":          {child("yes", nil), hubtools.CauseNone, ""},
		"well at a URL": {config.MCPServer{URL: server.URL + "/mcp"}, hubtools.CauseNone, ""},
		"no program":    {config.MCPServer{Command: "no-such-program-here"}, hubtools.CauseNotFound, "no-such-program-here"},
		"no directory":  {config.MCPServer{Command: os.Args[0], Cwd: "/no/such/directory"}, hubtools.CauseNotFound, "/no/such/directory"},
		"no right":      {config.MCPServer{Command: plain}, hubtools.CauseNotFound, "plain"},
		"dies":          {child("broken", map[string]string{"DB_PASSWORD": "hunter2-and-more"}), hubtools.CauseEnded, "the password is"},
		"dies quietly":  {child("dies at initialize", nil), hubtools.CauseEnded, ""},
		"silent":        {child("silent at initialize", nil), hubtools.CauseSilent, ""},
		"no token":      {config.MCPServer{URL: server.URL + "/closed"}, hubtools.CauseRefused, "Unauthorized"},
		"no rights":     {config.MCPServer{URL: server.URL + "/forbidden"}, hubtools.CauseRefused, "Forbidden"},
		"with a reason": {config.MCPServer{URL: server.URL + "/reason"}, hubtools.CauseRefused, "the licence has run out"},
		"nobody":        {config.MCPServer{URL: gone.URL}, hubtools.CauseUnreachable, "refused"},
		"hangs":         {config.MCPServer{URL: server.URL + "/silent"}, hubtools.CauseSilent, ""},
		"no MCP":        {config.MCPServer{URL: server.URL + "/page"}, hubtools.CauseOther, ""},
		"wrong path":    {config.MCPServer{URL: server.URL + "/nothing"}, hubtools.CauseOther, "Not Found"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			patience := time.Minute // slow machines
			if c.cause == hubtools.CauseSilent {
				patience = time.Second
			}
			status, cause := hubtools.Try(t.Context(), "x", c.server, t.TempDir(), patience)
			if cause != c.cause || !strings.Contains(status.Why, c.why) || status.Connected != (cause == hubtools.CauseNone) || strings.Contains(status.Why, "hunter2") {
				t.Errorf("%q: %+v", cause, status)
			}
			if status.Connected && status.Tools == 0 {
				t.Errorf("%+v", status)
			}
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if status, cause := hubtools.Try(ctx, "x", child("silent at initialize", nil), t.TempDir(), time.Hour); cause != hubtools.CauseSilent {
			t.Errorf("%q: %+v", cause, status)
		}
	})
}
