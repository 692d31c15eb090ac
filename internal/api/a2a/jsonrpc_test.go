package a2a_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
	"github.com/parleyhub/parley/internal/hub"
)

const one = "/agents/one/a2a"

func TestMalformedJSONRPCGetsTheRightCode(t *testing.T) {
	r := newRig(t)
	task := r.task("hello")
	ask := r.task("ask")
	long := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	msg := func(m string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":` + m + `}}`
	}
	tests := []struct {
		name, body string
		code       int
	}{
		{"not JSON", `{"jsonrpc":`, -32700},
		{"text behind the request", `{"jsonrpc":"2.0","id":1,"method":"ListTasks"} x`, -32700},
		{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ListTasks\"}", -32700},
		{"nested too deep", `{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"x":` + long + `}}`, -32700},
		{"empty", ` `, -32700},
		{"a number", `1`, -32600},
		{"a batch", `[{"jsonrpc":"2.0","id":1,"method":"ListTasks"}]`, -32600},
		{"wrong version of JSON-RPC", `{"jsonrpc":"1.0","id":1,"method":"ListTasks"}`, -32600},
		{"no method", `{"jsonrpc":"2.0","id":1}`, -32600},
		{"method is a number", `{"jsonrpc":"2.0","id":1,"method":7}`, -32600},
		{"id is an object", `{"jsonrpc":"2.0","id":{},"method":"ListTasks"}`, -32600},
		{"id is a boolean", `{"jsonrpc":"2.0","id":true,"method":"ListTasks"}`, -32600},
		{"unknown method", `{"jsonrpc":"2.0","id":1,"method":"Nothing"}`, -32601},
		{"unknown method of 0.3", `{"jsonrpc":"2.0","id":1,"method":"message/nothing"}`, -32601},
		{"params are an array", `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[1]}`, -32602},
		{"params are missing", `{"jsonrpc":"2.0","id":1,"method":"GetTask"}`, -32602},
		{"params of the wrong type", `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":7}}`, -32602},
		{"negative history", `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"` + string(task.ID) + `","historyLength":-1}}`, -32602},
		{"no message", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{}}`, -32602},
		{"message without id", msg(`{"role":"ROLE_USER","parts":[{"text":"x"}]}`), -32602},
		{"message without parts", msg(`{"messageId":"m","role":"ROLE_USER","parts":[]}`), -32602},
		{"message of an agent", msg(`{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"x"}]}`), -32602},
		{"part without content", msg(`{"messageId":"m","role":"ROLE_USER","parts":[{}]}`), -32602},
		{"part with two contents", msg(`{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x","url":"y"}]}`), -32602},
		{"part that is null", msg(`{"messageId":"m","role":"ROLE_USER","parts":[null]}`), -32602},
		{"raw part that is not base64", msg(`{"messageId":"m","role":"ROLE_USER","parts":[{"raw":"?"}]}`), -32602},
		{"0.3 part without kind", `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"text":"x"}]}}}`, -32602},
		{"0.3 without message", `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{}}`, -32602},
		{"0.3 with part null", `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m","role":"user","parts":[null]}}}`, -32602},
		{"page too large", `{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"pageSize":101}}`, -32602},
		{"page negative", `{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"pageSize":-1}}`, -32602},
		{"unknown state", `{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"status":"DONE"}}`, -32602},
		{"unknown page token", `{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"pageToken":"x"}}`, -32602},
		{"unknown task", `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x"}}`, -32001},
		{"cancel of unknown task", `{"jsonrpc":"2.0","id":1,"method":"CancelTask","params":{"id":"x"}}`, -32001},
		{"message to unknown task", msg(`{"messageId":"m","role":"ROLE_USER","taskId":"x","parts":[{"text":"x"}]}`), -32001},
		{"cancel of ended task", `{"jsonrpc":"2.0","id":1,"method":"CancelTask","params":{"id":"` + string(task.ID) + `"}}`, -32002},
		{"message to ended task", msg(`{"messageId":"m","role":"ROLE_USER","taskId":"` + string(task.ID) + `","parts":[{"text":"x"}]}`), -32004},
		{"message to a task of another context", msg(`{"messageId":"m","role":"ROLE_USER","taskId":"` + string(ask.ID) + `","contextId":"other","parts":[{"text":"x"}]}`), -32602},
		{"subscription to ended task", `{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"` + string(task.ID) + `"}}`, -32004},
		{"subscription to unknown task", `{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"x"}}`, -32001},
		{"stream of a bad message", `{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{"message":{}}}`, -32602},
		{"extended card without tokens", `{"jsonrpc":"2.0","id":1,"method":"GetExtendedAgentCard"}`, -32004},
		{"0.3 extended card without tokens", `{"jsonrpc":"2.0","id":1,"method":"agent/getAuthenticatedExtendedCard"}`, -32007},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := r.do(http.MethodPost, one, tt.body)
			got := a.rpc(t)
			if got.Error == nil || got.Error.Code != tt.code {
				t.Fatalf("got %s, want code %d", a.body, tt.code)
			}
			if a.status != http.StatusOK || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("status %d, Content-Type %q", a.status, a.header.Get("Content-Type"))
			}
			if got.JSONRPC != "2.0" || len(got.Result) != 0 || got.Error.Message == "" {
				t.Errorf("not an error response: %s", a.body)
			}
			if info := got.Error.Data; len(info) == 0 || info[0].Type != "type.googleapis.com/google.rpc.ErrorInfo" || info[0].Reason == "" || info[0].Domain != "a2a-protocol.org" {
				t.Errorf("no ErrorInfo in %s", a.body)
			}
		})
	}
}

func TestErrorNamesTheOffendingField(t *testing.T) {
	r := newRig(t)
	for want, params := range map[string]any{
		"message.messageId": map[string]any{"message": map[string]any{"role": "ROLE_USER", "parts": []any{map[string]any{"text": "x"}}}},
		"historyLength":     map[string]any{"message": message10("x")["message"], "configuration": map[string]any{"historyLength": -1}},
	} {
		got := r.call(one, "SendMessage", params)
		if got.Error == nil || len(got.Error.Data) < 2 || len(got.Error.Data[1].FieldViolations) == 0 || got.Error.Data[1].FieldViolations[0].Field != want {
			t.Errorf("%s is not in %+v", want, got.Error)
		}
	}
}

func TestIDIsEchoedByteForByte(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{`"x"`, `1`, `-1`, `9007199254740993`, `1.50`, `null`, `"é\u0001"`} {
		a := r.do(http.MethodPost, "/a2a", `{"jsonrpc":"2.0","id":`+id+`,"method":"ListTasks"}`)
		if got := a.rpc(t); string(got.ID) != id {
			t.Errorf("id %s came back as %s", id, got.ID)
		}
	}
}

func TestMediaTypeMustBeJSON(t *testing.T) {
	r := newRig(t)
	const body = `{"jsonrpc":"2.0","id":1,"method":"ListTasks"}`
	for _, media := range []string{"application/json", "application/json; charset=utf-8", "application/a2a+json"} {
		if got := r.do(http.MethodPost, one, body, "Content-Type", media).rpc(t); got.Error != nil {
			t.Errorf("%s: %+v", media, got.Error)
		}
	}
	for _, media := range []string{"text/plain", "application/x-www-form-urlencoded", "a/b/c", ""} {
		for path, post := range map[string]string{one: body, one + "/message:send": `{}`} {
			a := r.do(http.MethodPost, path, post, "Content-Type", media)
			if a.status != http.StatusUnsupportedMediaType || !strings.Contains(string(a.body), "CONTENT_TYPE_NOT_SUPPORTED") {
				t.Errorf("%s %q: HTTP %d %s", path, media, a.status, a.body)
			}
		}
	}
}

func TestBodyIsBounded(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.MaxBody = 1000 })
	big := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"contextId":%q}}`, strings.Repeat("x", 1000))
	for _, path := range []string{one, one + "/message:send", one + "/v1/message:send", "/a2a/two/message:send"} {
		if a := r.do(http.MethodPost, path, big); a.status != http.StatusRequestEntityTooLarge || !json.Valid(a.body) {
			t.Errorf("%s: HTTP %d %s", path, a.status, a.body)
		}
	}
}

func TestSnakeCaseParametersAreAccepted(t *testing.T) {
	r := newRig(t)
	task := r.task("hello")
	var got a2a.Task
	res := r.call(one, "GetTask", map[string]any{"id": task.ID, "history_length": 0})
	if err := json.Unmarshal(res.Result, &got); err != nil || len(got.History) != 0 {
		t.Fatalf("history_length was ignored: %s %v", res.Result, err)
	}
	res = r.call(one, "SendMessage", map[string]any{
		"message": map[string]any{
			"message_id": "snake", "role": "ROLE_USER", "context_id": "my_context",
			"parts":    []any{map[string]any{"text": "x", "media_type": "text/plain"}},
			"metadata": map[string]any{"snake_key": 1},
		},
		"configuration": map[string]any{"history_length": 1},
	})
	var sent struct{ Task a2a.Task }
	if err := json.Unmarshal(res.Result, &sent); err != nil || len(sent.Task.History) != 1 || sent.Task.ContextID != "my_context" {
		t.Fatalf("got %s %+v", res.Result, res.Error)
	}
	full := r.call(one, "GetTask", map[string]any{"id": sent.Task.ID})
	if !strings.Contains(string(full.Result), `"snake_key":1`) {
		t.Errorf("the user's names were changed: %s", full.Result)
	}
}

func TestHistoryLengthIsApplied(t *testing.T) {
	r := newRig(t)
	for n, want := range map[any]int{nil: 2, 0: 0, 1: 1, 100: 2} {
		params := message10("hello")
		if n != nil {
			params["configuration"] = map[string]any{"historyLength": n}
		}
		var sent struct{ Task a2a.Task }
		if err := json.Unmarshal(r.call(one, "SendMessage", params).Result, &sent); err != nil {
			t.Fatal(err)
		}
		if len(sent.Task.History) != want {
			t.Errorf("SendMessage with %v: %d messages, want %d", n, len(sent.Task.History), want)
		}
	}
}

func TestEmptyListIsAnEmptyArray(t *testing.T) {
	r := newRig(t)
	got := r.call(one, "ListTasks", map[string]any{})
	if !strings.Contains(string(got.Result), `"tasks":[]`) || !strings.Contains(string(got.Result), `"nextPageToken":""`) {
		t.Errorf("got %s", got.Result)
	}
	task := r.task("hello")
	for method, params := range map[string]any{
		"ListTaskPushNotificationConfigs":   map[string]any{"taskId": task.ID},
		"tasks/pushNotificationConfig/list": map[string]any{"id": task.ID},
	} {
		got := r.call(one, method, params)
		if got.Error != nil || !strings.Contains(string(got.Result), "[]") {
			t.Errorf("%s: %s %+v", method, got.Result, got.Error)
		}
	}
}

func TestListPages(t *testing.T) {
	r := newRig(t)
	for range 5 {
		r.task("hello")
	}
	seen := map[a2a.TaskID]bool{}
	token := ""
	for range 3 {
		got := r.call(one, "ListTasks", map[string]any{"pageSize": 2, "pageToken": token})
		var page a2a.ListTasksResponse
		if err := json.Unmarshal(got.Result, &page); err != nil {
			t.Fatal(err)
		}
		if page.TotalSize != 5 || page.PageSize != 2 {
			t.Fatalf("total %d, page size %d", page.TotalSize, page.PageSize)
		}
		for _, task := range page.Tasks {
			seen[task.ID] = true
		}
		token = page.NextPageToken
	}
	if len(seen) != 5 || token != "" {
		t.Errorf("%d tasks on three pages, token %q", len(seen), token)
	}
}

func TestDeletionIsAnsweredWithAResult(t *testing.T) {
	r := newRig(t)
	task := r.task("hello")
	for _, method := range []string{"DeleteTaskPushNotificationConfig", "tasks/pushNotificationConfig/delete"} {
		params := map[string]any{"taskId": task.ID, "id": "none"}
		if strings.Contains(method, "/") {
			params = map[string]any{"id": task.ID, "pushNotificationConfigId": "none"}
		}
		body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
		if err != nil {
			t.Fatal(err)
		}
		if a := r.do(http.MethodPost, one, string(body)); string(a.body) != `{"jsonrpc":"2.0","id":1,"result":null}` {
			t.Errorf("%s: %s", method, a.body)
		}
	}
}

func TestTrailingSlashIsNotRedirected(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/a2a/", one + "/"} {
		if a := r.do(http.MethodPost, path, `{"jsonrpc":"2.0","id":1,"method":"ListTasks"}`); a.status != http.StatusOK {
			t.Errorf("%s: HTTP %d", path, a.status)
		}
	}
	if a := r.do(http.MethodGet, one+"/tasks/", ""); a.status != http.StatusOK {
		t.Errorf("tasks/: HTTP %d", a.status)
	}
}

func TestOtherMethodsOfHTTPAreRefused(t *testing.T) {
	r := newRig(t)
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		if a := r.do(method, one, ""); a.status != http.StatusMethodNotAllowed || a.header.Get("Allow") != "POST" || !json.Valid(a.body) {
			t.Errorf("%s: HTTP %d %s", method, a.status, a.body)
		}
	}
}

func TestStreamHasTheTaskFirstAndItsFinalStatusLast(t *testing.T) {
	r := newRig(t)
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": "s", "method": "SendStreamingMessage", "params": message10("file")})
	if err != nil {
		t.Fatal(err)
	}
	events := r.do(http.MethodPost, one, string(body)).events(t)
	var kinds []string
	var last a2a.StreamResponse
	for _, e := range events {
		var resp struct {
			ID     string
			Result a2a.StreamResponse
		}
		if err := json.Unmarshal(e, &resp); err != nil || resp.ID != "s" {
			t.Fatalf("event %s: %v", e, err)
		}
		kinds = append(kinds, fmt.Sprintf("%T", resp.Result.Event))
		last = resp.Result
	}
	if kinds[0] != "*a2a.Task" || !strings.Contains(strings.Join(kinds, " "), "Artifact") {
		t.Errorf("events %v", kinds)
	}
	if end, ok := last.Event.(*a2a.TaskStatusUpdateEvent); !ok || end.Status.State != a2a.TaskStateCompleted {
		t.Errorf("the last event is %+v", last.Event)
	}
}

func TestLastEventOf03StreamIsFinal(t *testing.T) {
	r := newRig(t)
	for prompt, state := range map[string]string{"hello": "completed", "ask": "input-required", "fail": "failed"} {
		body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": message03(prompt)})
		if err != nil {
			t.Fatal(err)
		}
		events := r.do(http.MethodPost, one, string(body)).events(t)
		var first, last struct {
			Result struct {
				Kind   string
				Final  bool
				Status struct{ State string }
			}
		}
		if err := json.Unmarshal(events[0], &first); err != nil || first.Result.Kind != "task" {
			t.Errorf("first event %s", events[0])
		}
		if err := json.Unmarshal(events[len(events)-1], &last); err != nil || !last.Result.Final || last.Result.Status.State != state {
			t.Errorf("%s: last event %s", prompt, events[len(events)-1])
		}
	}
}

// Clients of 0.3 expect errors of a stream as events.
func TestEarlyErrorOf03StreamIsAnEvent(t *testing.T) {
	r := newRig(t)
	for _, method := range []string{"tasks/resubscribe", "message/stream"} {
		a := r.do(http.MethodPost, one, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"id":"none"}}`)
		if events := a.events(t); len(events) != 1 || !strings.Contains(string(events[0]), `"error"`) {
			t.Errorf("%s: %s", method, a.body)
		}
	}
}

func TestSubscriptionToAnInterruptedTaskReportsItsContinuation(t *testing.T) {
	r := newRig(t)
	task := r.task("ask")
	req, err := http.NewRequest(http.MethodPost, r.http.URL+one, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"`+string(task.ID)+`"}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	events := sseReader(resp.Body)
	if first := events(); !strings.Contains(first, "TASK_STATE_INPUT_REQUIRED") {
		t.Fatalf("first event %s", first)
	}
	if got := r.call(one, "SendMessage", message10("go on", onTask(task.ID))); got.Error != nil {
		t.Fatalf("%+v", got.Error)
	}
	for {
		e := events()
		if e == "" {
			t.Fatal("the stream ended before the task")
		}
		if strings.Contains(e, "TASK_STATE_COMPLETED") {
			return
		}
	}
}

func TestTaskContinuesWhenTheClientOfItsStreamDisconnects(t *testing.T) {
	r := newRig(t)
	task := r.task("wait")
	req, err := http.NewRequest(http.MethodGet, r.http.URL+one+"/tasks/"+string(task.ID)+":subscribe", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if first := sseReader(resp.Body)(); !strings.Contains(first, string(task.ID)) {
		t.Fatalf("first event %s", first)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	r.gate <- struct{}{}
	sub, err := r.hub.Subscribe(t.Context(), task.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	for {
		if _, err := sub.Next(t.Context()); err != nil {
			break
		}
	}
	if got, err := r.hub.Task(t.Context(), task.ID, nil); err != nil || got.Status.State != a2a.TaskStateCompleted {
		t.Errorf("%+v %v", got.Status, err)
	}
}

func TestReturnImmediatelyDoesNotWait(t *testing.T) {
	r := newRig(t)
	params := message10("wait")
	params["configuration"] = map[string]any{"returnImmediately": true}
	var sent struct{ Task a2a.Task }
	if err := json.Unmarshal(r.call(one, "SendMessage", params).Result, &sent); err != nil {
		t.Fatal(err)
	}
	if sent.Task.Status.State.Terminal() {
		t.Errorf("the task has ended: %s", sent.Task.Status.State)
	}
	old := message03("wait")
	old["configuration"] = map[string]any{"blocking": false}
	if got := r.call(one, "message/send", old); !strings.Contains(string(got.Result), `"kind":"task"`) {
		t.Errorf("0.3: %s %+v", got.Result, got.Error)
	}
	r.gate <- struct{}{}
	r.gate <- struct{}{}
}

func TestCancelReturnsTheCanceledTask(t *testing.T) {
	r := newRig(t)
	for method, want := range map[string]string{"CancelTask": "TASK_STATE_CANCELED", "tasks/cancel": `"canceled"`} {
		task := r.task("wait")
		if got := r.call(one, method, map[string]any{"id": task.ID}); !strings.Contains(string(got.Result), want) {
			t.Errorf("%s: %s %+v", method, got.Result, got.Error)
		}
	}
}

// Decision 54: canceling a task cancels the tasks delegated from it, unless the metadata says otherwise.
func TestCancelEndsDelegatedTasks(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		metadata map[string]any
		want     a2a.TaskState
	}{
		{nil, a2a.TaskStateCanceled},
		{map[string]any{hub.MetaKeepDelegated: false}, a2a.TaskStateCanceled},
		{map[string]any{hub.MetaKeepDelegated: true}, a2a.TaskStateWorking},
	} {
		parent := r.task("wait")
		child, err := r.hub.Send(t.Context(), hub.SendRequest{
			AgentID: "two", Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("wait")),
			Delegation: &hub.Delegation{By: "one", Task: parent.ID, Tasks: []a2a.TaskID{parent.ID}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.call(one, "CancelTask", map[string]any{"id": parent.ID, "metadata": c.metadata}); !strings.Contains(string(got.Result), "CANCELED") {
			t.Errorf("%s %+v", got.Result, got.Error)
		}
		task, err := r.hub.Task(t.Context(), child.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := task.Status.State; got.Terminal() != c.want.Terminal() {
			t.Errorf("%v: the delegated task is %s", c.metadata, got)
		}
	}
}
