package server

import (
	"context"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestEqualDefinitionsOfToolsAreShared(t *testing.T) {
	define := func(description string, order ...string) *mcp.Tool {
		return &mcp.Tool{Name: "echo", Description: description, InputSchema: &jsonschema.Schema{Type: "object", PropertyOrder: order}}
	}
	var table toolTable
	first := table.share(define("Repeats.", "a", "b"))
	if table.share(define("Repeats.", "a", "b")) != first {
		t.Error("an equal definition is kept a second time")
	}
	if table.share(define("Repeats it.", "a", "b")) == first || table.share(define("Repeats.", "b", "a")) == first {
		t.Error("another definition was replaced by the first")
	}
}

// counter is a group with a tool that counts how often its schema is made.
type counter struct{ made int }

func (*counter) Instructions() string { return "" }

func (*counter) Register(*Server) {}

func (g *counter) Tools(all *Tools) {
	type in struct {
		N int `json:"n,omitempty"`
	}
	AddTool(all, Tool[in, struct{}]{Name: "count", Description: "Counts.",
		Refine: func(map[string]*jsonschema.Schema) { g.made++ },
		Handle: func(context.Context, *Call, in) (string, struct{}, error) { return "", struct{}{}, nil },
	})
}

// An agent waits for the start of its MCP server, which has some fifty tools.
func TestSchemasAreMadeWhenSomebodyAsksForThem(t *testing.T) {
	group := &counter{}
	service := NewService(Options{Groups: []Group{group}})
	defer service.Stop()
	connect := func() *mcp.ClientSession {
		server := service.NewServer(Caller{})
		t.Cleanup(server.End)
		ours, theirs := mcp.NewInMemoryTransports()
		if _, err := server.MCP().Connect(t.Context(), ours, nil); err != nil {
			t.Fatal(err)
		}
		session, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), theirs, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = session.Close() })
		return session
	}
	session := connect()
	if group.made != 0 {
		t.Error("the schema was made for a client that has only connected")
	}
	for range 2 {
		list, err := session.ListTools(t.Context(), nil)
		if err != nil || len(list.Tools) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		tool := list.Tools[0]
		schema, _ := tool.InputSchema.(map[string]any)
		properties, _ := schema["properties"].(map[string]any)
		if tool.Description != "Counts." || properties["n"] == nil || tool.OutputSchema == nil {
			t.Errorf("the list has %+v", tool)
		}
		if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: carrier.Name}); err == nil || !strings.Contains(err.Error(), "unknown tool") {
			t.Errorf("the carrier of calls is a tool for clients: %v", err)
		}
		session = connect()
	}
	if group.made != 1 {
		t.Errorf("the schema was made %d times, want once", group.made)
	}
}
