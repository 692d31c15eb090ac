//go:build unix

package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/app/daemon"
)

// A long-running MCP process lists the tools of the hub's MCP servers, and lists them again after the hub was stopped,
// or killed with its socket left. Meanwhile a call returns an error with the reason.
func TestSharedToolsSurviveAHubRestart(t *testing.T) {
	s := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "hello"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hello from afar"}}}, nil, nil
	})
	far := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	t.Cleanup(func() {
		for session := range s.Sessions() {
			_ = session.Close() // the hub may have stopped
		}
		far.CloseClientConnections()
		far.Close()
	})
	d := newMachine(t)
	data := filepath.Join(d.root, "data")
	f, err := os.OpenFile(filepath.Join(data, "config.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("mcpServers: {far: {url: \"" + far.URL + "\"}}\n")
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	start := func() {
		t.Helper()
		if out, err := d.command("parley", "a", "start").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	start()
	p := d.start("a")
	p.ask(1, "initialize", initializeParams)
	id := 1
	says := func(want string) {
		t.Helper()
		var got string
		for deadline := time.Now().Add(30 * time.Second); ; {
			id++
			if got = p.call(id, "far.hello", "{}"); strings.Contains(got, want) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("got %s, want %s", got, want)
			}
		}
	}
	says("hello from afar")

	d.stopHub()
	says("cannot be reached now; try the call again")
	start()
	says("hello from afar")

	info, running, err := daemon.Running(data)
	if err != nil || !running {
		t.Fatal(err)
	}
	hub, err := os.FindProcess(info.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := hub.Kill(); err != nil {
		t.Fatal(err)
	}
	says("cannot be reached now; try the call again")
	start()
	says("hello from afar")
	var list struct {
		Result struct{ Tools []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(p.ask(id+1, "tools/list", "{}")), &list); err != nil || !strings.Contains(strings.Join(names(list.Result.Tools), " "), "far.hello") {
		t.Errorf("%+v %v", list, err)
	}
	p.end()
}

func names(tools []struct{ Name string }) (all []string) {
	for _, tool := range tools {
		all = append(all, tool.Name)
	}
	return all
}
