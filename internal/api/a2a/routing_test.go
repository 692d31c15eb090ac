package a2a_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// agentOf returns the agent that ran the task of a result.
func agentOf(t *testing.T, result json.RawMessage) string {
	t.Helper()
	var sent struct {
		Task     a2a.Task
		Metadata map[string]any
	}
	if err := json.Unmarshal(result, &sent); err != nil {
		t.Fatalf("%s: %v", result, err)
	}
	if sent.Metadata != nil { // 0.3: the task itself
		return fmt.Sprint(sent.Metadata[hub.MetaAgent])
	}
	return fmt.Sprint(sent.Task.Metadata[hub.MetaAgent])
}

func TestAgentIsFoundByPathThenTenantThenMetadata(t *testing.T) {
	r := newRig(t)
	with := func(key string, v any) map[string]any {
		p := message10("hello")
		p[key] = v
		return p
	}
	target := func(id string) map[string]any { return map[string]any{"targetAgent": id} }
	inMessage := message10("hello", func(m map[string]any) { m["metadata"] = target("two") })
	old := message03("hello")
	old["metadata"] = target("two")
	both := with("tenant", "two")
	both["metadata"] = target("one")
	tests := []struct {
		name, path, method string
		params             any
		agent              string
	}{
		{"path", "/agents/two/a2a", "SendMessage", message10("hello"), "two"},
		{"path before tenant", one, "SendMessage", with("tenant", "two"), "one"},
		{"tenant", "/a2a", "SendMessage", with("tenant", "two"), "two"},
		{"tenant before metadata", "/a2a", "SendMessage", both, "two"},
		{"metadata of the request", "/a2a", "SendMessage", with("metadata", target("two")), "two"},
		{"metadata of the message", "/a2a", "SendMessage", inMessage, "two"},
		{"metadata in 0.3", "/a2a", "message/send", old, "two"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := r.call(tt.path, tt.method, tt.params)
			if got.Error != nil {
				t.Fatalf("%+v", got.Error)
			}
			if agent := agentOf(t, got.Result); agent != tt.agent {
				t.Errorf("answered by %s, want %s", agent, tt.agent)
			}
		})
	}
	for _, params := range []any{message10("hello"), with("tenant", "nobody")} {
		if got := r.call("/a2a", "SendMessage", params); got.Error == nil || got.Error.Code != -32602 {
			t.Errorf("without an agent: %s %+v", got.Result, got.Error)
		}
	}
	task := r.taskOf("two", "ask")
	if got := r.call("/a2a", "SendMessage", message10("go on", onTask(task.ID))); agentOf(t, got.Result) != "two" {
		t.Errorf("the task's agent was not found: %s", got.Result)
	}
}

func TestDefaultAgentAnswersRequestsWithoutAnAgent(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.DefaultAgent = "two" })
	if got := r.call("/a2a", "SendMessage", message10("hello")); agentOf(t, got.Result) != "two" {
		t.Errorf("%s", got.Result)
	}
	task := r.task("ask")
	if got := r.call("/a2a", "SendMessage", message10("go on", onTask(task.ID))); agentOf(t, got.Result) != "one" {
		t.Errorf("the default agent answered instead of the task's: %s %+v", got.Result, got.Error)
	}
}

func TestTasksOfAnotherAgentAreNotFound(t *testing.T) {
	r := newRig(t)
	task := r.taskOf("two", "ask")
	id := map[string]any{"id": task.ID}
	config := map[string]any{"taskId": task.ID, "id": "c", "url": "https://example.com"}
	for method, params := range map[string]any{
		"GetTask": id, "CancelTask": id, "SubscribeToTask": id,
		"SendMessage": message10("x", onTask(task.ID)), "SendStreamingMessage": message10("x", onTask(task.ID)),
		"CreateTaskPushNotificationConfig": config, "GetTaskPushNotificationConfig": config,
		"ListTaskPushNotificationConfigs": config, "DeleteTaskPushNotificationConfig": config,
	} {
		if got := r.call(one, method, params); got.Error == nil || got.Error.Code != -32001 {
			t.Errorf("%s: %s %+v", method, got.Result, got.Error)
		}
	}
	for path, want := range map[string]int{one: 0, "/agents/two/a2a": 1, "/a2a": 1} {
		var page a2a.ListTasksResponse
		if err := json.Unmarshal(r.call(path, "ListTasks", nil).Result, &page); err != nil || page.TotalSize != want {
			t.Errorf("%s lists %d, want %d (%v)", path, page.TotalSize, want, err)
		}
	}
}

// A client may write an agent's name as the commands do; the card says the address with the id.
func TestAPathNamesAnAgentAsTheCommandsDo(t *testing.T) {
	r := newRig(t)
	at := func(id, folder string) hub.Agent {
		return hub.Agent{Definition: runner.Definition{ID: id, Driver: runner.DriverSession}, Runner: scripted{r.gate},
			Residence: hub.Residence{Kind: hub.KindSession, Handle: "reviewer", Folder: folder}}
	}
	for _, a := range []hub.Agent{at("claude-1", "shop"), at("claude-2", "blog")} {
		if err := r.hub.Register(a); err != nil {
			t.Fatal(err)
		}
	}
	for path, call := range map[string]struct{ method, params any }{
		"/agents/reviewer.blog/a2a": {"SendMessage", message10("hello")}, "/agents/Reviewer.Blog/a2a": {"message/send", message03("hello")},
	} {
		if got := r.call(path, call.method.(string), call.params); got.Error != nil || agentOf(t, got.Result) != "claude-2" {
			t.Errorf("%s: %s %+v", path, got.Result, got.Error)
		}
	}
	for _, path := range []string{"/agents/reviewer.shop/.well-known/agent-card.json", "/agents/reviewer.shop/a2a/.well-known/agent.json"} {
		if a := r.do(http.MethodGet, path, ""); a.status != http.StatusOK || !strings.Contains(string(a.body), r.http.URL+"/agents/claude-1/a2a") {
			t.Errorf("%s: HTTP %d %s", path, a.status, a.body)
		}
	}
	for _, path := range []string{"/agents/reviewer/a2a/tasks", "/agents/reviewer/a2a/.well-known/agent.json"} {
		if a := r.do(http.MethodGet, path, ""); a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "reviewer.shop, reviewer.blog") {
			t.Errorf("an ambiguous name, %s: HTTP %d %s", path, a.status, a.body)
		}
	}
	if got := r.call("/agents/reviewer/a2a", "SendMessage", message10("hello")); got.Error == nil || got.Error.Code != -32602 {
		t.Errorf("an ambiguous name: %s %+v", got.Result, got.Error)
	}
}

func TestUnknownAgentIsNotFound(t *testing.T) {
	r := newRig(t)
	if a := r.do(http.MethodPost, "/agents/nobody/a2a", `{"jsonrpc":"2.0","id":1,"method":"ListTasks"}`); a.status != http.StatusNotFound || a.rpc(t).Error == nil {
		t.Errorf("HTTP %d %s", a.status, a.body)
	}
	for _, path := range []string{"/agents/nobody/a2a/tasks", "/agents/nobody/a2a/.well-known/agent-card.json", "/agents/%2e%2e/a2a/tasks"} {
		if a := r.do(http.MethodGet, path, ""); a.status != http.StatusNotFound {
			t.Errorf("%s: HTTP %d %s", path, a.status, a.body)
		}
	}
}

func TestVersionNegotiation(t *testing.T) {
	r := newRig(t)
	rpc := func(method string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"id":"none"}}`
	}
	tests := []struct {
		name, path, body, version string
		code                      int
	}{
		{"1.0 by method", one, rpc("GetTask"), "", -32001},
		{"0.3 by method", one, rpc("tasks/get"), "", -32001},
		{"1.0 by header", one, rpc("GetTask"), "1.0", -32001},
		{"patch number", one, rpc("GetTask"), "1.0.2", -32001},
		{"0.3 by header", one, rpc("tasks/get"), "0.3", -32001},
		{"by query", one + "?A2A-Version=0.3", rpc("tasks/get"), "", -32001},
		{"method of another version", one, rpc("tasks/get"), "1.0", -32601},
		{"method of another version", one, rpc("GetTask"), "0.3", -32601},
		{"unknown version", one, rpc("GetTask"), "99.0", -32009},
		{"unknown version by query", one + "?A2A-Version=0.5", rpc("GetTask"), "", -32009},
		{"nonsense", one, rpc("GetTask"), "one", -32009},
		{"1", one, rpc("GetTask"), "1", -32009},
	}
	for _, tt := range tests {
		t.Run(tt.name+" "+tt.version, func(t *testing.T) {
			got := r.do(http.MethodPost, tt.path, tt.body, "A2A-Version", tt.version).rpc(t)
			if got.Error == nil || got.Error.Code != tt.code {
				t.Errorf("%+v, want %d", got.Error, tt.code)
			}
		})
	}
	for path, version := range map[string]string{"/tasks": "99.0", "/tasks?A2A-Version=2.0": "", "/v1/tasks": "1.0"} {
		if a := r.do(http.MethodGet, one+path, "", "A2A-Version", version); a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "VERSION_NOT_SUPPORTED") {
			t.Errorf("%s %s: HTTP %d %s", path, version, a.status, a.body)
		}
	}
}

func TestCardsOfBothVersions(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.GRPCAddress = "127.0.0.1:9"; o.TokenRequired = true })
	get := func(path string, header ...string) (a answer, card map[string]any) {
		a = r.do(http.MethodGet, path, "", header...)
		if a.status != http.StatusOK {
			t.Fatalf("%s: HTTP %d %s", path, a.status, a.body)
		}
		if err := json.Unmarshal(a.body, &card); err != nil {
			t.Fatal(err)
		}
		return a, card
	}
	a, pure := get(one + "/.well-known/agent-card.json")
	if _, union := pure["url"]; union {
		t.Error("the agent's card has members that are not of 1.0")
	}
	first := pure["supportedInterfaces"].([]any)[0].(map[string]any)
	if first["url"] != r.http.URL+one || first["protocolVersion"] != "1.0" || first["protocolBinding"] != "JSONRPC" {
		t.Errorf("first interface %v", first)
	}
	if !strings.Contains(string(a.body), `"GRPC"`) || !strings.Contains(string(a.body), `"bearer"`) {
		t.Errorf("gRPC or the token is missing: %s", a.body)
	}
	for path, header := range map[string][]string{
		"/.well-known/agent-card.json":            nil,
		one + "/.well-known/agent.json":           nil,
		one + "/.well-known/agent-card.json":      {"A2A-Version", "0.3"},
		"/a2a/.well-known/agent-card.json?":       {"A2A-Version", "0.3.0"},
		"/.well-known/agent-card.json?x=y":        {"A2A-Version", "1.0"},
		"/a2a/.well-known/agent.json?A=B":         nil,
		"/agents/one/.well-known/agent-card.json": nil,
		"/agents/one/.well-known/agent.json":      nil,
		"/.well-known/agent-card.json?A=B&C=D":    {"Accept", "application/json"},
	} {
		_, union := get(path, header...)
		if union["url"] == nil || union["supportedInterfaces"] == nil || union["protocolVersion"] != "0.3" || union["preferredTransport"] != "JSONRPC" {
			t.Errorf("%s is not a card of both versions: %v", path, union)
		}
	}
	_, hubCard := get("/.well-known/agent-card.json")
	if skills := hubCard["skills"].([]any); len(skills) != 2 {
		t.Errorf("the hub's card lists %d agents", len(skills))
	}
}

// The card beside an agent's address is the one below it that is for clients of both versions.
func TestCardsBesideAndBelowTheAddressAreTheSame(t *testing.T) {
	r := newRig(t)
	below := r.do(http.MethodGet, one+"/.well-known/agent.json", "")
	beside := r.do(http.MethodGet, "/agents/one/.well-known/agent-card.json", "")
	if beside.status != http.StatusOK || !bytes.Equal(beside.body, below.body) || beside.header.Get("ETag") != below.header.Get("ETag") ||
		beside.header.Get("Cache-Control") != below.header.Get("Cache-Control") || beside.header.Get("Vary") != below.header.Get("Vary") {
		t.Errorf("%v %s, want %v %s", beside.header, beside.body, below.header, below.body)
	}
	for _, path := range []string{"/agents/none/.well-known/agent-card.json", "/agents/none/a2a/.well-known/agent-card.json", "/agents/none/.well-known/agent.json"} {
		if a := r.do(http.MethodGet, path, ""); a.status != http.StatusNotFound || !strings.Contains(string(a.body), "AGENT_NOT_FOUND") || !strings.Contains(string(a.body), `\"none\"`) {
			t.Errorf("%s: HTTP %d %s", path, a.status, a.body)
		}
	}
}

// Where calls need a token, everybody may read the hub's card: it does not name the agents of paired hubs.
func TestThePublicCardNamesNoAgentsOfOtherHubs(t *testing.T) {
	for _, token := range []bool{false, true} {
		r := newRig(t, func(o *a2aserver.Options) { o.TokenRequired = token })
		far := hub.Agent{Definition: runner.Definition{ID: "far", Name: "Far", Driver: runner.DriverPeer, Limits: runner.Limits{Concurrency: 1}}, Runner: scripted{r.gate}}
		if err := r.hub.Register(far); err != nil {
			t.Fatal(err)
		}
		public := r.do(http.MethodGet, "/.well-known/agent-card.json", "")
		if strings.Contains(string(public.body), `"far"`) == token {
			t.Errorf("token %t: %s", token, public.body)
		}
		if extended := r.call("/a2a", "GetExtendedAgentCard", nil); strings.Contains(string(extended.Result), `"far"`) != token {
			t.Errorf("token %t: %s %+v", token, extended.Result, extended.Error)
		}
		cards := dialect.Directory{Agents: r.hub, BaseURL: func() string { return "" }, Token: token}
		for id, want := range map[string]bool{"": true, "one": true, "far": false, "none": false} {
			if cards.Public(id) != want {
				t.Errorf("the card of %q is public: %t", id, !want)
			}
		}
		if skills := cards.HubCard(t.Context()).Skills; (len(skills) == 2) != token {
			t.Errorf("token %t: %+v", token, skills)
		}
	}
}

func TestCardPath(t *testing.T) {
	for path, want := range map[string]string{
		"/.well-known/agent-card.json":                "hub",
		"/a2a/.well-known/agent-card.json":            "hub",
		"/a2a/.well-known/agent.json":                 "hub",
		"/agents/one/.well-known/agent-card.json":     "one",
		"/agents/one/.well-known/agent.json":          "one",
		"/agents/one/a2a/.well-known/agent-card.json": "one",
		"/agents/one/a2a/.well-known/agent.json":      "one",
		"/agents/a2a/.well-known/agent.json":          "a2a",
		"/.well-known/agent.json":                     "no card",
		"/agents//.well-known/agent-card.json":        "no card",
		"/agents/one/x/.well-known/agent-card.json":   "no card",
		"/agents/one/a2a/x/.well-known/agent.json":    "no card",
		"/a2a/tasks/.well-known/agent-card.json":      "no card",
		"/x/.well-known/agent-card.json":              "no card",
		"/agents/one/a2a/extendedAgentCard":           "no card",
		"/agents/one/a2a":                             "no card",
		"":                                            "no card",
	} {
		agent, ok := a2aserver.CardPath(path)
		got := cmp.Or(agent, "hub")
		if !ok {
			got = "no card"
		}
		if got != want {
			t.Errorf("%s is of %s, want %s", path, got, want)
		}
	}
}

func TestErrorsOfJSONRPCHaveTheRequestsID(t *testing.T) {
	r := newRig(t)
	call := `{"jsonrpc":"2.0","id":"a-1","method":"SendMessage","params":{}}`
	for _, tt := range []struct {
		name, path, mediaType, body string
		status                      int
		id                          string
	}{
		{"unknown agent", "/agents/none/a2a", "application/json", call, 404, `"a-1"`},
		{"unknown agent, a number", "/agents/none/a2a", "application/json", `{"jsonrpc":"2.0","id":12345678901234567890,"method":"x"}`, 404, "12345678901234567890"},
		{"unknown agent, no request", "/agents/none/a2a", "application/json", "{", 404, "null"},
		{"media type", one, "text/plain", call, 415, `"a-1"`},
		{"unknown method", one, "application/json", strings.Replace(call, "SendMessage", "Nope", 1), 200, `"a-1"`},
		{"invalid parameters", one, "application/json", call, 200, `"a-1"`},
		{"no version", one, "application/json", strings.Replace(call, "2.0", "1.0", 1), 200, `"a-1"`},
	} {
		a := r.do(http.MethodPost, tt.path, tt.body, "Content-Type", tt.mediaType)
		var got struct {
			ID    json.RawMessage
			Error json.RawMessage
		}
		if err := json.Unmarshal(a.body, &got); err != nil || a.status != tt.status || string(got.ID) != tt.id || got.Error == nil {
			t.Errorf("%s: HTTP %d %s, want %d and id %s", tt.name, a.status, a.body, tt.status, tt.id)
		}
	}
}

func TestCardsCanBeCached(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/.well-known/agent-card.json", one + "/.well-known/agent-card.json", "/agents/one/.well-known/agent-card.json"} {
		a := r.do(http.MethodGet, path, "")
		tag := a.header.Get("ETag")
		if tag == "" || !strings.Contains(a.header.Get("Cache-Control"), "max-age=") || a.header.Get("Last-Modified") == "" {
			t.Errorf("%s: %v", path, a.header)
		}
		if again := r.do(http.MethodGet, path, "", "If-None-Match", tag); again.status != http.StatusNotModified || len(again.body) != 0 {
			t.Errorf("%s: HTTP %d", path, again.status)
		}
		if head := r.do(http.MethodHead, path, ""); head.status != http.StatusOK || head.header.Get("ETag") != tag {
			t.Errorf("%s: HEAD %d", path, head.status)
		}
		if post := r.do(http.MethodPost, path, "{}"); post.status != http.StatusMethodNotAllowed {
			t.Errorf("%s: POST %d", path, post.status)
		}
		if v := r.do(http.MethodGet, path, "", "A2A-Version", "7.0"); v.status != http.StatusBadRequest {
			t.Errorf("%s: version 7.0 gives %d", path, v.status)
		}
	}
}

func TestConfiguredBaseURLIsInTheCards(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.BaseURL = "https://hub.example.org" })
	a := r.do(http.MethodGet, one+"/.well-known/agent-card.json", "")
	if !strings.Contains(string(a.body), `"https://hub.example.org/agents/one/a2a"`) || strings.Contains(string(a.body), r.http.URL) {
		t.Errorf("%s", a.body)
	}
}

func TestExtendedCardNeedsAToken(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.TokenRequired = true })
	if got := r.call(one, "GetExtendedAgentCard", nil); !strings.Contains(string(got.Result), `"urn:parley:agent"`) || !strings.Contains(string(got.Result), `"driver":"echo"`) {
		t.Errorf("%s %+v", got.Result, got.Error)
	}
	if got := r.call("/a2a", "GetExtendedAgentCard", map[string]any{"tenant": "one"}); !strings.Contains(string(got.Result), `"urn:parley:agent"`) {
		t.Errorf("tenant: %s %+v", got.Result, got.Error)
	}
	if got := r.call("/a2a", "GetExtendedAgentCard", nil); !strings.Contains(string(got.Result), `"tenant":"two"`) || !strings.Contains(string(got.Result), `"one/go"`) {
		t.Errorf("hub: %s %+v", got.Result, got.Error)
	}
	if got := r.call("/a2a", "GetExtendedAgentCard", map[string]any{"tenant": "none"}); got.Error == nil || got.Error.Code != -32602 {
		t.Errorf("unknown tenant: %s", got.Result)
	}
	if got := r.call(one, "agent/getAuthenticatedExtendedCard", nil); !strings.Contains(string(got.Result), `"protocolVersion":"0.3.0"`) || strings.Contains(string(got.Result), "supportedInterfaces") {
		t.Errorf("0.3: %s %+v", got.Result, got.Error)
	}
	for path, want := range map[string]string{"/extendedAgentCard": `"urn:parley:agent"`, "/v1/card": `"protocolVersion"`} {
		if a := r.do(http.MethodGet, one+path, ""); a.status != http.StatusOK || !strings.Contains(string(a.body), want) {
			t.Errorf("%s: HTTP %d %s", path, a.status, a.body)
		}
	}
}
