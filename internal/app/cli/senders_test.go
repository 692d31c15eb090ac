//go:build unix

package cli_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/wait"
)

// callA2A sends a message to an agent over HTTP, and returns the task's id and state, or the error's text.
func (d *machine) callA2A(agent, task, text string) (id, state, failure string) {
	d.t.Helper()
	info, _, err := daemon.Running(filepath.Join(d.root, "data"))
	if err != nil {
		d.t.Fatal(err)
	}
	m := map[string]any{"messageId": "m-" + text, "role": "ROLE_USER", "parts": []any{map[string]any{"text": text}}}
	if task != "" {
		m["taskId"] = task
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": map[string]any{"message": m}})
	if err != nil {
		d.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, info.HTTP+"/agents/"+agent+"/a2a", strings.NewReader(string(body)))
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("A2A-Version", "1.0")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Result struct {
			Task struct {
				ID     string
				Status struct{ State string }
			}
		}
		Error struct{ Message string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		d.t.Fatal(err)
	}
	return answer.Result.Task.ID, answer.Result.Task.Status.State, answer.Error.Message
}

func TestTheUserDecidesAboutASender(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	path := filepath.Join(d.root, "data", "config.yaml")
	config, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(config, "sessions: {clients: ask}\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	s := d.openSession("reviewer")
	wait.Eventually(t, "the session is an agent", func() bool { return strings.Contains(d.parley("agents"), "reviewer") })
	agent := d.agentNamed("reviewer")
	if out := d.parley("senders"); !strings.Contains(out, "No sender is always allowed.") {
		t.Errorf("senders: %s", out)
	}

	id, state, failure := d.callA2A(agent, "", "is this safe?")
	if state != "TASK_STATE_AUTH_REQUIRED" {
		t.Fatalf("the task is %s, %s", state, failure)
	}
	if _, _, failure := d.callA2A(agent, id, "always"); !strings.Contains(failure, "nobody else can answer") {
		t.Errorf("the sender answers: %s", failure)
	}
	if out := d.parley("task", "show", id); !strings.Contains(out, "May client 127.0.0.1") || !strings.Contains(out, "send --task "+id+" always") {
		t.Errorf("task show: %s", out)
	}
	if out := d.parley("send", "--detach", "--task", id, "always"); !strings.Contains(out, id) {
		t.Errorf("the answer: %s", out)
	}
	got, text := s.nextTask()
	if got != id || !strings.Contains(text, "is this safe?") || !strings.Contains(text, "from a program of this computer at 127.0.0.1, which calls itself \"Go-http-client/1.1\"") {
		t.Errorf("the session reads %s", text)
	}

	var list []dialect.AllowedSender
	if err := json.Unmarshal([]byte(d.parley("--format", "json", "senders")), &list); err != nil || len(list) != 1 || list[0].Kind != "client" || list[0].Sender != "127.0.0.1" {
		t.Fatalf("allowed are %+v, %v", list, err)
	}
	if out := d.parley("senders"); !strings.Contains(out, list[0].ID) || !strings.Contains(out, "CALLS ITSELF") {
		t.Errorf("senders: %s", out)
	}
	for _, bad := range []string{"", "zz"} {
		if out := d.parley("senders", "--revoke", bad); !strings.Contains(out, "senders") || strings.Contains(out, "You are asked again") {
			t.Errorf("revoke %q: %s", bad, out)
		}
	}
	if out := d.parley("senders", "--revoke", list[0].ID[:6]); !strings.Contains(out, "You are asked again about client 127.0.0.1.") {
		t.Errorf("revoke: %s", out)
	}
	denied, state, _ := d.callA2A(agent, "", "and this?")
	if state != "TASK_STATE_AUTH_REQUIRED" {
		t.Errorf("the task is %s", state)
	}
	d.parley("send", "--detach", "--task", denied, "not today")
	wait.Eventually(t, "the task is rejected", func() bool { return d.task(denied).Status.State == dialect.StateRejected })
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		if task := d.task(d.delegate(revision, agent)); task.Status.State != dialect.StateAuthRequired {
			t.Errorf("MCP %s: the task is %s", revision, task.Status.State)
		}
	}
	s.end()
}

// delegate gives a task to an agent at the hub's /mcp, and returns its id.
func (d *machine) delegate(revision, agent string) (id string) {
	d.t.Helper()
	info, _, err := daemon.Running(filepath.Join(d.root, "data"))
	if err != nil {
		d.t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "web", Version: "1"}, nil).Connect(d.t.Context(),
		&mcp.StreamableClientTransport{Endpoint: info.HTTP + "/mcp", HTTPClient: &http.Client{Transport: transport}},
		&mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		d.t.Fatal(err)
	}
	result, err := session.CallTool(d.t.Context(), &mcp.CallToolParams{Name: "delegate_task", Arguments: map[string]any{"agent": agent, "task": "over MCP"}})
	if err != nil {
		d.t.Fatal(err)
	}
	data, err := json.Marshal(result)
	if err != nil {
		d.t.Fatal(err)
	}
	if err := session.Close(); err != nil {
		d.t.Error(err)
	}
	var out struct{ StructuredContent struct{ TaskID string } }
	if err := json.Unmarshal(data, &out); err != nil || out.StructuredContent.TaskID == "" {
		d.t.Fatalf("no task: %s, %v", data, err)
	}
	return out.StructuredContent.TaskID
}

// agentNamed returns the id of the agent with a handle.
func (d *machine) agentNamed(handle string) string {
	d.t.Helper()
	var agents []dialect.Agent
	if err := json.Unmarshal([]byte(d.parley("--format", "json", "agents")), &agents); err != nil {
		d.t.Fatal(err)
	}
	for _, a := range agents {
		if a.Handle == handle || a.ID == handle {
			return a.ID
		}
	}
	d.t.Fatalf("no agent is called %s", handle)
	return ""
}
