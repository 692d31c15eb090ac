package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/documents"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// library opens the documents of a hub on a stock NATS server.
func library(t testing.TB, n *natsServer) *documents.Library {
	t.Helper()
	b, err := n.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := documents.Open(t.Context(), documents.Options{Bus: b, Name: "hub"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l
}

func withDocuments(t testing.TB, n *natsServer, l *documents.Library, namespace string) *mcpserver.Project {
	t.Helper()
	p, err := mcpserver.OpenProject(configOf(namespace), mcpserver.ProjectOptions{
		Version: "1.0.0-test", Dial: n.dial, Documents: l, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := p.Close(ctx); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	return p
}

func editOf(op string, path ...string) map[string]any {
	return map[string]any{"op": op, "path": path}
}

func with(edit map[string]any, key string, value any) map[string]any {
	edit[key] = value
	return edit
}

// Agents of one project edit the same document and are notified of each other's edits.
// Another project has its own documents under the same names.
func TestAgentsShareDocuments(t *testing.T) {
	n := startServer(t)
	l := library(t, n)
	shop, other := withDocuments(t, n, l, "shop"), withDocuments(t, n, l, "other")
	ann, bob, eve := subscriber(t, shop), subscriber(t, shop), subscriber(t, other)

	tools, err := ann.session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools.Tools {
		if schema, err := json.Marshal(tool.InputSchema); err != nil || strings.Contains(string(schema), `:true,"type"`) || strings.Contains(string(schema), `"items":true`) {
			t.Errorf("%s has a schema that strict clients refuse: %s, %v", tool.Name, schema, err)
		}
	}
	if c := ann.must("list_documents", nil); !strings.Contains(c.text, "no documents") {
		t.Errorf("the documents are %q", c.text)
	}
	if err := bob.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "parley://documents/plan"}); err != nil {
		t.Fatal(err)
	}
	edited := ann.must("edit_document", map[string]any{"name": "plan", "edits": []any{
		with(editOf("set", "plan", "status"), "value", "open"),
		with(editOf("insert", "todo"), "values", []any{"test it", map[string]any{"n": 1}}),
		with(editOf("text", "notes"), "text", "first"),
		editOf("increment", "runs"),
	}})
	if uri := <-bob.updated; uri != "parley://documents/plan" {
		t.Errorf("bob was notified of %s", uri)
	}
	read := bob.must("read_document", map[string]any{"name": "plan"})
	if !reflect.DeepEqual(read.content, edited.content) || read.content["version"] == "" {
		t.Errorf("bob reads %v, ann has %v", read.content, edited.content)
	}
	content := read.content["content"].(map[string]any)
	if content["notes"] != "first" || !reflect.DeepEqual(content["todo"], []any{"test it", map[string]any{"n": 1.0}}) {
		t.Errorf("the content is %v", content)
	}
	bob.must("edit_document", map[string]any{"name": "plan", "edits": []any{with(editOf("delete", "todo"), "index", 0)}})
	<-bob.updated
	if err := bob.session.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: "parley://documents/plan"}); err != nil {
		t.Fatal(err)
	}
	resource, err := ann.session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "parley://documents/plan"})
	if err != nil || !strings.Contains(resource.Contents[0].Text, `"todo":[{"n":1}]`) {
		t.Errorf("the resource is %+v, %v", resource, err)
	}
	if c := ann.must("list_documents", nil); c.text != "plan" {
		t.Errorf("the documents are %q", c.text)
	}

	if c := eve.must("list_documents", nil); c.text == "plan" {
		t.Error("another project sees the document")
	}
	for name, c := range map[string]struct {
		tool      string
		arguments map[string]any
		want      string
	}{
		"another project's by its name": {"read_document", map[string]any{"name": "plan"}, "NotFoundError"},
		"another project's in full":     {"read_document", map[string]any{"name": "shop=plan"}, "ValidationError"},
		"an edit of another's":          {"edit_document", map[string]any{"name": "shop=plan", "edits": []any{editOf("increment", "runs")}}, "ValidationError"},
		"no operation":                  {"edit_document", map[string]any{"name": "mine", "edits": []any{editOf("jump", "x")}}, "no such operation"},
		"no edits":                      {"edit_document", map[string]any{"name": "mine", "edits": []any{}}, "ValidationError"},
	} {
		if got := eve.call(c.tool, c.arguments); !got.isError || !strings.Contains(got.text, c.want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if c := eve.must("list_documents", nil); !strings.Contains(c.text, "no documents") {
		t.Errorf("after failed edits the documents are %q", c.text)
	}
	if _, err := eve.session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "parley://documents/plan"}); err == nil {
		t.Error("another project reads the resource")
	}
}

// Ended subscriptions release their resources, and there is a limit of open ones.
func TestSubscriptionsAreBounded(t *testing.T) {
	n := startServer(t)
	p := withDocuments(t, n, library(t, n), "shop")
	a := subscriber(t, p)
	resources := []string{"parley://documents/plan", "parley://channels/roadmap"}
	before := runtime.NumGoroutine()
	for range 200 {
		for _, uri := range resources {
			if err := a.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
				t.Fatal(err)
			}
			if err := a.session.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: uri}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if now := runtime.NumGoroutine(); now > before+100 {
		t.Errorf("%d goroutines before, %d after", before, now)
	}
	for i := range 65 {
		err := a.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: fmt.Sprintf("parley://documents/d%d", i)})
		if refused := err != nil; refused != (i == 64) {
			t.Fatalf("subscription %d: %v", i+1, err)
		}
	}
}
