package server

import (
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
