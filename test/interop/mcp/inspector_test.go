//go:build interop

package mcp_test

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/test/interop/rig"
)

const inspectorPackage = "@modelcontextprotocol/inspector"

// inspector is the inspector's CLI mode in an era of the protocol: each run starts a
// server, sends one request and ends the server.
type inspector struct {
	home rig.Home
	era  string
}

// run returns the JSON that the inspector prints.
func (i inspector) run(t *testing.T, project string, args ...string) (map[string]any, error) {
	t.Helper()
	main := filepath.Join(rig.Modules(t, inspectorPackage), ".bin", "mcp-inspector")
	out, err := output(t, func(ctx context.Context) *exec.Cmd {
		cmd := rig.Node(ctx, t, main, "--cli", programs.Path("nats-mcp-server"), "--protocol-era", i.era, "--cwd", project)
		for _, kv := range i.home.Env {
			if strings.HasPrefix(kv, "PARLEY_") || strings.HasPrefix(kv, "HOME=") || strings.HasPrefix(kv, "LOG_") {
				cmd.Args = append(cmd.Args, "-e", kv) // the inspector passes few variables of its own environment
			}
		}
		cmd.Args = append(cmd.Args, args...)
		cmd.Dir = project
		cmd.Env = i.home.Env
		return cmd
	})
	var answer map[string]any
	if out != "" {
		if e := json.Unmarshal([]byte(out), &answer); e != nil {
			t.Fatalf("%v\n%s\n%v", e, out, err)
		}
	}
	return answer, err
}

// names returns the names in the list of an answer.
func names(t *testing.T, answer map[string]any, list string) string {
	t.Helper()
	var all []string
	items, _ := answer[list].([]any)
	for _, item := range items {
		all = append(all, item.(map[string]any)["name"].(string))
	}
	return strings.Join(all, " ")
}

func TestInspector(t *testing.T) {
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			i := inspector{programs.NewHome(t), era}
			project := i.home.Project(t, "a", `{"channels":[{"name":"todo","description":"What to do next"}]}`)
			other := i.home.Project(t, "b", "")
			run := func(project string, args ...string) map[string]any {
				t.Helper()
				answer, err := i.run(t, project, args...)
				if err != nil {
					t.Fatal(err)
				}
				return answer
			}
			call := func(project, tool string, args ...string) string {
				t.Helper()
				all := []string{"--method", "tools/call", "--tool-name", tool}
				for _, a := range args {
					all = append(all, "--tool-arg", a)
				}
				result, err := i.run(t, project, all...)
				if isError, _ := result["isError"].(bool); isError != (err != nil) {
					t.Fatal(err) // the exit code reports whether the tool failed
				}
				answer, err := json.Marshal(result)
				if err != nil {
					t.Fatal(err)
				}
				return string(answer)
			}

			if got := names(t, run(project, "--method", "tools/list", "--strict"), "tools"); got != "cancel_task delegate_task edit_document get_my_handle get_task list_agents list_channels list_documents read_document read_messages send_message set_handle wait_for_messages" {
				t.Errorf("tools %s", got)
			}
			if got := names(t, run(project, "--method", "prompts/list"), "prompts"); got != "dispatcher reporter worker" {
				t.Errorf("prompts %s", got)
			}
			if got := names(t, run(project, "--method", "resources/list"), "resources"); got != "todo" {
				t.Errorf("resources %s", got)
			}
			if got := call(project, "list_channels"); !strings.Contains(got, "What to do next") {
				t.Errorf("channels %s", got)
			}
			if got := call(project, "set_handle", "handle=ann"); !strings.Contains(got, "Handle set to: ann") {
				t.Errorf("handle %s", got)
			}
			if got := call(project, "send_message", "channel=todo", "message=hello"); !strings.Contains(got, `"isError":true`) || !strings.Contains(got, "set_handle") {
				t.Errorf("another session's handle was used: %s", got)
			}
			if got := call(project, "read_messages", "channel=todo", "limit=5"); !strings.Contains(got, "No messages in #todo") {
				t.Errorf("messages %s", got)
			}
			if got := call(other, "list_channels"); !strings.Contains(got, "parallel-work") || strings.Contains(got, "todo") {
				t.Errorf("the other project's channels %s", got)
			}
			if got := call(project, "wait_for_messages", "timeout_seconds=1"); !strings.Contains(got, `"timedOut":true`) {
				t.Errorf("wait %s", got)
			}
			prompt, err := json.Marshal(run(project, "--method", "prompts/get", "--prompt-name", "dispatcher", "--prompt-args", "roadmap=PLAN.md"))
			if err != nil || !strings.Contains(string(prompt), "PLAN.md") {
				t.Errorf("prompt %s %v", prompt, err)
			}
		})
	}
}
