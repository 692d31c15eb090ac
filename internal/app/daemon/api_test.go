//go:build unix

package daemon_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/parleyhub/parley/docs"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/third_party/jsonschema"
)

// described is docs/openapi.json.
type described struct {
	doc      any
	compiler *jsonschema.Compiler
	Paths    map[string]struct {
		Get *struct {
			Responses map[string]struct {
				Content map[string]json.RawMessage
			}
		}
	}
	Components struct {
		Schemas map[string]json.RawMessage
	}
}

func readDescription(t *testing.T) described {
	t.Helper()
	text, err := docs.Files.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	d := described{compiler: jsonschema.NewCompiler()}
	if d.doc, err = jsonschema.UnmarshalJSON(strings.NewReader(string(text))); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if err := d.compiler.AddResource("file:///openapi.json", d.doc); err != nil {
		t.Fatal(err)
	}
	return d
}

// validate checks a text against a schema within the description.
func (d described) validate(t *testing.T, what, pointer string, text []byte) {
	t.Helper()
	schema, err := d.compiler.Compile("file:///openapi.json#" + pointer)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	if err != nil {
		t.Fatalf("%s: %v: %.200s", what, err, text)
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%s is not as described: %v\n%.600s", what, err, text)
	}
}

func get(t *testing.T, method, url, body string) (status int, kind string, text []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err = io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	kind, _, _ = strings.Cut(res.Header.Get("Content-Type"), ";")
	return res.StatusCode, kind, text
}

// A running hub is as docs/openapi.json describes it: its paths, its methods, and the shapes of what they answer.
func TestTheHubIsAsItIsDescribed(t *testing.T) {
	d := readDescription(t)
	r := run(t, mustLoad(t, newDir(t)))
	defer r.end(t)
	base := r.info.HTTP
	call := func(method, params string) []byte {
		_, _, text := get(t, "POST", base+"/", fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":%s}`, method, params))
		return text
	}
	const message = `{"message":{"kind":"message","messageId":"m1","role":"user","parts":[{"kind":"text","text":"hi"}],"metadata":{"targetAgent":"echo"}}}`
	answers := []struct{ method, params string }{
		{dialect.MethodSend, message}, {dialect.MethodStatus, "{}"}, {dialect.MethodAgentsList, `{"includeHealth":true}`}, {dialect.MethodAgentsGet, `{"agentId":"echo"}`},
		{dialect.MethodAgentsHealth, `{"agentId":"echo"}`}, {dialect.MethodTasksPage, `{"includeArtifacts":true,"historyLength":9}`}, {dialect.MethodTasksList, "{}"},
		{dialect.MethodContextsList, "{}"}, {dialect.MethodIDs, `{"kind":"task"}`}, {dialect.MethodTotals, "{}"}, {dialect.MethodNeeds, "{}"},
		{dialect.MethodSwarmList, "{}"}, {dialect.MethodDocumentsList, "{}"},
		{dialect.MethodDocumentsEdit, `{"name":"plan","edits":[{"op":"append","path":["notes"],"text":"hi"}]}`}, {dialect.MethodTaskGet, `{"id":"none"}`},
	}
	var task dialect.Task
	for _, a := range answers {
		text := call(a.method, a.params)
		pointer := "/components/schemas/response." + strings.ReplaceAll(a.method, "/", ".")
		var answer struct {
			Error  json.RawMessage
			Result json.RawMessage
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			t.Fatal(err)
		}
		if answer.Error != nil {
			pointer = "/components/schemas/Error"
		}
		d.validate(t, a.method, pointer, text)
		if a.method == dialect.MethodSend {
			if err := json.Unmarshal(answer.Result, &task); err != nil || task.ID == "" {
				t.Fatalf("%v in %s", err, text)
			}
			d.validate(t, "the request", "/components/schemas/request.message.send", fmt.Appendf(nil, `{"jsonrpc":"2.0","id":7,"method":"message/send","params":%s}`, message))
		}
	}
	d.checkMethods(t, call)
	d.checkPaths(t, base, task.ID)
	http.DefaultClient.CloseIdleConnections()
}

// checkMethods checks that the hub has the described methods, and on HTTP none of the socket.
func (d described) checkMethods(t *testing.T, call func(method, params string) []byte) {
	t.Helper()
	for _, method := range []string{dialect.MethodShutdown, dialect.MethodBusJoin, dialect.MethodSessionsList, dialect.MethodWorktree} {
		if text := string(call(method, "{}")); !strings.Contains(text, "METHOD_NOT_FOUND") || d.Components.Schemas["request."+strings.ReplaceAll(method, "/", ".")] != nil {
			t.Errorf("%s is on HTTP, or described there: %s", method, text)
		}
	}
	methods := 0
	for name := range d.Components.Schemas {
		method, ok := strings.CutPrefix(name, "request.")
		if method = strings.ReplaceAll(method, ".", "/"); !ok || method == dialect.MethodEvents {
			continue
		}
		methods++
		if text := string(call(method, `{"id":"none"}`)); strings.Contains(text, "METHOD_NOT_FOUND") {
			t.Errorf("the hub has no method %s", method)
		}
	}
	if methods < 20 {
		t.Errorf("only %d methods are described", methods)
	}
}

// checkPaths checks that the hub has the described paths.
func (d described) checkPaths(t *testing.T, base, task string) {
	t.Helper()
	for path, p := range d.Paths {
		if p.Get == nil {
			continue
		}
		id := "echo"
		if strings.HasPrefix(path, "/tasks/") {
			id = task
		}
		url := base + strings.ReplaceAll(path, "{id}", id)
		if path == "/events" {
			url += "?follow=false"
		}
		status, kind, text := get(t, "GET", url, "")
		if _, ok := p.Get.Responses["200"].Content[kind]; status != 200 || !ok {
			t.Errorf("%s: %d, %s", path, status, kind)
			continue
		}
		if kind == "application/json" {
			d.validate(t, path, "/paths/"+strings.ReplaceAll(strings.ReplaceAll(path, "~", "~0"), "/", "~1")+"/get/responses/200/content/application~1json/schema", text)
		}
	}
}
