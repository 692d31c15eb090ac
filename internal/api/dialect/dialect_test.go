package dialect_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/testbed"
)

var update = flag.Bool("update", false, "write the golden files anew")

// call runs one request through JSON-RPC and returns the answer and the events.
func call(t testing.TB, s *dialect.Service, request string) (answer string, events []string) {
	t.Helper()
	d := &jsonrpc.Dispatcher{Handler: s, Log: slog.New(slog.DiscardHandler)}
	emit := func(event any) error {
		text, err := json.Marshal(event)
		events = append(events, string(text))
		return err
	}
	return string(d.Serve(t.Context(), jsonrpc.Decode([]byte(request), jsonrpc.Limits{}), emit)), events
}

func method(name, params string) string {
	return `{"jsonrpc":"2.0","method":"` + name + `","params":` + params + `,"id":"1"}`
}

// volatile matches the members that differ between runs.
var volatile = regexp.MustCompile(`"(uptime|pid)":[0-9]+|"startedAt":"[^"]+"`)

func golden(t *testing.T, name, got string) {
	t.Helper()
	got = volatile.ReplaceAllStringFunc(got, func(s string) string { return s[:strings.Index(s, ":")] + `:0` })
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, []byte(got), "", "  "); err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	pretty.WriteByte('\n')
	path := filepath.Join("testdata", name+".json")
	if *update {
		if err := os.WriteFile(path, pretty.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), pretty.String()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// Sends the specification's example request of each method. The golden files have every
// member of the specification's answers.
// HUB-RPC-STATUS, HUB-RPC-AGENTS-LIST, HUB-RPC-AGENTS-GET, HUB-RPC-AGENTS-HEALTH, HUB-RPC-TASKS-LIST,
// HUB-RPC-CONTEXTS-LIST, HUB-RPC-MESSAGE-SEND, HUB-RPC-TASKS-GET, HUB-RPC-TASKS-CANCEL,
// HUB-TYPE-HEALTH.
func TestTheSpecificationsExamples(t *testing.T) {
	page := hub.TaskPage{Tasks: []*a2a.Task{specTask()}, Total: 41, NextCursor: "next"}
	tests := []struct{ name, request string }{
		{"hub-status", `{"jsonrpc":"2.0","method":"hub/status","params":{},"id":"1"}`},
		{"hub-agents-list", `{"jsonrpc":"2.0","method":"hub/agents/list","params":{"includeHealth":true},"id":"2"}`},
		{"hub-agents-list-without-health", `{"jsonrpc":"2.0","method":"hub/agents/list","id":"2"}`},
		{"hub-agents-get", `{"jsonrpc":"2.0","method":"hub/agents/get","params":{"agentId":"claude-code"},"id":"3"}`},
		{"hub-agents-health", `{"jsonrpc":"2.0","method":"hub/agents/health","params":{"agentId":"claude-code"},"id":"4"}`},
		{"hub-agents-health-unknown", `{"jsonrpc":"2.0","method":"hub/agents/health","params":{"agentId":"vibe"},"id":"4"}`},
		{"hub-tasks-list", `{"jsonrpc":"2.0","method":"hub/tasks/list","params":{"contextId":"optional-context-id","state":"completed","limit":20,"offset":0},"id":"5"}`},
		{"hub-tasks-page", `{"jsonrpc":"2.0","method":"hub/tasks/page","params":{"cursor":"","limit":20},"id":"5"}`},
		{"hub-contexts-list", `{"jsonrpc":"2.0","method":"hub/contexts/list","params":{"limit":10},"id":"6"}`},
		{"message-send", `{"jsonrpc":"2.0","method":"message/send","params":{"message":{"kind":"message","messageId":"msg-123","role":"user","parts":[{"kind":"text","text":"Write a hello world function in Python"}],"contextId":"optional-context-id","metadata":{"targetAgent":"claude-code"}},"configuration":{"historyLength":10}},"id":"7"}`},
		{"tasks-get", `{"jsonrpc":"2.0","method":"tasks/get","params":{"id":"task-456"},"id":"8"}`},
		{"tasks-cancel", `{"jsonrpc":"2.0","method":"tasks/cancel","params":{"id":"task-456"},"id":"9"}`},
		{"hub-shutdown", `{"jsonrpc":"2.0","method":"hub/shutdown","id":"10"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			stopped := false
			s := newService(&fakeHub{task: specTask(), page: page}, func(c *dialect.Config) {
				c.Bus = func() dialect.BusStatus { return dialect.BusStatus{Mode: "commit", Embedded: true} }
				c.Shutdown = func() { stopped = true }
			})
			answer, _ := call(t, s, tt.request)
			golden(t, tt.name, answer)
			if stopped != (tt.name == "hub-shutdown") {
				t.Errorf("stopped: %t", stopped)
			}
		})
	}
}

func TestOnlyServicesWithNamesFindAndRenameAgents(t *testing.T) {
	h := &fakeHub{}
	s := newService(h, func(c *dialect.Config) { c.Names = h })
	var got struct{ Result dialect.Agent }
	answer, _ := call(t, s, method("hub/agents/find", `{"name":"reviewer@office","projectId":"p1"}`))
	if err := json.Unmarshal([]byte(answer), &got); err != nil || got.Result.ID != "claude-code" || got.Result.Working.TaskID != "task-456" || got.Result.Health == nil {
		t.Errorf("found %s", answer)
	}
	answer, _ = call(t, s, method("hub/agents/find", `{"name":"nobody"}`))
	wantError(t, answer, dialect.CodeAgentNotFound, "AGENT_NOT_FOUND", "")
	if answer, _ = call(t, s, method("hub/agents/rename", `{"agentId":"claude-code","name":"max"}`)); h.how != "RenameAgent claude-code max" {
		t.Errorf("renamed: %q, %s", h.how, answer)
	}
	h.err = &hub.Error{Code: hub.CodeUnsupported, Message: "not a session"}
	answer, _ = call(t, s, method("hub/agents/rename", `{"agentId":"claude-code"}`))
	wantError(t, answer, dialect.CodeUnsupportedOperation, "UNSUPPORTED_OPERATION", "")
	for _, name := range []string{"hub/agents/find", "hub/agents/rename"} {
		answer, _ := call(t, newService(&fakeHub{}), method(name, `{"name":"a","agentId":"a"}`))
		wantError(t, answer, -32601, "METHOD_NOT_FOUND", "")
	}
}

func TestAListWithoutCards(t *testing.T) {
	answer, _ := call(t, newService(&fakeHub{}), method("hub/agents/list", `{"includeCards":false}`))
	if !strings.Contains(answer, `"address":"claude-code"`) || strings.Contains(answer, `"card"`) {
		t.Error(answer)
	}
}

// manyAgents is a hub with 10,000 agents.
type manyAgents struct {
	fakeHub
	list []hub.AgentInfo
}

func (h *manyAgents) AgentsFor(context.Context) []hub.AgentInfo { return h.list }

func BenchmarkAgentsList(b *testing.B) {
	h := &manyAgents{}
	for i := range 10_000 {
		h.list = append(h.list, hub.AgentInfo{
			Definition: &runner.Definition{ID: fmt.Sprintf("agent-%d", i), Name: "reviewer", Description: "An open session (reviewer) that a person works in.", Driver: "session"},
			Residence:  hub.Residence{Kind: hub.KindSession, Handle: fmt.Sprintf("reviewer-%d", i), Folder: "shop", Project: "0123456789abcdef", Computer: "office"},
			Since:      epoch, RegisteredAt: epoch, State: hub.AgentIdle,
		})
	}
	for name, params := range map[string]string{"cards": "{}", "without cards": `{"includeCards":false}`} {
		b.Run(name, func(b *testing.B) {
			s := newService(&h.fakeHub, func(c *dialect.Config) { c.Hub, c.Cards.Agents = h, h })
			var req jsonrpc.Request
			if err := json.Unmarshal([]byte(method("hub/agents/list", params)), &req); err != nil {
				b.Fatal(err)
			}
			testbed.ReportP95(b, func() {
				result, err := s.Handle(b.Context(), req, nil)
				if err != nil {
					b.Fatal(err)
				}
				data, err := json.Marshal(result)
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(data)))
			})
		})
	}
}

func TestUptimeIsInMilliseconds(t *testing.T) {
	answer, _ := call(t, newService(&fakeHub{}), method("hub/status", "{}"))
	var got struct{ Result dialect.Status }
	if err := json.Unmarshal([]byte(answer), &got); err != nil {
		t.Fatal(err)
	}
	if got.Result.Uptime < 12345 || got.Result.Uptime > 12345+60_000 {
		t.Errorf("uptime %d", got.Result.Uptime)
	}
}

// HUB-RPC-DISPATCH.
func TestShutdownMethodNeedsAShutdownFunction(t *testing.T) {
	answer, _ := call(t, newService(&fakeHub{}), method("hub/shutdown", "{}"))
	wantError(t, answer, -32601, "METHOD_NOT_FOUND", "")
}

func TestDrainSaysWhatItWouldInterrupt(t *testing.T) {
	busy := 2
	service := func() *dialect.Service {
		return newService(&fakeHub{}, func(c *dialect.Config) { c.Drain = func() int { return busy } })
	}
	if answer, _ := call(t, service(), method("hub/drain", "{}")); !strings.Contains(answer, `{"status":"busy","activeTasks":2}`) {
		t.Error(answer)
	}
	busy = 0
	if answer, _ := call(t, service(), method("hub/drain", "{}")); !strings.Contains(answer, `{"status":"stopping"}`) {
		t.Error(answer)
	}
}

func wantError(t testing.TB, answer string, code int, name, field string) {
	t.Helper()
	var response jsonrpc.Response
	if err := json.Unmarshal([]byte(answer), &response); err != nil || response.Error == nil {
		t.Errorf("no error: %s (%v)", answer, err)
		return
	}
	details := response.Error.Details()
	if response.Error.Code != code || details.Code != name || details.Field != field {
		t.Errorf("got %s\nwant %d %s field %q", answer, code, name, field)
	}
}

// Every error of the hub has the specification's code, name, field and remedy. Internal
// errors have no details.
// HUB-ERROR-CODES.
func TestErrorCodes(t *testing.T) {
	tests := []struct {
		err   error
		code  int
		name  string
		field string
	}{
		{&hub.Error{Code: hub.CodeInvalid, Subject: "message.contextId", Message: "bad"}, -32602, "INVALID_PARAMS", "message.contextId"},
		{&hub.Error{Code: hub.CodeTaskNotFound, Message: "no"}, -32001, "TASK_NOT_FOUND", ""},
		{&hub.Error{Code: hub.CodeNotCancelable, Message: "no"}, -32002, "TASK_NOT_CANCELABLE", ""},
		{&hub.Error{Code: hub.CodeAgentNotFound, Message: "no"}, -32003, "AGENT_NOT_FOUND", ""},
		{&hub.Error{Code: hub.CodeUnavailable, Message: "no"}, -32004, "AGENT_UNAVAILABLE", ""},
		{&hub.Error{Code: hub.CodeUnsupported, Message: "no"}, -32005, "UNSUPPORTED_OPERATION", ""},
		{&hub.Error{Code: hub.CodeAuth, Message: "no"}, -32006, "AUTHENTICATION_ERROR", ""},
		{&hub.Error{Code: hub.CodeTimeout, Message: "no"}, -32007, "TIMEOUT_ERROR", ""},
		{&hub.Error{Code: hub.CodeContextNotFound, Message: "no"}, -32008, "CONTEXT_NOT_FOUND", ""},
		{&hub.Error{Code: hub.CodeInternal, Message: "secret"}, -32603, "INTERNAL_ERROR", ""},
		{errors.New("secret"), -32603, "INTERNAL_ERROR", ""},
		{fmt.Errorf("while waiting: %w", context.DeadlineExceeded), -32007, "TIMEOUT_ERROR", ""},
		{context.Canceled, -32004, "AGENT_UNAVAILABLE", ""},
	}
	requests := []string{
		method("tasks/get", `{"id":"t"}`), method("tasks/cancel", `{"id":"t"}`), method("tasks/resubscribe", `{"id":"t"}`),
		method("hub/tasks/list", `{}`), method("hub/tasks/page", `{}`), method("hub/contexts/list", `{}`),
		method("message/send", send(`{}`)), method("message/stream", send(`{}`)),
	}
	for _, tt := range tests {
		for _, request := range requests {
			answer, events := call(t, newService(&fakeHub{err: tt.err}), request)
			wantError(t, answer, tt.code, tt.name, tt.field)
			if strings.Contains(answer, "secret") || len(events) > 0 {
				t.Errorf("%s, events %s", answer, events)
			}
		}
	}
	for _, name := range []string{"hub/agents/get", "hub/agents/health"} {
		answer, _ := call(t, newService(&fakeHub{}), method(name, `{"agentId":"nobody"}`))
		wantError(t, answer, -32003, "AGENT_NOT_FOUND", "")
		if !strings.Contains(answer, `"remedy":"see parley agents"`) {
			t.Error(answer)
		}
	}
}

// send returns the parameters of message/send with a valid message in which the members
// of change replace others.
func send(change string) string {
	return override(`{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}],"metadata":{"targetAgent":"echo"}}`, change, func(message string) string {
		return `{"message":` + message + `}`
	})
}

func override(base, change string, wrap func(string) string) string {
	var members, changes map[string]json.RawMessage
	if json.Unmarshal([]byte(base), &members) != nil || json.Unmarshal([]byte(change), &changes) != nil {
		panic("a test's JSON is wrong: " + change)
	}
	for name, value := range changes {
		members[name] = value
		if string(value) == `"DELETE"` {
			delete(members, name)
		}
	}
	text, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	return wrap(string(text))
}

// HUB-RPC-VALIDATION.
func TestInvalidParametersAreNamed(t *testing.T) {
	long := strings.Repeat("x", 300)
	part := func(p string) string { return send(`{"parts":[{"kind":"text","text":"ok"},` + p + `]}`) }
	config := func(c string) string { return send(`{}`)[:len(send(`{}`))-1] + `,"configuration":` + c + `}` }
	tests := []struct{ method, params, field string }{
		{"message/send", `{}`, "message"},
		{"message/send", `[]`, ""},
		{"message/send", `{"message":"hi"}`, "message"},
		{"message/send", `{"message":null}`, "message"},
		{"message/send", `{"Message":{}}`, "message"},
		{"message/send", send(`{"kind":"DELETE"}`), "message.kind"},
		{"message/send", send(`{"kind":"task"}`), "message.kind"},
		{"message/send", send(`{"messageId":"DELETE"}`), "message.messageId"},
		{"message/send", send(`{"messageId":""}`), "message.messageId"},
		{"message/send", send(`{"messageId":7}`), "message.messageId"},
		{"message/send", send(`{"messageId":"` + long + `"}`), "message.messageId"},
		{"message/send", send(`{"role":"DELETE"}`), "message.role"},
		{"message/send", send(`{"role":"agent"}`), "message.role"},
		{"message/send", send(`{"role":"USER"}`), "message.role"},
		{"message/send", send(`{"contextId":5}`), "message.contextId"},
		{"message/send", send(`{"contextId":"` + long + `"}`), "message.contextId"},
		{"message/send", send(`{"taskId":{}}`), "message.taskId"},
		{"message/send", send(`{"metadata":[]}`), "message.metadata"},
		{"message/send", send(`{"metadata":{"x":"` + strings.Repeat("y", 70<<10) + `"}}`), "message.metadata"},
		{"message/send", send(`{"metadata":"DELETE"}`), "message.metadata.targetAgent"},
		{"message/send", send(`{"metadata":{}}`), "message.metadata.targetAgent"},
		{"message/send", send(`{"metadata":{"targetAgent":""}}`), "message.metadata.targetAgent"},
		{"message/send", send(`{"metadata":{"targetAgent":5}}`), "message.metadata.targetAgent"},
		{"message/send", send(`{"metadata":{"targetAgent":"` + long + `"}}`), "message.metadata.targetAgent"},
		{"message/send", send(`{}`)[:len(send(`{}`))-1] + `,"metadata":{"targetAgent":[]}}`, "metadata.targetAgent"},
		{"message/send", send(`{"extensions":"x"}`), "message.extensions"},
		{"message/send", send(`{"extensions":["a",1]}`), "message.extensions[1]"},
		{"message/send", send(`{"extensions":["` + strings.Repeat("x", 9000) + `"]}`), "message.extensions[0]"},
		{"message/send", send(`{"referenceTaskIds":[` + strings.Repeat(`"a",`, 64) + `"a"]}`), "message.referenceTaskIds"},
		{"message/send", send(`{"parts":"DELETE"}`), "message.parts"},
		{"message/send", send(`{"parts":[]}`), "message.parts"},
		{"message/send", send(`{"parts":{}}`), "message.parts"},
		{"message/send", send(`{"parts":["x"]}`), "message.parts[0]"},
		{"message/send", send(`{"parts":[` + strings.Repeat(`{"kind":"text","text":""},`, 256) + `{}]}`), "message.parts"},
		{"message/send", part(`{}`), "message.parts[1].kind"},
		{"message/send", part(`{"kind":"video"}`), "message.parts[1].kind"},
		{"message/send", part(`{"kind":"text"}`), "message.parts[1].text"},
		{"message/send", part(`{"kind":"text","text":null}`), "message.parts[1].text"},
		{"message/send", part(`{"kind":"text","text":"a","metadata":1}`), "message.parts[1].metadata"},
		{"message/send", part(`{"kind":"data"}`), "message.parts[1].data"},
		{"message/send", part(`{"kind":"data","data":[1]}`), "message.parts[1].data"},
		{"message/send", part(`{"kind":"data","data":{"x":"` + strings.Repeat("y", 1<<20) + `"}}`), "message.parts[1].data"},
		{"message/send", part(`{"kind":"file"}`), "message.parts[1].file"},
		{"message/send", part(`{"kind":"file","file":{"name":"a","mimeType":"b"}}`), "message.parts[1].file"},
		{"message/send", part(`{"kind":"file","file":{"bytes":"","uri":"file:///a"}}`), "message.parts[1].file"},
		{"message/send", part(`{"kind":"file","file":{"bytes":"%%%"}}`), "message.parts[1].file.bytes"},
		{"message/send", part(`{"kind":"file","file":{"bytes":5}}`), "message.parts[1].file.bytes"},
		{"message/send", part(`{"kind":"file","file":{"uri":"no uri"}}`), "message.parts[1].file.uri"},
		{"message/send", part(`{"kind":"file","file":{"name":5,"uri":"file:///a"}}`), "message.parts[1].file.name"},
		{"message/send", config(`5`), "configuration"},
		{"message/send", config(`{"historyLength":-1}`), "configuration.historyLength"},
		{"message/send", config(`{"historyLength":"10"}`), "configuration.historyLength"},
		{"message/send", config(`{"historyLength":1.5}`), "configuration.historyLength"},
		{"message/send", config(`{"historyLength":1e400}`), "configuration.historyLength"},
		{"message/send", config(`{"historyLength":9223372036854775808}`), "configuration.historyLength"},
		{"message/send", config(`{"blocking":"yes"}`), "configuration.blocking"},
		{"message/send", config(`{"timeout":-5}`), "configuration.timeout"},
		{"message/send", config(`{"acceptedOutputModes":[1]}`), "configuration.acceptedOutputModes[0]"},
		{"message/send", `{"message":{"kind":"message","kind":"message"}}`, "message.kind"},
		{"message/send", `{"message":{` + manyMembers(300) + `}}`, "message"},
		{"message/stream", send(`{"role":"agent"}`), "message.role"},
		{"tasks/get", `{}`, "id"},
		{"tasks/get", `{"id":""}`, "id"},
		{"tasks/get", `{"id":["a"]}`, "id"},
		{"tasks/get", `{"id":"t","id":"u"}`, "id"},
		{"tasks/get", `{"id":"t","historyLength":"all"}`, "historyLength"},
		{"tasks/cancel", `{"id":5}`, "id"}, {"tasks/cancel", `{"id":"t","keepDelegated":"yes"}`, "keepDelegated"},
		{"tasks/resubscribe", `{"taskId":"t"}`, "id"},
		{"hub/status", `[]`, ""},
		{"hub/agents/list", `{"includeHealth":1}`, "includeHealth"},
		{"hub/agents/get", `{}`, "agentId"},
		{"hub/agents/health", `{"agentId":null}`, "agentId"},
		{"hub/tasks/list", `{"limit":0}`, "limit"},
		{"hub/tasks/list", `{"limit":1001}`, "limit"},
		{"hub/tasks/list", `{"offset":-1}`, "offset"},
		{"hub/tasks/list", `{"state":"done"}`, "state"},
		{"hub/tasks/list", `{"state":5}`, "state"},
		{"hub/tasks/list", `{"contextId":{}}`, "contextId"},
		{"hub/tasks/list", `{"includeArtifacts":"no"}`, "includeArtifacts"},
		{"hub/tasks/page", `{"cursor":5}`, "cursor"},
		{"hub/tasks/trace", `{}`, "id"},
		{"hub/tasks/trace", `{"id":"t","turn":0}`, "turn"},
		{"hub/tasks/trace", `{"id":"t","limit":51}`, "limit"},
		{"hub/contexts/list", `{"limit":"10"}`, "limit"},
		{"hub/ids", `{"kind":"agent"}`, "kind"},
		{"hub/ids", `{"kind":"task","limit":0}`, "limit"},
	}
	for _, tt := range tests {
		name := tt.method + " " + tt.params
		t.Run(name[:min(len(name), 80)], func(t *testing.T) {
			f := &fakeHub{task: specTask()}
			answer, _ := call(t, newService(f), method(tt.method, tt.params))
			wantError(t, answer, -32602, "INVALID_PARAMS", tt.field)
			if len(f.sent) > 0 {
				t.Error("the hub was called anyway")
			}
		})
	}
}

func manyMembers(n int) string {
	var members []string
	for i := range n {
		members = append(members, fmt.Sprintf(`"m%d":0`, i))
	}
	return strings.Join(members, ",")
}

func TestSendPassesTheWholeMessageToTheHub(t *testing.T) {
	f := &fakeHub{task: specTask()}
	request := method("message/send", `{
		"message":{"kind":"message","messageId":"m","role":"user","contextId":"c","taskId":"t","extensions":["urn:x"],"referenceTaskIds":["r"],
			"metadata":{"targetAgent":"from-message","big":9007199254740993},"unknown":1,
			"parts":[{"kind":"text","text":"","metadata":{"a":1}},{"kind":"file","file":{"name":"n","mimeType":"m/t","bytes":"aGk="}},
				{"kind":"file","file":{"uri":"https://example.org/x"}},{"kind":"data","data":{"a":[1,"b"]}},
				{"kind":"data","data":{"value":7},"metadata":{"data_part_compat":true}}]},
		"configuration":{"historyLength":1.0,"timeout":1500,"acceptedOutputModes":["text/plain"],"later":{}},
		"metadata":{"targetAgent":"from-request","k":"v"},"tenant":"x"}`)
	answer, _ := call(t, newService(f), request)
	want := []hub.SendRequest{{
		AgentID:  "from-request",
		Metadata: map[string]any{"targetAgent": "from-request", "k": "v"},
		Timeout:  1500 * time.Millisecond,
		Message: &a2a.Message{
			ID: "m", Role: a2a.MessageRoleUser, ContextID: "c", TaskID: "t", Extensions: []string{"urn:x"}, ReferenceTasks: []a2a.TaskID{"r"},
			Metadata: map[string]any{"targetAgent": "from-message", "big": json.Number("9007199254740993")},
			Parts: a2a.ContentParts{
				{Content: a2a.Text(""), Metadata: map[string]any{"a": 1.0}},
				{Content: a2a.Raw("hi"), Filename: "n", MediaType: "m/t"},
				{Content: a2a.URL("https://example.org/x")},
				{Content: a2a.Data{Value: map[string]any{"a": []any{1.0, "b"}}}},
				{Content: a2a.Data{Value: 7.0}, Metadata: map[string]any{}},
			},
		},
	}}
	if diff := cmp.Diff(want, f.sent); diff != "" {
		t.Errorf("%s\n%s", answer, diff)
	}
	var response struct{ Result dialect.Task }
	if err := json.Unmarshal([]byte(answer), &response); err != nil || len(response.Result.History) != 1 || response.Result.History[0].MessageID != "resp-123" {
		t.Errorf("the history is not its last message: %s", answer)
	}
}

func TestAMessageToATaskNeedsNoTargetAgent(t *testing.T) {
	f := &fakeHub{task: specTask()}
	answer, _ := call(t, newService(f), method("message/send", send(`{"metadata":"DELETE","taskId":"t"}`)))
	if len(f.sent) != 1 || f.sent[0].AgentID != "" || f.sent[0].Message.TaskID != "t" {
		t.Errorf("%s: %+v", answer, f.sent)
	}
}

func TestOnlyBlockingRequestsWait(t *testing.T) {
	nonBlocking := send(`{}`)[:len(send(`{}`))-1] + `,"configuration":{"blocking":false}}`
	tests := []struct{ name, request, how string }{
		{"by default", method("message/send", send(`{}`)), "SendAndWait"},
		{"not blocking", method("message/send", nonBlocking), "Send"},
		{"notification", `{"jsonrpc":"2.0","method":"message/send","params":` + send(`{}`) + `}`, "Send"},
		{"notification of a stream", `{"jsonrpc":"2.0","method":"message/stream","params":` + send(`{}`) + `}`, "Send"},
		{"stream", method("message/stream", send(`{}`)), "SendAndStream"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fakeHub{task: specTask()}
			answer, _ := call(t, newService(f), tt.request)
			if f.how != tt.how || strings.Contains(answer, `"error"`) {
				t.Errorf("called %q, want %q: %s", f.how, tt.how, answer)
			}
		})
	}
}

func TestPushNotificationsAreAnError(t *testing.T) {
	params := send(`{}`)[:len(send(`{}`))-1] + `,"configuration":{"pushNotificationConfig":{"url":"http://x"}}}`
	answer, _ := call(t, newService(&fakeHub{}), method("message/send", params))
	wantError(t, answer, -32005, "UNSUPPORTED_OPERATION", "")
}

func TestListsPassFiltersToTheHub(t *testing.T) {
	f := &fakeHub{}
	answer, _ := call(t, newService(f), method("hub/tasks/list", `{"contextId":"c","agentId":"a","state":"input-required","limit":20,"offset":40,"cursor":"ignored","includeArtifacts":true,"historyLength":3}`))
	three := 3
	want := hub.TaskQuery{ContextID: "c", AgentID: "a", State: a2a.TaskStateInputRequired, Limit: 20, Offset: 40, HistoryLength: &three, WithArtifacts: true}
	if diff := cmp.Diff(want, f.query); diff != "" || !strings.Contains(answer, `"result":[]`) {
		t.Errorf("%s\n%s", answer, diff)
	}
	call(t, newService(f), method("hub/tasks/page", `{"cursor":"next"}`))
	if f.query.Cursor != "next" || f.query.HistoryLength == nil || *f.query.HistoryLength != 0 {
		t.Errorf("%+v", f.query)
	}
	answer, _ = call(t, newService(f), method("hub/tasks/trace", `{"id":"t","turn":2,"limit":3}`))
	if want := (hub.TraceQuery{Turn: 2, Limit: 3}); f.id != "t" || f.traces != want || !strings.Contains(answer, `"result":{"taskId":"t","turns":1,"traces":[`) {
		t.Errorf("%+v %s", f.traces, answer)
	}
	call(t, newService(f), method("hub/contexts/list", `{}`))
	if f.limit != 50 {
		t.Errorf("limit %d", f.limit)
	}
}

func TestNoTaskIsInAnUnknownState(t *testing.T) {
	f := &fakeHub{page: hub.TaskPage{Tasks: []*a2a.Task{specTask()}, Total: 1}}
	answer, _ := call(t, newService(f), method("hub/tasks/page", `{"state":"unknown"}`))
	if !strings.Contains(answer, `"result":{"tasks":[],"total":0}`) {
		t.Error(answer)
	}
}

// HUB-TYPE-STATE.
func TestEveryStateHasItsName(t *testing.T) {
	for state, want := range map[a2a.TaskState]dialect.TaskState{
		a2a.TaskStateSubmitted: "submitted", a2a.TaskStateWorking: "working", a2a.TaskStateInputRequired: "input-required",
		a2a.TaskStateCompleted: "completed", a2a.TaskStateCanceled: "canceled", a2a.TaskStateFailed: "failed",
		a2a.TaskStateRejected: "rejected", a2a.TaskStateAuthRequired: "auth-required", "": "unknown", "NEW": "unknown",
	} {
		if got := dialect.FromState(state); got != want {
			t.Errorf("%q is %q, want %q", state, got, want)
		}
		if final := state.Terminal() || state == a2a.TaskStateInputRequired || state == a2a.TaskStateAuthRequired; want.Final() != final {
			t.Errorf("%q: final %t", want, want.Final())
		}
	}
}

func TestAStreamEndsWithAFinalStatusAndTheTask(t *testing.T) {
	info := a2a.TaskInfo{TaskID: "task-456", ContextID: "ctx-789"}
	working := &a2a.TaskStatusUpdateEvent{TaskID: info.TaskID, ContextID: info.ContextID, Status: a2a.TaskStatus{State: a2a.TaskStateWorking, Timestamp: &epoch}}
	chunk := &a2a.TaskArtifactUpdateEvent{TaskID: info.TaskID, ContextID: info.ContextID, Append: true, LastChunk: true,
		Artifact: &a2a.Artifact{ID: "a1", Name: "answer", Parts: a2a.ContentParts{a2a.NewTextPart("def")}}}
	done := &a2a.TaskStatusUpdateEvent{TaskID: info.TaskID, ContextID: info.ContextID, Status: a2a.TaskStatus{State: a2a.TaskStateCompleted, Timestamp: &epoch}}
	tests := []struct {
		name   string
		events []a2a.Event
		kinds  string
	}{
		{"to its end", []a2a.Event{working, chunk, done}, "task status-update artifact-update status-update!"},
		{"fallen behind", []a2a.Event{working, specTask()}, "task status-update task status-update!"},
		{"already over", nil, "task status-update!"},
	}
	for _, name := range []string{"message/stream", "tasks/resubscribe"} {
		for _, tt := range tests {
			t.Run(name+" "+tt.name, func(t *testing.T) {
				f := &fakeHub{task: specTask(), events: tt.events}
				params := send(`{}`)
				if name == "tasks/resubscribe" {
					params = `{"id":"task-456"}`
				}
				answer, events := call(t, newService(f), method(name, params))
				var kinds []string
				for _, text := range events {
					var e dialect.Event
					if err := json.Unmarshal([]byte(text), &e); err != nil {
						t.Fatal(err)
					}
					again, err := json.Marshal(e)
					if err != nil || string(again) != text {
						t.Errorf("%s was decoded and encoded as %s (%v)", text, again, err)
					}
					switch {
					case e.Task != nil:
						kinds = append(kinds, e.Task.Kind)
					case e.Artifact != nil:
						kinds = append(kinds, e.Artifact.Kind)
					case e.Status.Final:
						kinds = append(kinds, e.Status.Kind+"!")
					default:
						kinds = append(kinds, e.Status.Kind)
					}
				}
				if got := strings.Join(kinds, " "); got != tt.kinds {
					t.Errorf("got %s, want %s", got, tt.kinds)
				}
				if !strings.Contains(answer, `"result":{"kind":"task","id":"task-456"`) || f.closed != 1 {
					t.Errorf("%s, closed %d", answer, f.closed)
				}
			})
		}
	}
	if _, events := call(t, newService(&fakeHub{task: specTask(), events: []a2a.Event{working, chunk, done}}), method("message/stream", send(`{}`))); true {
		golden(t, "message-stream", "["+strings.Join(events, ",")+"]")
	}
}

func TestAStreamIsClosedWhenItsClientFails(t *testing.T) {
	gone := errors.New("gone")
	for after := range 3 {
		f := &fakeHub{task: specTask(), events: []a2a.Event{specTask()}}
		n := 0
		_, err := newService(f).Handle(t.Context(), jsonrpc.Request{ID: jsonrpc.NumberID(1), Method: "tasks/resubscribe", Params: json.RawMessage(`{"id":"t"}`)},
			func(any) error {
				if n == after {
					return gone
				}
				n++
				return nil
			})
		if !errors.Is(err, gone) || f.closed != 1 {
			t.Errorf("after %d: %v, closed %d", after, err, f.closed)
		}
	}
}

func TestAStreamEndsWithItsContext(t *testing.T) {
	f := &fakeHub{task: specTask(), next: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-f.next
		cancel()
	}()
	_, err := newService(f).Handle(ctx, jsonrpc.Request{ID: jsonrpc.NumberID(1), Method: "tasks/resubscribe", Params: json.RawMessage(`{"id":"t"}`)}, func(any) error { return nil })
	var rpcErr *jsonrpc.Error
	if !errors.As(err, &rpcErr) || rpcErr.Code != dialect.CodeAgentUnavailable || f.closed != 1 {
		t.Errorf("%v, closed %d", err, f.closed)
	}
}

func TestABatchCannotStream(t *testing.T) {
	for _, name := range []string{"message/stream", "tasks/resubscribe"} {
		params := send(`{}`)
		if name == "tasks/resubscribe" {
			params = `{"id":"t"}`
		}
		f := &fakeHub{task: specTask()}
		answer, _ := call(t, newService(f), "["+method(name, params)+"]")
		wantError(t, strings.Trim(answer, "[]"), -32005, "UNSUPPORTED_OPERATION", "")
		if len(f.sent) != 0 {
			t.Error("the message was sent anyway")
		}
	}
}

func TestTextOfATask(t *testing.T) {
	task := dialect.FromTask(specTask(), nil)
	if got := task.Text(); got != "def hello():\n    print('Hello, World!')" {
		t.Errorf("%q", got)
	}
	task.Status.Message = nil
	task.Artifacts = []dialect.Artifact{{Parts: []dialect.Part{dialect.TextPart("a"), dialect.DataPart(nil), dialect.TextPart("b")}}, {}, {Parts: []dialect.Part{dialect.TextPart("c")}}}
	if got := task.Text(); got != "ab\nc" {
		t.Errorf("%q", got)
	}
}

func TestAnUnknownEventIsAnError(t *testing.T) {
	var e dialect.Event
	for _, text := range []string{`{}`, `{"kind":"message"}`, `{"kind":5}`, `[]`} {
		if err := json.Unmarshal([]byte(text), &e); err == nil {
			t.Errorf("%s became %+v", text, e)
		}
	}
	if text, err := json.Marshal(dialect.Event{}); err == nil {
		t.Errorf("an empty event was encoded as %s", text)
	}
	f := &fakeHub{task: specTask(), events: []a2a.Event{specTask().Status.Message}}
	answer, _ := call(t, newService(f), method("tasks/resubscribe", `{"id":"t"}`))
	wantError(t, answer, -32603, "INTERNAL_ERROR", "")
}

// HUB-TYPE-CARD.
func TestCardsAreInTheSpecificationsShape(t *testing.T) {
	f := &fakeHub{}
	d := &dialect.Directory{Agents: f, Version: "1.0.0", BaseURL: func() string { return "http://127.0.0.1:8080" }, Token: true}
	cards := map[string]any{"hub": d.HubCard(t.Context()), "agents": d.AgentCards(t.Context())}
	if _, err := d.AgentCard(t.Context(), "nobody"); err == nil {
		t.Error("an unknown agent has a card")
	}
	card, err := d.AgentCard(t.Context(), "claude-code")
	if err != nil {
		t.Fatal(err)
	}
	cards["claude-code"] = card
	text, err := json.Marshal(cards)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "cards", string(text))
}

func TestHealthReportsTheStoreNotTheAgents(t *testing.T) {
	bus := dialect.BusStatus{}
	s := newService(&fakeHub{}, func(c *dialect.Config) { c.Bus = func() dialect.BusStatus { return bus } })
	report := s.Health()
	if report.Status != dialect.HubHealthy || report.Agents.Total != 4 || report.Agents.Unhealthy != 1 || report.Uptime == 0 {
		t.Errorf("%+v", report)
	}
	bus.Error = "disk full"
	if report = s.Health(); report.Status != dialect.HubUnhealthy || !strings.Contains(report.Reason, "disk full") {
		t.Errorf("%+v", report)
	}
}

func TestIDsAreCompleted(t *testing.T) {
	for params, want := range map[string]string{`{"kind":"task","like":"7"}`: `{"ids":["task-7"]}`, `{"kind":"context","like":"c"}`: `{"ids":["ctx-c"]}`} {
		if answer, _ := call(t, newService(&fakeHub{}), method("hub/ids", params)); !strings.Contains(answer, want) {
			t.Errorf("%s: %s", params, answer)
		}
	}
}
