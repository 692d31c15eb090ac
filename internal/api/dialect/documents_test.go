package dialect_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/documents"
)

func TestDocumentsAreEditedReadAndAwaited(t *testing.T) {
	ctx := context.Background()
	b, err := bus.Open(ctx, bus.Config{DataDir: t.TempDir(), Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	library, err := documents.Open(ctx, documents.Options{Bus: b, Name: "hub"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := library.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	s := dialect.New(dialect.Config{Hub: &fakeHub{}, Documents: library})
	run := func(name, params string) string {
		answer, _ := call(t, s, method(name, params))
		return answer
	}
	if names := read[[]string](t, run(dialect.MethodDocumentsList, `{}`)); names == nil || len(names) != 0 {
		t.Fatalf("there are %q", names)
	}
	edited := read[documents.Content](t, run(dialect.MethodDocumentsEdit, `{"name":"plan","edits":[{"op":"set","path":["plan","status"],"value":"open"}]}`))
	got := read[documents.Content](t, run(dialect.MethodDocumentsGet, `{"name":"plan"}`))
	if string(got.Content) != `{"plan":{"status":"open"}}` || got.Version != edited.Version {
		t.Fatalf("the content is %s in version %s; the edit returned version %s", got.Content, got.Version, edited.Version)
	}
	old := `{"name":"plan","seen":"another","edits":[{"op":"text","path":["notes"],"text":"x"}]}`
	wantError(t, run(dialect.MethodDocumentsEdit, old), jsonrpc.CodeInvalidParams, "DOCUMENT_CHANGED", "")
	got = read[documents.Content](t, run(dialect.MethodDocumentsEdit, strings.Replace(old, "another", got.Version, 1)))
	if string(got.Content) != `{"notes":"x","plan":{"status":"open"}}` {
		t.Fatalf("an edit of the version that was read: %s", got.Content)
	}
	awaited := read[documents.Content](t, run(dialect.MethodDocumentsWait, `{"name":"plan","seen":"another"}`))
	if awaited.Version != got.Version {
		t.Fatalf("the awaited version is %s", awaited.Version)
	}
	if names := read[[]string](t, run(dialect.MethodDocumentsList, `{}`)); len(names) != 1 || names[0] != "plan" {
		t.Fatalf("there are %q", names)
	}
	rest := read[documents.Rest](t, run(dialect.MethodDocumentsSync, `{"name":"plan"}`))
	if rest.Version != got.Version || len(rest.Update) == 0 {
		t.Fatalf("a program without a copy gets %+v", rest)
	}
	if n := read[dialect.DocumentCompacted](t, run(dialect.MethodDocumentsCompact, `{"name":"plan"}`)); n.After > n.Before || n.After < 1 {
		t.Fatalf("compaction returned %+v", n)
	}
	for _, c := range []struct{ method, params, field string }{
		{dialect.MethodDocumentsGet, `{}`, "name"},
		{dialect.MethodDocumentsWait, `{"name":1}`, "name"},
		{dialect.MethodDocumentsCompact, `{}`, "name"},
		{dialect.MethodDocumentsEdit, `{"name":"plan"}`, "edits"},
		{dialect.MethodDocumentsEdit, `{"name":"plan","edits":[{"how":1}]}`, "edits"},
		{dialect.MethodDocumentsEdit, `{"name":"plan","edits":[{"op":"fly","path":["plan"]}]}`, ""},
		{dialect.MethodDocumentsGet, `{"name":"a/b"}`, ""},
		{dialect.MethodDocumentsSync, `{"name":"plan","vector":"?"}`, "vector"}, {dialect.MethodDocumentsSync, `{}`, "name"},
		{dialect.MethodDocumentsSync, `{"name":"plan","epoch":1,"update":"/w=="}`, ""},
		{dialect.MethodDocumentsCompact, `{"name":"` + strings.Repeat("x", 200) + `"}`, ""},
	} {
		wantError(t, run(c.method, c.params), jsonrpc.CodeInvalidParams, "INVALID_PARAMS", c.field)
	}
	stops, cancel := context.WithCancel(ctx)
	cancel()
	latest := read[documents.Content](t, run(dialect.MethodDocumentsGet, `{"name":"plan"}`)).Version
	for _, request := range []string{
		method(dialect.MethodDocumentsList, `{}`), method(dialect.MethodDocumentsWait, `{"name":"plan","seen":"`+latest+`"}`),
	} {
		d := &jsonrpc.Dispatcher{Handler: s, Log: slog.New(slog.DiscardHandler)}
		answer := string(d.Serve(stops, jsonrpc.Decode([]byte(request), jsonrpc.Limits{}), nil))
		wantError(t, answer, dialect.CodeAgentUnavailable, "AGENT_UNAVAILABLE", "")
	}
}
