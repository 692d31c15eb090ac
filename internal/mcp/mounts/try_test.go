package mounts_test

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
	"github.com/parleyhub/parley/internal/mcp/mounts"
)

// The error has its kind, a text, and no secrets.
func TestTryConnectsOnce(t *testing.T) {
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
			_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"the licence has run out"}}`))
		case "/silent":
			_, _ = io.Copy(io.Discard, r.Body) // the context ends only after the body was read
			<-r.Context().Done()
		case "/page":
			_, _ = w.Write([]byte("<html>welcome</html>"))
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
		cause  mounts.Cause
		why    string
	}{
		"well":          {child("yes", nil), mounts.CauseNone, ""},
		"well at a URL": {config.MCPServer{URL: server.URL + "/mcp"}, mounts.CauseNone, ""},
		"no program":    {config.MCPServer{Command: "no-such-program-here"}, mounts.CauseNotFound, "no-such-program-here"},
		"no directory":  {config.MCPServer{Command: os.Args[0], Cwd: "/no/such/directory"}, mounts.CauseNotFound, "/no/such/directory"},
		"no right":      {config.MCPServer{Command: plain}, mounts.CauseNotFound, "plain"},
		"dies":          {child("broken", map[string]string{"DB_PASSWORD": "hunter2-and-more"}), mounts.CauseEnded, "the password is"},
		"dies quietly":  {child("dies at initialize", nil), mounts.CauseEnded, ""},
		"silent":        {child("silent at initialize", nil), mounts.CauseSilent, ""},
		"no token":      {config.MCPServer{URL: server.URL + "/closed"}, mounts.CauseRefused, "Unauthorized"},
		"no rights":     {config.MCPServer{URL: server.URL + "/forbidden"}, mounts.CauseRefused, "Forbidden"},
		"with a reason": {config.MCPServer{URL: server.URL + "/reason"}, mounts.CauseRefused, "the licence has run out"},
		"nobody":        {config.MCPServer{URL: gone.URL}, mounts.CauseUnreachable, "refused"},
		"hangs":         {config.MCPServer{URL: server.URL + "/silent"}, mounts.CauseSilent, ""},
		"no MCP":        {config.MCPServer{URL: server.URL + "/page"}, mounts.CauseOther, ""},
		"wrong path":    {config.MCPServer{URL: server.URL + "/nothing"}, mounts.CauseOther, "Not Found"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			patience := time.Minute // for slow machines
			if c.cause == mounts.CauseSilent {
				patience = time.Second
			}
			status, cause := mounts.Try(t.Context(), "x", c.server, t.TempDir(), patience)
			if cause != c.cause || !strings.Contains(status.Why, c.why) || status.Connected != (cause == mounts.CauseNone) || strings.Contains(status.Why, "hunter2") {
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
		if status, cause := mounts.Try(ctx, "x", child("silent at initialize", nil), t.TempDir(), time.Hour); cause != mounts.CauseSilent {
			t.Errorf("%q: %+v", cause, status)
		}
	})
}
