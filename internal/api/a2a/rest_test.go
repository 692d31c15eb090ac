package a2a_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
)

func restMessage(t *testing.T, text string) string {
	t.Helper()
	body, err := json.Marshal(message10(text))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestRESTErrorsAreJSONWithTheRightStatus(t *testing.T) {
	r := newRig(t)
	task := r.task("hello")
	ended := "/tasks/" + string(task.ID)
	tests := []struct {
		name, method, path, body string
		status                   int
		reason                   string
	}{
		{"unknown task", "GET", "/tasks/none", "", 404, "TASK_NOT_FOUND"},
		{"unknown task, 0.3", "GET", "/v1/tasks/none", "", 404, "TASK_NOT_FOUND"},
		{"cancel of ended task", "POST", ended + ":cancel", "", 400, "TASK_NOT_CANCELABLE"},
		{"subscription to ended task", "GET", ended + ":subscribe", "", 400, "UNSUPPORTED_OPERATION"},
		{"subscription by POST", "POST", ended + ":subscribe", "", 400, "UNSUPPORTED_OPERATION"},
		{"subscription to unknown task", "GET", "/tasks/none:subscribe", "", 404, "TASK_NOT_FOUND"},
		{"subscription to unknown task, 0.3", "GET", "/v1/tasks/none:subscribe", "", 404, "TASK_NOT_FOUND"},
		{"stream of a bad message", "POST", "/message:stream", `{"message":{}}`, 400, "INVALID_PARAMS"},
		{"not JSON", "POST", "/message:send", `{`, 400, "PARSE_ERROR"},
		{"invalid UTF-8", "POST", "/message:send", "{\"x\":\"\xff\"}", 400, "PARSE_ERROR"},
		{"bad number", "GET", "/tasks?pageSize=x", "", 400, "INVALID_REQUEST"},
		{"negative history", "GET", ended + "?historyLength=-1", "", 400, "INVALID_PARAMS"},
		{"unknown path", "GET", "/nothing", "", 404, "METHOD_NOT_FOUND"},
		{"unknown path, 0.3", "GET", "/v1/nothing", "", 404, "METHOD_NOT_FOUND"},
		{"wrong method", "DELETE", "/tasks/none", "", 405, "METHOD_NOT_ALLOWED"},
		{"extended card without tokens", "GET", "/extendedAgentCard", "", 400, "UNSUPPORTED_OPERATION"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := r.do(tt.method, one+tt.path, tt.body)
			var got struct {
				Error struct {
					Code            int
					Status, Message string
					Details         []struct {
						Type   string `json:"@type"`
						Reason string
					}
				}
			}
			if err := json.Unmarshal(a.body, &got); err != nil {
				t.Fatalf("HTTP %d %s: %v", a.status, a.body, err)
			}
			if a.status != tt.status || got.Error.Code != tt.status || !strings.Contains(string(a.body), tt.reason) {
				t.Errorf("HTTP %d %s, want %d %s", a.status, a.body, tt.status, tt.reason)
			}
			if ct := a.header.Get("Content-Type"); ct != "application/json" {
				t.Errorf("Content-Type %s", ct)
			}
			if got.Error.Message == "" || got.Error.Status == "" || len(got.Error.Details) == 0 {
				t.Errorf("members are missing: %s", a.body)
			}
		})
	}
}

func TestRESTOfBothVersionsAndWithTenant(t *testing.T) {
	r := newRig(t)
	for _, base := range []string{one, "/a2a/one"} {
		a := r.do(http.MethodPost, base+"/message:send", restMessage(t, "hello"))
		var sent struct{ Task a2a.Task }
		if err := json.Unmarshal(a.body, &sent); err != nil || sent.Task.Status.State != a2a.TaskStateCompleted {
			t.Fatalf("%s: HTTP %d %s", base, a.status, a.body)
		}
		id := string(sent.Task.ID)
		if a := r.do(http.MethodGet, base+"/tasks/"+id+"?history_length=1", ""); a.status != 200 || strings.Count(string(a.body), `"messageId"`) != 2 {
			t.Errorf("get: HTTP %d %s", a.status, a.body)
		}
		if a := r.do(http.MethodGet, base+"/tasks?pageSize=1&status=TASK_STATE_COMPLETED", ""); a.status != 200 || !strings.Contains(string(a.body), `"pageSize":1`) {
			t.Errorf("list: HTTP %d %s", a.status, a.body)
		}
		if events := r.do(http.MethodPost, base+"/message:stream", restMessage(t, "hello")).events(t); len(events) < 2 {
			t.Errorf("stream: %q", events)
		}
		if a := r.do(http.MethodPost, base+"/tasks/"+id+"/pushNotificationConfigs", `{"id":"c","url":"https://example.com/x"}`); a.status != 200 {
			t.Errorf("create config: HTTP %d %s", a.status, a.body)
		}
		if a := r.do(http.MethodDelete, base+"/tasks/"+id+"/pushNotificationConfigs/c", ""); a.status != 200 || string(a.body) != "{}" {
			t.Errorf("delete config: HTTP %d %q", a.status, a.body)
		}
	}
	old := `{"message":{"messageId":"m","role":"ROLE_USER","content":[{"text":"hello"}]}}`
	if a := r.do(http.MethodPost, one+"/v1/message:send", old); a.status != 200 || !strings.Contains(string(a.body), `"TASK_STATE_COMPLETED"`) {
		t.Errorf("0.3: HTTP %d %s", a.status, a.body)
	}
	if events := r.do(http.MethodPost, one+"/v1/message:stream", old).events(t); len(events) < 2 {
		t.Errorf("0.3 stream: %q", events)
	}
}

// The SDK accepts only the request message; clients send the configuration.
func TestREST03AcceptsBothShapesOfPushConfig(t *testing.T) {
	r := newRig(t)
	task := r.task("hello")
	configs := one + "/v1/tasks/" + string(task.ID) + "/pushNotificationConfigs"
	for id, body := range map[string]string{
		"a": `{"name":"tasks/x/pushNotificationConfigs/a","pushNotificationConfig":{"id":"a","url":"https://example.com/a"}}`,
		"b": `{"parent":"tasks/x","config_id":"b","config":{"push_notification_config":{"url":"https://example.com/b"}}}`,
	} {
		if a := r.do(http.MethodPost, configs, body); a.status != 200 {
			t.Errorf("%s: HTTP %d %s", id, a.status, a.body)
		}
		if a := r.do(http.MethodGet, configs+"/"+id, ""); !strings.Contains(string(a.body), "https://example.com/"+id) {
			t.Errorf("%s: HTTP %d %s", id, a.status, a.body)
		}
	}
}

func TestListAtTheHubHasTheTasksOfAllAgents(t *testing.T) {
	r := newRig(t)
	r.task("hello")
	r.taskOf("two", "hello")
	for path, want := range map[string]string{"/a2a/tasks": `"totalSize":2`, "/a2a/two/tasks": `"totalSize":1`} {
		if a := r.do(http.MethodGet, path, ""); !strings.Contains(string(a.body), want) {
			t.Errorf("%s: %s", path, a.body)
		}
	}
}

func TestPushMethodsAreUnsupportedWithoutPush(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.Push = nil })
	task := r.task("hello")
	config := map[string]any{"taskId": task.ID, "id": "c", "url": "https://example.com"}
	withConfig := message10("hello")
	withConfig["configuration"] = map[string]any{"taskPushNotificationConfig": map[string]any{"url": "https://example.com"}}
	for method, params := range map[string]any{
		"CreateTaskPushNotificationConfig": config, "GetTaskPushNotificationConfig": config,
		"ListTaskPushNotificationConfigs": config, "DeleteTaskPushNotificationConfig": config,
		"SendMessage": withConfig,
	} {
		if got := r.call(one, method, params); got.Error == nil || got.Error.Code != -32003 {
			t.Errorf("%s: %s %+v", method, got.Result, got.Error)
		}
	}
	if a := r.do(http.MethodGet, one+"/.well-known/agent-card.json", ""); strings.Contains(string(a.body), "pushNotifications") {
		t.Errorf("the card claims push notifications: %s", a.body)
	}
}
